"""linkspan's stand-in for the package of this name: only `p2p`, and of that only what stays on one
host. It is found where p2p/ is the working folder or on PYTHONPATH, and is never installed.
"""
