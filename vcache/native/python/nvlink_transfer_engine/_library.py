"""Finds libnvlink_transfer and gives its functions their types.

A library that the user names is the only one tried, and an error when it does not load. Otherwise:
the package's folder, the libraries of a linkspan that is installed beside it, the repository's build
folders as seen from the package and from the current folder, then the loader's path.
Threads: any thread. Calls leave the interpreter's lock (CDLL), so other threads go on meanwhile.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import pathlib
import sys
from collections import deque
from typing import Any, Iterator, NamedTuple

from ._errors import NOT_INITIALIZED, OK, LibraryNotFound, NvlinkTransferError, failure

VARIABLE = "NVLINK_TRANSFER_LIBRARY"
PACKAGE = pathlib.Path(__file__).resolve().parent
BUILD_FOLDERS = ("native/build", "vcache/native/build", "out/release")
MAX_HANDLES = 65536

_U64_P = ctypes.POINTER(ctypes.c_uint64)
_TRANSFER = [
    ctypes.c_int,  # source_gpu
    ctypes.c_uint64,  # source_ptr
    ctypes.c_int,  # target_gpu
    ctypes.c_uint64,  # target_ptr
    ctypes.c_uint64,  # size_bytes
    ctypes.c_char_p,  # src_ipc_handle
    ctypes.c_uint,
    ctypes.c_char_p,  # dst_ipc_handle
    ctypes.c_uint,
    ctypes.c_uint64,  # src_offset_bytes
    ctypes.c_uint64,  # dst_offset_bytes
    ctypes.c_void_p,  # stream
]


_used_by: int | None = None  # the process whose CUDA the library has started; a fork inherits it


def claim_process(starts_cuda: bool = True) -> None:
    """Before a call that works with CUDA, which does not survive a fork."""
    global _used_by
    if _used_by is None and starts_cuda:
        _used_by = os.getpid()
    if _used_by not in (None, os.getpid()):
        raise failure(
            NOT_INITIALIZED,
            f"process {os.getpid()} was forked from {_used_by}, which had used CUDA, and CUDA does"
            ' not work in it: start processes with multiprocessing.get_context("spawn")',
        )


class _Stats(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("cached_handles", ctypes.c_uint32),
        ("transfers", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("failures", ctypes.c_uint64),
        ("opens", ctypes.c_uint64),
        ("cache_hits", ctypes.c_uint64),
        ("staged", ctypes.c_uint64),
        ("open_handles", ctypes.c_uint64),
    ]


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "perform_direct_transfer": (ctypes.c_int, _TRANSFER),
    "nvlink_transfer_begin": (ctypes.c_int, [*_TRANSFER, ctypes.c_uint32, _U64_P]),
    "nvlink_transfer_test": (ctypes.c_int, [ctypes.c_uint64, _U64_P]),
    "nvlink_transfer_wait": (ctypes.c_int, [ctypes.c_uint64, ctypes.c_uint32]),
    "nvlink_transfer_cancel": (ctypes.c_int, [ctypes.c_uint64]),
    "nvlink_transfer_version": (ctypes.c_char_p, []),
    "nvlink_transfer_error_string": (ctypes.c_char_p, [ctypes.c_int]),
    "nvlink_transfer_last_error": (ctypes.c_char_p, []),
    "nvlink_transfer_set_handle_cache": (ctypes.c_int, [ctypes.c_uint]),
    "nvlink_transfer_stats": (ctypes.c_int, [ctypes.POINTER(_Stats)]),
}


class LibraryStatistics(NamedTuple):
    """nvlink_transfer_stats(): of the whole process, since the library was loaded."""

    cached_handles: int  # open now
    transfers: int  # that succeeded
    bytes: int  # of those
    failures: int  # timed out and canceled ones too
    opens: int  # of handles
    cache_hits: int  # of handles
    staged: int  # transfers without peer access
    open_handles: int  # now: cached ones, and those of transfers until they are closed


class Library:
    """A loaded libnvlink_transfer. OSError: it does not load. AttributeError: not this library."""

    def __init__(self, path: str) -> None:
        self.path = path
        functions = ctypes.CDLL(path)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(functions, name)
            function.restype, function.argtypes = result, arguments
        self.functions = functions
        self.version = functions.nvlink_transfer_version().decode()

    def error(self, code: int, text: bytes | None = None) -> NvlinkTransferError:
        """Of a failure with `code` and `text`; None: the text of this thread's last one."""
        if text is None:
            text = self.functions.nvlink_transfer_last_error()
        told = text.decode(errors="replace")
        known = self.functions.nvlink_transfer_error_string(code).decode(errors="replace")
        name, _, meaning = known.partition(": ")
        return failure(code, told or meaning or known, name)

    def check(self, code: int) -> None:
        if code != OK:
            raise self.error(code)

    def transfer(self, arguments: tuple[Any, ...]) -> None:
        claim_process()
        self.check(self.functions.perform_direct_transfer(*arguments))

    def begin(self, arguments: tuple[Any, ...], timeout_ms: int, number: ctypes.c_uint64) -> None:
        """Stores the number of what has begun, also if a signal's handler raises after that."""
        claim_process()
        self.check(
            self.functions.nvlink_transfer_begin(*arguments, timeout_ms, ctypes.byref(number))
        )

    def test(self, number: int, done: ctypes.c_uint64, answer: deque[Any]) -> None:
        """Stores the bytes in place, and puts code and text into `answer`."""
        test = self.functions.nvlink_transfer_test
        self._answer(map(test, (number,), (ctypes.byref(done),)), answer)

    def wait(self, number: int, timeout_ms: int, answer: deque[Any]) -> None:
        """Puts code and text into `answer`."""
        wait = self.functions.nvlink_transfer_wait
        self._answer(map(wait, (number,), (timeout_ms,)), answer)

    def _answer(self, code: Iterator[int], answer: deque[Any]) -> None:
        # The library reports an end once. From its call to the storing all is in C, where no
        # signal's handler runs: one that raises there would lose the end.
        text = itertools.islice(iter(self.functions.nvlink_transfer_last_error, None), 1)
        answer.extend(itertools.chain(code, text))

    def cancel(self, number: int) -> int:
        return int(self.functions.nvlink_transfer_cancel(number))

    def set_handle_cache(self, count: int) -> None:
        claim_process(starts_cuda=False)  # a server may set this before it forks
        self.check(self.functions.nvlink_transfer_set_handle_cache(count))

    def statistics(self) -> LibraryStatistics:
        stats = _Stats(size=ctypes.sizeof(_Stats))
        self.check(self.functions.nvlink_transfer_stats(ctypes.byref(stats)))
        return LibraryStatistics(*(getattr(stats, name) for name in LibraryStatistics._fields))


def file_names() -> tuple[str, ...]:
    """What the library is called on this platform; the first is what a build makes."""
    if sys.platform == "win32":
        return ("nvlink_transfer.dll", "libnvlink_transfer.dll")
    if sys.platform == "darwin":
        return ("libnvlink_transfer.dylib",)
    return ("libnvlink_transfer.so", "libnvlink_transfer.so.0")


def folders() -> list[str]:
    """Where an unnamed library may be, best first; "" is the loader's path."""
    found = [PACKAGE, PACKAGE.parent / "linkspan" / "lib"]  # the latter of a wheel
    native = PACKAGE.parent.parent  # vcache/native, in the repository
    here = pathlib.Path.cwd()
    builds = [native / "build", native.parent.parent / "out/release"]
    for build in builds + [here / folder for folder in BUILD_FOLDERS]:
        found.append(build)
        if sys.platform == "win32":
            found.append(build / "Release")  # where Visual Studio's generator puts it
    return [*dict.fromkeys(str(folder) for folder in found), ""]


def _try(path: str) -> tuple[Library | None, str]:
    try:
        return Library(path), ""
    except OSError as error:
        return None, f"{path} ({error})"
    except AttributeError as error:
        return None, f"{path} (another library of that name, not linkspan's: {error})"


def find(named: str | os.PathLike[str] | None) -> tuple[Library | None, str]:
    """The library, or None and what was tried. LibraryNotFound: a named one does not load."""
    for path, how in ((named, "library="), (os.environ.get(VARIABLE), VARIABLE)):
        if path is None or (path == "" and how == VARIABLE):
            continue
        library, why = _try(os.fspath(path))
        if library is None:
            raise LibraryNotFound(
                f"{how} names a library that does not load: {why}. Name a libnvlink_transfer"
                f" that works, or leave {how} out to have it searched for."
            )
        return library, f"{how} names {library.path}"
    broken = []
    for folder in folders():
        for name in file_names():
            path = os.path.join(folder, name)
            if folder and not os.path.exists(path):
                continue
            library, why = _try(path)
            if library is not None:
                return library, f"found {library.path}" + (
                    "" if folder else " in the loader's path"
                )
            if folder or "cannot open shared object file: No such file" not in why:
                broken.append(why)
    tried = f"no {' or '.join(file_names())} that works in {', '.join(folders()[:-1])}, nor in the"
    return None, f"{tried} loader's path" + "".join(f"; does not load: {why}" for why in broken)
