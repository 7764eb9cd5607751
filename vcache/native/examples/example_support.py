"""What both examples need and no reader came for: the library, device memory, a second process.

ctypes only. Device memory comes from the CUDA driver itself, so that neither a CUDA toolkit nor
torch has to be there. Threads: one; a context stays current between the calls.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing.connection
import os
import pathlib
import sys
from collections.abc import Iterator

SUCCESS, FAILURE, NO_CUDA, NO_LIBRARY = 0, 1, 2, 3
WAIT_S = 60  # for the other process
HANDLE_BYTES = 64
NATIVE = pathlib.Path(__file__).resolve().parent.parent


class ExampleError(Exception):
    """Ends the example with `exit_code` and its text."""

    def __init__(self, exit_code: int, text: str):
        super().__init__(text)
        self.exit_code = exit_code


# ---- the library ---------------------------------------------------------------------------------


def load_library() -> ctypes.CDLL:
    """libnvlink_transfer from NVLINK_TRANSFER_LIBRARY or the build folder, ready to be called."""
    named = os.environ.get("NVLINK_TRANSFER_LIBRARY")
    places = [pathlib.Path(named)] if named else _places_of_the_library()
    found = [place for place in places if place.is_file()]
    if not found:
        raise ExampleError(
            NO_LIBRARY, f"no native library: {places[0]} is not there; vcache/native/README.md"
        )
    try:
        library = ctypes.CDLL(str(found[0]))
        transfer = library.perform_direct_transfer
        transfer.restype = ctypes.c_int
        transfer.argtypes = [
            ctypes.c_int,  # source_gpu
            ctypes.c_uint64,  # source_ptr
            ctypes.c_int,  # target_gpu
            ctypes.c_uint64,  # target_ptr
            ctypes.c_uint64,  # size_bytes
            ctypes.c_char_p,  # src_ipc_handle
            ctypes.c_uint,  # src_ipc_handle_size
            ctypes.c_char_p,  # dst_ipc_handle
            ctypes.c_uint,  # dst_ipc_handle_size
            ctypes.c_uint64,  # src_offset_bytes
            ctypes.c_uint64,  # dst_offset_bytes
            ctypes.c_void_p,  # stream
        ]
        library.nvlink_transfer_last_error.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise ExampleError(NO_LIBRARY, f"no native library: {error}") from error
    return library


def _places_of_the_library() -> list[pathlib.Path]:
    build = NATIVE / "build"
    if sys.platform == "win32":  # Visual Studio builds into a folder per configuration
        return [folder / "nvlink_transfer.dll" for folder in (build / "Release", build)]
    suffix = "dylib" if sys.platform == "darwin" else "so"
    return [build / f"libnvlink_transfer.{suffix}"]


# ---- the CUDA driver -----------------------------------------------------------------------------


class _IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * HANDLE_BYTES)]


_INT, _SIZE, _ADDRESS, _POINTER = ctypes.c_int, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_void_p
_OUT = ctypes.POINTER

# The version at which an entry is asked for is what fixes its signature.
_ENTRIES = {
    "cuInit": (2000, ctypes.c_uint),
    "cuGetErrorName": (6000, _INT, _OUT(ctypes.c_char_p)),
    "cuDeviceGetCount": (2000, _OUT(_INT)),
    "cuDeviceGet": (2000, _OUT(_INT), _INT),
    "cuDevicePrimaryCtxRetain": (7000, _OUT(_POINTER), _INT),
    "cuDevicePrimaryCtxRelease": (11000, _INT),
    "cuCtxPushCurrent": (4000, _POINTER),
    "cuCtxPopCurrent": (4000, _OUT(_POINTER)),
    "cuMemAlloc": (3020, _OUT(_ADDRESS), _SIZE),
    "cuMemFree": (3020, _ADDRESS),
    "cuMemcpyAsync": (4000, _ADDRESS, _ADDRESS, _SIZE, _POINTER),
    "cuStreamSynchronize": (2000, _POINTER),
    "cuIpcGetMemHandle": (4010, _OUT(_IpcHandle), _ADDRESS),
}


class Cuda:
    """The driver, initialised. Raises NO_CUDA without one, or without `gpus_needed` GPUs."""

    def __init__(self, *gpus_needed: int):
        name = os.environ.get("LINKSPAN_CUDA_LIBRARY")
        name = name or ("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        try:
            library = ctypes.CDLL(name)
            look_up = library.cuGetProcAddress_v2
        except (OSError, AttributeError) as error:
            raise ExampleError(NO_CUDA, f"no CUDA driver of 12.0 or newer: {error}") from error
        look_up.argtypes = [ctypes.c_char_p, _OUT(_POINTER), _INT, _ADDRESS, _OUT(_INT)]
        self._entries = {
            entry: self._find(look_up, entry, version, parameters)
            for entry, (version, *parameters) in _ENTRIES.items()
        }
        count = _INT()
        try:
            self.call("cuInit", 0)
            self.call("cuDeviceGetCount", ctypes.byref(count))
        except ExampleError as error:
            raise ExampleError(NO_CUDA, str(error)) from error
        needed = max(gpus_needed) + 1
        if count.value < needed:
            raise ExampleError(
                NO_CUDA,
                f"needs {needed} GPUs that this process sees, and it sees {count.value};"
                " with one GPU: --src 0 --dst 0",
            )

    @staticmethod
    def _find(look_up, name: str, version: int, parameters: list):
        address, status = _POINTER(), _INT()
        # A driver that is too old answers success, and a null pointer.
        code = look_up(name.encode(), ctypes.byref(address), version, 0, ctypes.byref(status))
        if code != 0 or status.value != 0 or not address.value:
            raise ExampleError(NO_CUDA, f"the CUDA driver has no {name} of {version}")
        function = ctypes.WINFUNCTYPE if sys.platform == "win32" else ctypes.CFUNCTYPE
        return function(_INT, *parameters)(address.value)

    def call(self, name: str, *arguments) -> None:
        code = self._entries[name](*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self._entries["cuGetErrorName"](code, ctypes.byref(text))
            words = (text.value or b"CUDA error").decode()
            raise ExampleError(FAILURE, f"{name}: {words} ({code})")

    @contextlib.contextmanager
    def memory(self, gpu: int, size: int) -> Iterator[DeviceMemory]:
        """`size` bytes of cudaMalloc's kind on that GPU, whose context is current meanwhile."""
        device, context, address = _INT(), _POINTER(), _ADDRESS()
        with contextlib.ExitStack() as undo:
            self.call("cuDeviceGet", ctypes.byref(device), gpu)
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            undo.callback(self.call, "cuDevicePrimaryCtxRelease", device)
            self.call("cuCtxPushCurrent", context)
            undo.callback(self.call, "cuCtxPopCurrent", ctypes.byref(_POINTER()))
            self.call("cuMemAlloc", ctypes.byref(address), size)
            undo.callback(self.call, "cuMemFree", address)
            yield DeviceMemory(self, address.value, size)


class DeviceMemory:
    """Device memory of this process at `address`, `size` bytes."""

    def __init__(self, cuda: Cuda, address: int, size: int):
        self._cuda = cuda
        self.address = address
        self.size = size

    def write(self, data: bytes) -> None:
        self._copy(self.address, ctypes.cast(data, _POINTER).value, len(data))

    def read(self) -> bytes:
        data = ctypes.create_string_buffer(self.size)
        self._copy(ctypes.addressof(data), self.address, self.size)
        return data.raw

    def ipc_handle(self) -> bytes:
        """64 bytes by which another process opens this allocation, all of it."""
        handle = _IpcHandle()
        self._cuda.call("cuIpcGetMemHandle", ctypes.byref(handle), self.address)
        return bytes(handle)

    def _copy(self, to: int, source: int, size: int) -> None:
        self._cuda.call("cuMemcpyAsync", to, source, size, None)
        self._cuda.call("cuStreamSynchronize", None)


# ---- the other process ---------------------------------------------------------------------------


def pattern(size: int, seed: int) -> bytes:
    """Bytes that tell where they stand: no two places nearer than 251 are alike."""
    period = bytes((place + seed) % 251 for place in range(251))
    return (period * (size // 251 + 1))[:size]


@contextlib.contextmanager
def spawned(target, *arguments) -> Iterator[multiprocessing.connection.Connection]:
    """Runs target(connection, *arguments) in a fresh process, which ends with this block.

    Spawned and not forked: a forked child inherits a CUDA driver that it cannot use.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(target, theirs, arguments), daemon=True)
    process.start()
    theirs.close()  # so that the child's end is the pipe's end
    try:
        yield ours
        ours.close()  # which tells the child to end
        process.join(WAIT_S)
        if process.exitcode != 0:
            raise ExampleError(FAILURE, f"the other process ended with {process.exitcode}")
    finally:
        if process.is_alive():
            process.kill()
        process.join(WAIT_S)


def _run(target, connection, arguments) -> None:
    faulthandler.dump_traceback_later(2 * WAIT_S, exit=True)
    try:
        target(connection, *arguments)
    except Exception as error:
        connection.send(f"{target.__name__}: {error}")
        sys.exit(FAILURE)


def receive(connection: multiprocessing.connection.Connection) -> bytes:
    """What the other process sent. FAILURE with its words when it failed, died or says nothing."""
    if not connection.poll(WAIT_S):
        raise ExampleError(FAILURE, f"the other process said nothing for {WAIT_S} s")
    try:
        message = connection.recv()
    except EOFError:
        raise ExampleError(FAILURE, "the other process died") from None
    if isinstance(message, str):  # its last words
        raise ExampleError(FAILURE, message)
    return message


def wait_for_end(connection: multiprocessing.connection.Connection) -> None:
    """In the other process: returns when the first one leaves its block, or is gone."""
    connection.poll(WAIT_S)


def run_example(main) -> None:
    """Exits with what main() answers. A transfer that hangs ends the process with FAILURE."""
    faulthandler.dump_traceback_later(2 * WAIT_S, exit=True)
    try:
        code = main()
    except ExampleError as error:
        print(f"{pathlib.Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        code = error.exit_code
    sys.exit(code)
