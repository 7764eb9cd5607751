"""One end of the plugin, loaded as NCCL does: by its newest table of functions."""

from __future__ import annotations

import ctypes
import time
from typing import Any

HANDLE_BYTES = 128
MOST_ARGUMENTS = 8
FUNCTIONS = (
    "name init devices get_properties listen connect accept reg_mr reg_mr_dma_buf dereg_mr isend "
    "irecv iflush test close_send close_receive close_listen get_device_mr irecv_consumed "
    "make_virtual_device finalize set_net_attr"
).split()


class Table(ctypes.Structure):
    """ncclNetPlugin_v12."""

    _fields_ = [(name, ctypes.c_void_p) for name in FUNCTIONS]


def pattern(size: int, seed: int) -> bytes:
    """Bytes that depend on their place."""
    some = bytes((i * 7 + seed * 13 + (i >> 8) * 3) % 251 for i in range(65521))
    return (some * (size // len(some) + 1))[:size]


class Rank:
    """One comm of this process and its memory. RuntimeError of a call: what the plugin said."""

    def __init__(self, plugin: str) -> None:
        table = Table.in_dll(ctypes.CDLL(plugin), "ncclNetPlugin_v12")
        function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * MOST_ARGUMENTS)
        self._table = {
            name: function(getattr(table, name)) for name in FUNCTIONS[1:] if getattr(table, name)
        }
        self.said = ""
        logger = ctypes.CFUNCTYPE(
            None, ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p,
            ctypes.c_char_p,
        )  # fmt: skip
        self._logger = logger(self._log)
        self._context, self._listener, self._comm = (ctypes.c_void_p() for _ in range(3))
        self._handle: Any = None
        config = ctypes.c_int(-1)
        self._call("init", ctypes.byref(self._context), 0, ctypes.byref(config), self._logger)

    def _log(self, level: int, flags: int, file: bytes, line: int, form: bytes, text: bytes) -> None:
        self.said = text.decode()

    def _call(self, name: str, *arguments: Any) -> None:
        given = [a if isinstance(a, int) else ctypes.cast(a, ctypes.c_void_p) for a in arguments]
        result = self._table[name](*given, *[0] * (MOST_ARGUMENTS - len(given)))
        if result != 0:
            raise RuntimeError(f"{name} answered {result}: {self.said}")

    def devices(self) -> int:
        count = ctypes.c_int()
        self._call("devices", ctypes.byref(count))
        return count.value

    def listen(self) -> bytes:
        handle = ctypes.create_string_buffer(HANDLE_BYTES)
        self._call("listen", self._context, 0, handle, ctypes.byref(self._listener))
        return handle.raw

    def connect(self, handle: bytes) -> bool:
        """Tries once. Returns whether there is a comm."""
        if self._handle is None:
            self._handle = ctypes.create_string_buffer(handle, HANDLE_BYTES)
        self._call("connect", self._context, 0, self._handle, ctypes.byref(self._comm))
        return bool(self._comm.value)

    def accept(self) -> bool:
        self._call("accept", self._listener, ctypes.byref(self._comm))
        return bool(self._comm.value)

    def register(self, size: int, seed: int) -> None:
        self._memory = ctypes.create_string_buffer(pattern(size, seed), size)
        self._mhandle, self._request = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("reg_mr", self._comm, self._memory, size, 1, ctypes.byref(self._mhandle))

    def send(self, size: int) -> None:
        self._call(
            "isend", self._comm, self._memory, size, 1, self._mhandle, 0,
            ctypes.byref(self._request),
        )  # fmt: skip

    def receive(self, size: int) -> None:
        at = ctypes.c_void_p(ctypes.addressof(self._memory))
        room, tag = ctypes.c_size_t(size), ctypes.c_int(1)
        self._call(
            "irecv", self._comm, 1, ctypes.byref(at), ctypes.byref(room), ctypes.byref(tag),
            ctypes.byref(self._mhandle), 0, ctypes.byref(self._request),
        )  # fmt: skip

    def test(self, seconds: float) -> tuple[int | None, float]:
        """Tests the request for so long. Returns the bytes at its end, or None, and the time."""
        begin = time.monotonic()
        done, size = ctypes.c_int(), ctypes.c_int()
        while not done.value and time.monotonic() - begin < seconds:
            self._call("test", self._request, ctypes.byref(done), ctypes.byref(size))
            time.sleep(0.0005)
        return (size.value if done.value else None), time.monotonic() - begin

    def close(self, receives: bool) -> None:
        """Ends the comm and its registration, after which there may be another one."""
        self._call("dereg_mr", self._comm, self._mhandle)
        self._call("close_receive" if receives else "close_send", self._comm)
        self._comm, self._handle = ctypes.c_void_p(), None

    def differs(self, seed: int, size: int) -> int | None:
        """Returns the first of `size` bytes that is not the pattern's."""
        have, want = self._memory.raw[:size], pattern(size, seed)
        return None if have == want else next(i for i in range(size) if have[i] != want[i])
