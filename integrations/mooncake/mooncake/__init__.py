"""linkspan's stand-in for the package of this name: only `engine`. It is found where its folder is
on PYTHONPATH, and is never installed. Other modules come from the real package where that is
installed too.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
