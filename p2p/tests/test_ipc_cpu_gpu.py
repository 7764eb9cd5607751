#!/usr/bin/env python3
"""send_ipc() and recv_ipc() of uccl.p2p between two processes, each pair of memories.

    cd p2p
    torchrun --nproc_per_node=2 tests/test_ipc_cpu_gpu.py
    python3 tests/test_ipc_cpu_gpu.py         starts both processes itself
    python3 -m pytest tests/test_ipc_cpu_gpu.py

GPU memory is torch's; where torch is missing or has no CUDA, the driver's, which
LINKSPAN_CUDA_LIBRARY may name. A line for each case, and at the end how many there were. Exit code
0: all passed; what cannot run here is named and left out.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import logging
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

HERE = pathlib.Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2] / "tests" / "support")]

from uccl import p2p  # noqa: E402

RUN_S, TRANSFER_S = 900, 60
GUARD = 256
NOTE = 1024  # bytes of a message between the two about the test itself
INVERTED = bytes(255 - value for value in range(256))

# ---- memory ------------------------------------------------------------------------------------


class Memory(Protocol):
    """Made with its content."""

    address: int

    def read(self) -> bytes: ...
    def free(self) -> None: ...


class Pageable:
    def __init__(self, content: bytes) -> None:
        self._bytes = bytearray(content)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._bytes))

    def read(self) -> bytes:
        return bytes(self._bytes)

    def free(self) -> None:
        del self._bytes


class Pinned:
    def __init__(self, driver: Any, gpu: int, content: bytes) -> None:
        self._driver, self._gpu, self._bytes = driver, gpu, len(content)
        place = ctypes.c_void_p()
        with driver.on(gpu):
            size, flags = ctypes.c_size_t(self._bytes), ctypes.c_uint(0)
            driver.call("cuMemHostAlloc", ctypes.byref(place), size, flags)
        self.address = place.value or 0
        ctypes.memmove(self.address, content, self._bytes)

    def read(self) -> bytes:
        return ctypes.string_at(self.address, self._bytes)

    def free(self) -> None:
        with self._driver.on(self._gpu):
            self._driver.call("cuMemFreeHost", ctypes.c_void_p(self.address))


class Tensor:
    def __init__(self, torch: Any, content: bytes, **where: Any) -> None:
        self._torch = torch
        self._tensor = torch.empty(len(content), dtype=torch.uint8, **where)
        self.address = self._tensor.data_ptr()
        self._tensor.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        self._wait()  # what linkspan copies is in no order with torch's streams

    def _wait(self) -> None:
        if self._tensor.is_cuda:
            self._torch.cuda.synchronize(self._tensor.device)

    def read(self) -> bytes:
        host = self._tensor.cpu()
        self._wait()
        return ctypes.string_at(host.data_ptr(), host.numel())

    def free(self) -> None:
        del self._tensor


Makers = dict[str, Callable[[bytes], Memory]]


def memories(local_rank: int) -> tuple[Makers, list[str]]:
    """What this process can make, and what there is to say about it."""
    try:
        import torch
    except ImportError:
        torch = None
    makers: Makers = {"CPU": Pageable}
    if torch is not None:
        makers["CPU"] = lambda content: Tensor(torch, content)
        if torch.cuda.is_available() and not os.environ.get("LINKSPAN_CUDA_LIBRARY"):
            count = torch.cuda.device_count()
            device = torch.device("cuda", local_rank % count)
            torch.cuda.set_device(device)  # pinned memory takes the current one's context
            makers["pinned CPU"] = lambda content: Tensor(torch, content, pin_memory=True)
            makers["GPU"] = lambda content: Tensor(torch, content, device=device)
            return makers, [f"memory: torch {torch.__version__}, {count} GPU(s)"]
    without = "no torch" if torch is None else f"torch {torch.__version__}, not for GPUs"
    try:
        import cuda_memory

        driver = cuda_memory.Driver()
        if driver.gpus == 0:
            raise RuntimeError("the driver has no GPU")
    except (ImportError, OSError, RuntimeError) as error:
        return makers, [f"left out: all pairs with GPU and pinned CPU memory: {without}, {error}"]
    gpu = local_rank % driver.gpus
    makers["pinned CPU"] = lambda content: Pinned(driver, gpu, content)
    makers["GPU"] = lambda content: cuda_memory.Gpu(driver, gpu, content)
    return makers, [f"memory: {without}, the driver's, {driver.gpus} GPU(s)"]


# ---- cases -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    sender: int  # its rank
    source: str
    target: str
    receiver_first: bool
    size: int
    room: int
    count: int = 1  # of such messages, one behind the other

    @property
    def fits(self) -> bool:
        return self.size <= self.room

    def __str__(self) -> str:
        many = f"{self.count} x " if self.count > 1 else ""
        room = "" if self.size == self.room else f" into {self.room} B"
        first = "receiver" if self.receiver_first else "sender"
        refused = "" if self.fits else ", refused"
        return (
            f"{self.source} -> {self.target}, rank {self.sender} -> {1 - self.sender}, {many}"
            f"{self.size} B{room}, {first} first{refused}"
        )

    def content(self, index: int) -> bytes:
        return random.Random(f"{self}, {index}").randbytes(self.size)


SIZES = (
    {"size": 0, "room": 0},
    {"size": 1, "room": 1},
    {"size": 4097, "room": 4097},
    {"size": (1 << 20) + 3, "room": (1 << 20) + 3},
    {"size": 64 << 20, "room": 64 << 20},
    {"size": 4097, "room": 4097, "count": 8},
    {"size": 4097, "room": 1 << 20},
    {"size": (1 << 20) + 4, "room": (1 << 20) + 3},
)


def cases(kinds: list[str]) -> Iterator[Case]:
    for source, target in itertools.product(kinds, kinds):
        for size, sender, receiver_first in itertools.product(SIZES, (0, 1), (True, False)):
            yield Case(sender, source, target, receiver_first, **size)


# ---- one of the two processes ------------------------------------------------------------------


class Errors(logging.Handler):
    """What uccl.p2p said since it was last asked."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._texts.append(record.getMessage())

    def take(self) -> str:
        texts, self._texts = self._texts, []
        return "; ".join(texts)


class Process:
    def __init__(self, rank: int, local_rank: int) -> None:
        self.rank = rank
        self.errors = Errors()
        logging.getLogger("uccl.p2p").addHandler(self.errors)
        logging.getLogger("uccl.p2p").propagate = False
        self.makers, self.remarks = memories(local_rank)
        self._endpoint = p2p.Endpoint(local_rank)
        self._data, self._notes = self._connect(1 - local_rank), self._connect(1 - local_rank)

    def _connect(self, other: int) -> int:
        if self.rank == 0:
            ok, conn_id = self._endpoint.connect_local(other)
            who = other
        else:
            ok, who, conn_id = self._endpoint.accept_local()
        if not ok:
            raise SystemExit(f"rank {self.rank} met nobody: {self.errors.take()}")
        if who != other:
            raise SystemExit(f"rank {self.rank} met index {who}, not {other}")
        return conn_id

    def meet(self, text: str = "") -> str:
        """The other's text, when both have come here; by a connection of its own."""
        mine = Pageable(text.encode()[:NOTE].ljust(NOTE, b"\0"))
        theirs = Pageable(bytes(NOTE))
        sent = self._endpoint.send_ipc_async(self._notes, mine.address, NOTE)
        received = self._endpoint.recv_ipc(self._notes, theirs.address, NOTE)
        if not received or not self._finish(*sent):
            raise SystemExit(f"rank {self.rank}: the other process: {self.errors.take()}")
        return theirs.read().rstrip(b"\0").decode(errors="replace")

    def _finish(self, ok: bool, transfer_id: int) -> bool:
        until, done = time.monotonic() + TRANSFER_S, not ok
        while not done:
            ok, done = self._endpoint.poll_async(transfer_id)
            if not done:
                if time.monotonic() > until:
                    raise SystemExit(f"rank {self.rank}: not done after {TRANSFER_S} s")
                time.sleep(0.0002)
        return ok

    def run(self, case: Case) -> str:
        """What went wrong on this side. Who is first starts before both meet, and the other calls
        the blocking form after it."""
        sends = case.sender == self.rank
        first = case.receiver_first != sends
        size = case.size if sends else case.room
        guard = GUARD if case.receiver_first else GUARD + 3  # and no alignment
        before, after = [], []
        for index in range(case.count):
            content = case.content(index)
            # Each byte that is to come differs from what is there.
            there = content if sends else content.translate(INVERTED)[:size].ljust(size, b"\x5a")
            ends = random.Random(index).randbytes(guard)
            before.append(ends + there + ends)
            came = content + there[case.size :] if case.fits and not sends else there
            after.append(ends + came + ends)
        make = self.makers[case.source if sends else case.target]
        memory = [make(content) for content in before]
        starts = self._endpoint.send_ipc_async if sends else self._endpoint.recv_ipc_async
        blocks = self._endpoint.send_ipc if sends else self._endpoint.recv_ipc
        places = [(self._data, each.address + guard, size) for each in memory]

        started = [starts(*place) for place in places] if first else []
        self.meet()
        if first:
            ends_ok = [self._finish(*each) for each in started]
        else:
            ends_ok = [blocks(*place) for place in places]
        said = self.errors.take()
        wrong = []
        for index, (each, expected) in enumerate(zip(memory, after)):
            found = each.read()
            each.free()
            if found != expected:
                wrong.append(f"message {index}: {difference(found, expected)}")
        if ends_ok != [case.fits] * case.count:
            wrong.insert(0, f"{'sent' if sends else 'received'} {ends_ok}: {said or 'no text'}")
        elif not case.fits and "nothing was written" not in said:
            wrong.insert(0, f"another reason than the size: {said}")
        return f"rank {self.rank}: {'; '.join(wrong)}" if wrong else ""


def difference(found: bytes, expected: bytes) -> str:
    bits = int.from_bytes(found, "little") ^ int.from_bytes(expected, "little")
    first, last = ((bits & -bits).bit_length() - 1) // 8, (bits.bit_length() - 1) // 8
    return f"bytes {first} to {last} of {len(expected)} differ, guards included"


def work(rank: int, world_size: int, local_rank: int) -> int:
    if world_size != 2:
        print(f"{world_size} process(es): run torchrun --nproc_per_node=2", file=sys.stderr)
        return 1
    process = Process(rank, local_rank)
    tells = print if rank == 0 else (lambda *_, **__: None)
    for remark in process.remarks:
        tells(remark, flush=True)
    kinds = list(process.makers)
    theirs = process.meet(",".join(kinds)).split(",")
    if theirs != kinds:
        print(f"rank {rank} has {kinds} memory, the other {theirs}", file=sys.stderr)
        return 1
    passed = failed = 0
    for case in cases(kinds):
        mine = process.run(case)
        problem = " | ".join(filter(None, (mine, process.meet(mine))))
        tells(f"FAILED {case}: {problem}" if problem else f"ok {case}", flush=True)
        failed += bool(problem)
        passed += not problem
    tells(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


# ---- both processes ----------------------------------------------------------------------------


def spawn() -> int:
    """The exit code, of both."""
    until = time.monotonic() + RUN_S
    with tempfile.TemporaryDirectory(prefix="linkspan-p2p-") as folder:
        processes = [
            subprocess.Popen(
                [sys.executable, HERE],
                env=os.environ
                | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
                | {"LINKSPAN_SOCKET_DIR": folder},  # runs side by side do not meet
            )
            for rank in (0, 1)
        ]
        try:
            codes = [each.wait(max(0.0, until - time.monotonic())) for each in processes]
        except subprocess.TimeoutExpired:
            print(f"not over after {RUN_S} s", file=sys.stderr)
            return 1
        finally:
            for each in processes:
                each.kill()
                each.wait()
    return 0 if codes == [0, 0] else 1


def test_ipc_cpu_gpu() -> None:
    assert spawn() == 0


def main() -> int:
    if "RANK" not in os.environ:
        return spawn()
    rank = int(os.environ["RANK"])
    return work(rank, int(os.environ["WORLD_SIZE"]), int(os.environ.get("LOCAL_RANK", rank)))


if __name__ == "__main__":
    sys.exit(main())
