"""The bare calls of bare.cu: the ceiling of the same run.

What has no bare form (a ping-pong, pages of host memory) has no ceiling.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import shutil
import subprocess
import tempfile
from typing import Any

import numpy
from side import Failed, Move, Side

import memory

HERE = pathlib.Path(__file__).resolve().parent
BUILT = "libpeers_bare.so"  # by `./dev gpu-pack`, beside this file


def build(into: pathlib.Path) -> pathlib.Path:
    nvcc = shutil.which("nvcc", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
    if nvcc is None:
        raise Failed(f"no {BUILT} beside bare_side.py, and no nvcc to make it")
    command = [
        nvcc,
        "-std=c++17",
        "-O3",
        "-arch=native",
        "-shared",
        "-Xcompiler=-fPIC",
        "-o",
        str(into / BUILT),
        str(HERE / "bare.cu"),
    ]
    made = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    if made.returncode != 0:
        raise Failed(f"nvcc bare.cu: {made.stderr[-300:]}")
    return into / BUILT


def load() -> ctypes.CDLL:
    if (HERE / BUILT).exists():
        return ctypes.CDLL(str(HERE / BUILT))
    with tempfile.TemporaryDirectory() as folder:
        return ctypes.CDLL(str(build(pathlib.Path(folder))))


class BareSide(Side):
    def __init__(self, role: str) -> None:
        super().__init__(role)
        self.bare = load()
        self.bare.bare_error.restype = ctypes.c_char_p
        self.how = ""
        self.started = False
        self.far: list[tuple[int, bool]] = []  # address here or there, and whether it was imported
        self.far_pid = 0
        self.pages: numpy.ndarray | None = None
        self.own: memory.Memory | None = None  # in the place of host memory of the target

    def check(self, error: int, call: str) -> None:
        if error != 0:
            raise Failed(f"{call}: {self.bare.bare_error(error).decode()}")

    def version(self) -> str:
        return "bare.cu"

    def offer(self, memories: list[memory.Memory]) -> Any:
        if memories[0].gpu >= 0:
            self.check(self.bare.bare_start(memories[0].gpu, 1 << 16), "bare_start")
            self.started = True
        offers = []
        for each in memories:
            handle = ctypes.create_string_buffer(64)
            if each.gpu >= 0:
                self.check(
                    self.bare.bare_export(ctypes.c_void_p(each.address), handle), "bare_export"
                )
            offers.append((each.gpu >= 0, each.address, handle.raw))
        return os.getpid(), offers

    def accept(self, offer: Any) -> None:
        if self.role == "target":
            return
        self.far_pid, offers = offer
        for on_gpu, address, handle in offers:
            place = ctypes.c_void_p(address)
            if on_gpu:
                self.check(self.bare.bare_import(handle, ctypes.byref(place)), "bare_import")
            self.far.append((place.value or 0, on_gpu))

    def mover(self, row: Any, memories: list[memory.Memory]) -> Move:
        near, far, write = memories[0], self.far[0], int(row.op == "write")
        pieces, size = row.in_flight, ctypes.c_uint64(row.bytes)
        local, remote = ctypes.c_void_p(near.address), ctypes.c_void_p(far[0])
        if near.gpu >= 0 and far[1] and row.pages:
            pages = self.pages = self.list_of(row, memories)
            self.how = "list written into mapped memory, one kernel, cudaStreamSynchronize"
            return self.timed("bare_pages", ctypes.c_void_p(pages.ctypes.data), len(pages), size)
        if near.gpu >= 0 and not row.pages and not row.ping_pong:
            self.how = "cudaMemcpyAsync over CUDA IPC, cudaStreamSynchronize"
            if not far[1]:
                self.how = f"cudaMemcpyAsync, cudaStreamSynchronize, own {row.remote} memory"
                self.own = self.allocate(row.remote, row.region_bytes, -1)
                remote = ctypes.c_void_p(self.own.address)
            to, from_ = (remote, local) if write else (local, remote)
            return self.timed("bare_copy", to, from_, size, pieces)
        if near.kind == row.remote == "page" and not row.pages and pieces == 1:
            self.how = f"process_vm_{'write' if write else 'read'}v, one thread"
            return self.timed("bare_process_vm", self.far_pid, local, remote, size, write)
        raise Failed(f"no bare form of {row.id}")

    def list_of(self, row: Any, memories: list[memory.Memory]) -> numpy.ndarray:
        """Returns a row of addresses (to, from) for each page."""
        rows = []
        for each, (far, _), (mine, theirs) in zip(memories, self.far, row.indices()):
            near_at = each.address + numpy.array(mine, numpy.uint64) * numpy.uint64(row.bytes)
            far_at = far + numpy.array(theirs, numpy.uint64) * numpy.uint64(row.bytes)
            rows.append(numpy.stack([far_at, near_at][:: 1 if row.op == "write" else -1], axis=1))
        return numpy.ascontiguousarray(numpy.concatenate(rows).astype(numpy.uint64))

    def timed(self, name: str, *arguments: Any) -> Move:
        function = getattr(self.bare, name)

        def move(runs: int) -> list[int]:
            times = (ctypes.c_int64 * runs)()
            self.check(function(*arguments, runs, times), name)
            return list(times)

        return move

    def release(self) -> None:
        for place, imported in self.far:
            if imported:
                self.check(self.bare.bare_close(ctypes.c_void_p(place)), "bare_close")
        self.far, self.own, self.pages = [], None, None
        if self.started:
            self.check(self.bare.bare_stop(), "bare_stop")
        self.started = False


create = BareSide
