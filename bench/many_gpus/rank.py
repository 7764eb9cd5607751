"""A process of run.py with the memory of one GPU: does what comes by a pipe.

    rank.py PIPE_FD RANK COUNT GPUS
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import linkspan
import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "support"))

from cuda_memory import Driver, Gpu  # noqa: E402

LIMIT_S = 30
POISON = 0xEE
PAGE = 4096


def content_of(size: int, seed: int) -> numpy.ndarray:
    """Bytes that depend on their place."""
    words = numpy.arange(-(-size // 8), dtype=numpy.uint64)
    words = (words + numpy.uint64(seed + 1)) * numpy.uint64(0x9E3779B97F4A7C15)
    return words.view(numpy.uint8)[:size]


class Pinned:
    """Host memory that the GPUs reach, of the context of one."""

    def __init__(self, driver: Driver, gpu: int, size: int) -> None:
        address = ctypes.c_void_p()
        with driver.on(gpu):
            driver.call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_uint(0))
        self.address, self.size = address.value or 0, size
        self.array = numpy.frombuffer((ctypes.c_char * size).from_address(self.address), numpy.uint8)


class Rank:
    """An Engine whose slots, one for each rank, are in GPU memory. The slot of a rank is written by
    that rank, and a rank's own slot is what it sends."""

    def __init__(self, rank: int, count: int, gpus: int) -> None:
        self.rank, self.count, self.gpu = rank, count, rank % gpus
        self.driver = Driver()
        self.opened: list[linkspan.Engine] = []
        self.peers: dict[int, linkspan.Peer] = {}
        self.theirs: dict[int, Any] = {}

    def set_up(self, slot: int) -> tuple[str, float]:
        """Returns the address, and the seconds to open the Engine and register all slots."""
        self.slot = slot
        self.slots = [Gpu(self.driver, self.gpu, bytes(slot)) for _ in range(self.count)]
        begin = time.monotonic()
        self.engine = self.open()
        self.regions = [self.engine.register_memory((each.address, slot)) for each in self.slots]
        self.engine.publish("slots", self.regions)
        address = self.engine.listen()
        return address, time.monotonic() - begin

    def open(self, **options: Any) -> linkspan.Engine:
        self.opened.append(linkspan.Engine(f"rank {self.rank}", **options))
        return self.opened[-1]

    def meet(self, addresses: list[str]) -> tuple[float, int, int]:
        """Connects to all others and maps what they publish. Returns the seconds, and then the KiB
        of this process's memory and its file descriptors."""
        begin = time.monotonic()
        for i, address in enumerate(addresses):
            if i != self.rank:
                self.meet_one(i, address)
        took = time.monotonic() - begin
        status = pathlib.Path("/proc/self/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return took, int(resident.split()[1]), len(os.listdir("/proc/self/fd"))

    def meet_one(self, rank: int, address: str) -> None:
        self.peers[rank] = self.engine.connect(address)
        self.theirs[rank] = self.peers[rank].lookup_set("slots").regions

    def fill(self, seed: int) -> None:
        """Seeds differ by rank and row; slots of others are poisoned."""
        own = content_of(self.slot, seed + self.rank).tobytes()
        poison = bytes([POISON]) * self.slot
        for i, each in enumerate(self.slots):
            each.write(own if i == self.rank else poison)

    def wrong(self, seed: int, writers: list[int], size: int, unknown: int = -1) -> int:
        """Returns how many bytes of the slots are not what `writers` wrote into their first `size`
        bytes, or not as fill() left them. The slot of `unknown` may be anything."""
        wrong = 0
        for i, each in enumerate(self.slots):
            if i == unknown:
                continue
            expected = numpy.full(self.slot, POISON, numpy.uint8)
            if i == self.rank:
                expected = content_of(self.slot, seed + i)
            elif i in writers:
                expected[:size] = content_of(self.slot, seed + i)[:size]
            wrong += int((numpy.frombuffer(each.read(), numpy.uint8) != expected).sum())
        return wrong

    def at(self, begin: float) -> float:
        """Waits for a time that all ranks begin at."""
        while time.monotonic() < begin:
            pass
        return time.monotonic()

    def write(self, begin: float, targets: list[int], size: int) -> tuple[float, float]:
        """Writes the first bytes of its slot to all targets at once. Returns the begin and end."""
        mine, shape = self.regions[self.rank], [(0, 0, size)]
        started = self.at(begin)
        going = [
            self.peers[i].write(mine, self.theirs[i][self.rank], shape, after=None) for i in targets
        ]
        for each in going:
            each.wait(LIMIT_S)
        return started, time.monotonic()

    def write_to_all(self, begin: float, targets: list[int], size: int) -> tuple[float, float]:
        mine = self.regions[self.rank]
        started = self.at(begin)
        going = self.engine.write_to_all(
            mine, [self.theirs[i][self.rank] for i in targets], [(0, 0, size)], after=None
        )
        for each in going:
            each.wait(LIMIT_S)
        return started, time.monotonic()

    def write_pages(self, begin: float, targets: list[int], size: int) -> tuple[float, float]:
        """Writes its pages to where they are in its slot, in an order without rule."""
        order = numpy.random.default_rng(self.rank).permutation(size // PAGE).astype(numpy.int32)
        pages, mine = linkspan.Pages(PAGE, order, order), self.regions[self.rank]
        started = self.at(begin)
        for i in targets:
            self.peers[i].write(mine, self.theirs[i][self.rank], pages, after=None).wait(LIMIT_S)
        return started, time.monotonic()

    def path(self, target: int, size: int) -> str:
        mine, theirs = self.regions[self.rank], self.theirs[target][self.rank]
        return str(self.peers[target].explain("write", mine, theirs, blocks=1, bytes=size).path)

    # ---- host memory to a GPU, over the PCIe links of others as well ---------------------------

    def borrow(self, relays: int, address: str, size: int, seed: int) -> None:
        """Opens an Engine that borrows the links of so many GPUs, and its pinned memory."""
        self.pinned = Pinned(self.driver, self.gpu, size)
        self.pinned.array[:] = content_of(size, seed + self.rank)
        engine = self.open(relay_gpus=relays)
        self.from_host = engine.register_memory((self.pinned.address, size))
        self.lender = engine.connect(address)
        self.to_gpu = self.lender.lookup_set("slots").regions[self.rank]

    def write_from_host(self, begin: float, size: int) -> tuple[float, float]:
        started = self.at(begin)
        self.lender.write(self.from_host, self.to_gpu, [(0, 0, size)], after=None).wait(LIMIT_S)
        return started, time.monotonic()

    def give_back(self) -> None:
        self.lender = self.from_host = self.to_gpu = None
        self.opened.pop().close()
        with self.driver.on(self.gpu):
            self.driver.call("cuMemFreeHost", ctypes.c_void_p(self.pinned.address))

    def end(self) -> None:
        self.peers, self.theirs = {}, {}
        for engine in self.opened:
            engine.close()
        for each in self.slots:
            each.free()


class Bare:
    """The driver's own copies between all GPUs, of one process: the ceilings."""

    def __init__(self, count: int) -> None:
        self.driver, self.count = Driver(), count

    def set_up(self, slot: int) -> None:
        self.slots = [
            [Gpu(self.driver, gpu, bytes(slot)) for _ in range(self.count)]
            for gpu in range(self.count)
        ]
        self.host = Pinned(self.driver, 0, slot)
        self.streams: dict[tuple[int, int], ctypes.c_void_p] = {}
        for gpu in range(self.count):
            with self.driver.on(gpu):
                for other in range(self.count):
                    stream = ctypes.c_void_p()
                    self.driver.call("cuStreamCreateWithPriority", ctypes.byref(stream), ctypes.c_uint(1), ctypes.c_int(0))
                    self.streams[gpu, other] = stream
                    if other != gpu:
                        self.driver.call(
                            "cuCtxEnablePeerAccess", self.context(other), ctypes.c_uint(0)
                        )

    def context(self, gpu: int) -> ctypes.c_void_p:
        with self.driver.on(gpu):
            context = ctypes.c_void_p()
            self.driver.call("cuCtxGetCurrent", ctypes.byref(context))
        return context

    def copy(self, pairs: list[tuple[int, int]], size: int) -> float:
        """Copies from each pair's first GPU to a slot of its second one, all at once; from -1, the
        host. Returns the seconds."""
        begin = time.monotonic()
        for source, target in pairs:
            here = max(source, 0)
            origin = self.host.address if source < 0 else self.slots[source][source].address
            with self.driver.on(here if source >= 0 else target):
                self.driver.call(
                    "cuMemcpyAsync",
                    ctypes.c_uint64(self.slots[target][here].address),
                    ctypes.c_uint64(origin),
                    ctypes.c_size_t(size),
                    self.streams[here if source >= 0 else target, target],
                )
        for source, target in pairs:
            gpu = source if source >= 0 else target
            with self.driver.on(gpu):
                self.driver.call("cuStreamSynchronize", self.streams[gpu, target])
        return time.monotonic() - begin

    def end(self) -> None:
        for row in self.slots:
            for each in row:
                each.free()


def serve(kind: type[Rank] = Rank) -> None:
    """Does what comes by the pipe, until its end."""
    pipe, name = Connection(int(sys.argv[1])), sys.argv[2]
    count, gpus = int(sys.argv[3]), int(sys.argv[4])
    rank = Bare(gpus) if name == "bare" else kind(int(name), count, gpus)
    while True:
        method, *arguments = pipe.recv()
        try:
            pipe.send(("done", getattr(rank, method)(*arguments)))
        except Exception as error:
            pipe.send(("failed", f"{type(error).__name__}: {error}"))
        if method == "end":
            return


if __name__ == "__main__":
    serve()
