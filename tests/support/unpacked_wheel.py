"""Calls the libraries of an unpacked wheel by ctypes, with any Python from 3.6 on.

    unpacked_wheel.py c-interface FOLDER    of liblinkspan.so.0: an Engine is opened and closed
    unpacked_wheel.py nixl-plugin FILE      of libplugin_LINKSPAN.so: what NIXL asks first
    unpacked_wheel.py nccl-plugin FILE      of libnccl-net-linkspan.so: the newest version's name

FOLDER is the package linkspan of the wheel. No NIXL and no NCCL is needed: the plugins ask for no
symbol of theirs. Exits with 1 and what failed.
"""

import ctypes
import os
import sys

CLOSE_NS = 5 * 10**9


class NixlPlugin(ctypes.Structure):
    """abi::Plugin of integrations/nixl/src/abi.hpp."""

    _fields_ = [
        ("version", ctypes.c_int),
        ("create", ctypes.c_void_p),
        ("destroy", ctypes.c_void_p),
        ("name", ctypes.CFUNCTYPE(ctypes.c_char_p)),
        ("plugin_version", ctypes.CFUNCTYPE(ctypes.c_char_p)),
        ("options", ctypes.c_void_p),
        ("memories", ctypes.c_void_p),
    ]


def load(file):
    """Resolves each symbol now, so that one which this glibc lacks is seen here."""
    return ctypes.CDLL(file, mode=os.RTLD_NOW)


def c_interface(folder):
    library = load(os.path.join(folder, "lib", "liblinkspan.so.0"))
    library.linkspan_version.restype = ctypes.c_char_p
    library.linkspan_last_error.restype = ctypes.c_char_p
    library.linkspan_engine_close.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.linkspan_engine_free.argtypes = [ctypes.c_void_p]
    library.linkspan_engine_free.restype = None
    engine = ctypes.c_void_p()
    if library.linkspan_engine_open(None, ctypes.byref(engine)) != 0:
        sys.exit("linkspan_engine_open: " + library.linkspan_last_error().decode())
    if library.linkspan_engine_close(engine, CLOSE_NS) != 0:
        sys.exit("linkspan_engine_close: " + library.linkspan_last_error().decode())
    library.linkspan_engine_free(engine)
    return "linkspan " + library.linkspan_version().decode()


def nixl_plugin(file):
    library = load(file)
    library.nixl_plugin_init.restype = ctypes.POINTER(NixlPlugin)
    plugin = library.nixl_plugin_init().contents
    if (plugin.version, plugin.name()) != (1, b"LINKSPAN"):
        sys.exit("nixl_plugin_init: interface {0.version}, backend {1!r}".format(plugin, plugin.name()))
    library.nixl_plugin_fini()
    return "LINKSPAN " + plugin.plugin_version().decode()


def nccl_plugin(file):
    library = load(file)
    versions = [v for v in range(1, 100) if hasattr(library, "ncclNetPlugin_v%d" % v)]
    if not versions:
        sys.exit(file + " has no ncclNetPlugin_v...")
    plugin = ctypes.c_char_p.in_dll(library, "ncclNetPlugin_v%d" % versions[-1])
    return "%s, versions %d to %d" % (plugin.value.decode(), versions[0], versions[-1])


def main():
    checks = {"c-interface": c_interface, "nixl-plugin": nixl_plugin, "nccl-plugin": nccl_plugin}
    if len(sys.argv) != 3 or sys.argv[1] not in checks:
        sys.exit(__doc__)
    print(checks[sys.argv[1]](sys.argv[2]))


if __name__ == "__main__":
    main()
