"""One of the two ranks of run.py: rank.py RANK GPU BYTES [BYTES...]

Speaks to run.py in lines of JSON: tells NCCL's unique id (rank 0) or reads it (rank 1), then tells a
figure for each operation and size: microseconds of one operation, and CPU seconds of this process.
The bytes are checked before the clock runs and after, and beside them nothing may have changed.
LINKSPAN_BENCH_NCCL names another library than torch's NCCL.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

INT32, SUM = 2, 0  # ncclInt32, ncclSum
GUARD = 1024  # values before and behind each buffer
POISON = -0x5A5A5A5A
PING_PONG = 65536  # bytes at most that are sent back, which shows latency
SECONDS = 0.4  # of a measurement, about


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]  # noqa: RUF012 ctypes wants a list


class Nccl:
    """NCCL's calls that are measured, on torch's current stream."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ.get("LINKSPAN_BENCH_NCCL", "libnccl.so.2"))
        self.library.ncclGetErrorString.restype = ctypes.c_char_p
        self.comm = ctypes.c_void_p()

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: {self.library.ncclGetErrorString(code).decode()}")

    def version(self) -> str:
        number = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(number))
        return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"

    def unique_id(self) -> UniqueId:
        made = UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(made))
        return made

    def init(self, rank: int, unique_id: UniqueId) -> None:
        self.call("ncclCommInitRank", ctypes.byref(self.comm), 2, unique_id, rank)
        self.stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def run(self, name: str, *arguments: Any) -> None:
        """An operation on int32, whose last arguments are the comm and the stream."""
        self.call(name, *arguments, self.comm, self.stream)

    def send(self, data: torch.Tensor, peer: int) -> None:
        self.run("ncclSend", at(data), length(data), INT32, ctypes.c_int(peer))

    def receive(self, data: torch.Tensor, peer: int) -> None:
        self.run("ncclRecv", at(data), length(data), INT32, ctypes.c_int(peer))

    def all_reduce(self, send: torch.Tensor, receive: torch.Tensor) -> None:
        self.run("ncclAllReduce", at(send), at(receive), length(send), INT32, SUM)

    def all_gather(self, send: torch.Tensor, receive: torch.Tensor) -> None:
        self.run("ncclAllGather", at(send), at(receive), length(send), INT32)

    def end(self) -> None:
        self.call("ncclCommDestroy", self.comm)


def at(data: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(data.data_ptr())


def length(data: torch.Tensor) -> ctypes.c_size_t:
    return ctypes.c_size_t(data.numel())


class Buffer:
    """Values on the GPU with guards around them."""

    def __init__(self, values: int) -> None:
        self.all = torch.full((values + 2 * GUARD,), POISON, dtype=torch.int32, device="cuda")
        self.data = self.all[GUARD : GUARD + values]

    def guards_stand(self) -> bool:
        before, behind = self.all[:GUARD], self.all[GUARD + self.data.numel() :]
        return bool((before == POISON).all() and (behind == POISON).all())


def pattern(values: int, rank: int) -> torch.Tensor:
    """Differs at every position and between ranks."""
    return torch.arange(values, dtype=torch.int32, device="cuda") * 2 + rank * 77777


class Rank:
    def __init__(self, rank: int, nccl: Nccl) -> None:
        self.rank, self.nccl = rank, nccl
        self.token = torch.zeros(2, dtype=torch.int32, device="cuda")

    def one_way(self, send: torch.Tensor, receive: torch.Tensor) -> None:
        """Rank 0 sends, rank 1 receives."""
        if self.rank == 0:
            self.nccl.send(send, 1)
        else:
            self.nccl.receive(receive, 0)

    def ping_pong(self, send: torch.Tensor, receive: torch.Tensor) -> None:
        """Rank 0 sends, and rank 1 sends once it has received."""
        self.one_way(send, receive)
        if self.rank == 0:
            self.nccl.receive(receive, 1)
        else:
            self.nccl.send(send, 0)

    def barrier(self) -> None:
        self.nccl.all_reduce(self.token[:1], self.token[1:])
        torch.cuda.synchronize()

    def measure(self, operation: str, size: int) -> dict[str, Any]:
        """Returns the microseconds of one operation. All-gather: `size` is of what comes out."""
        values = size // 4
        part = values // 2 if operation == "allgather" else values
        send, receive = Buffer(part), Buffer(values)
        mine, theirs = pattern(part, self.rank), pattern(part, 1 - self.rank)
        send.data.copy_(mine)
        call, expected, halves = self.calls(operation, size, mine, theirs)
        self.verified(call, send, receive, expected)
        self.barrier()
        begin = time.perf_counter()
        call(send.data, receive.data)
        torch.cuda.synchronize()
        runs = self.agree(max(2, min(300, int(SECONDS / (time.perf_counter() - begin)))))
        done = torch.cuda.Event(blocking=True)
        self.barrier()
        cpu, begin = time.process_time(), time.perf_counter()
        for _ in range(runs):
            call(send.data, receive.data)
        done.record()
        done.synchronize()
        end = time.perf_counter()
        cpu = time.process_time() - cpu
        self.verified(call, send, receive, expected)
        return {
            "operation": operation,
            "bytes": size,
            "us": (end - begin) * 1e6 / runs / halves,
            "cpu_s": cpu / runs / halves,
            "runs": runs,
        }

    def calls(
        self, operation: str, size: int, mine: torch.Tensor, theirs: torch.Tensor
    ) -> tuple[Callable[..., None], torch.Tensor | None, int]:
        """Returns the operation, what it has to give here, and by how much its time is divided."""
        if operation == "sendrecv":
            if size <= PING_PONG:
                return self.ping_pong, theirs, 2
            return self.one_way, theirs if self.rank else None, 1
        if operation == "allreduce":
            return self.nccl.all_reduce, mine + theirs, 1
        both = [theirs, mine] if self.rank else [mine, theirs]
        return self.nccl.all_gather, torch.cat(both), 1

    def verified(
        self, call: Callable[..., None], send: Buffer, receive: Buffer, expected: torch.Tensor | None
    ) -> None:
        receive.data.fill_(POISON)
        self.barrier()
        call(send.data, receive.data)
        torch.cuda.synchronize()
        if expected is not None and not bool((receive.data == expected).all()):
            raise RuntimeError("wrong values have come")
        if not (send.guards_stand() and receive.guards_stand()):
            raise RuntimeError("values beside a buffer have changed")

    def agree(self, runs: int) -> int:
        """Returns the smaller of both ranks' numbers."""
        each = torch.tensor([runs], dtype=torch.int32, device="cuda")
        both = torch.zeros(2, dtype=torch.int32, device="cuda")
        self.nccl.all_gather(each, both)
        torch.cuda.synchronize()
        return int(both.min())


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    rank, gpu, *sizes = (int(each) for each in sys.argv[1:])
    torch.cuda.set_device(gpu)
    nccl = Nccl()
    if rank == 0:
        unique_id = nccl.unique_id()
        say({"id": bytes(unique_id).hex()})
    else:
        unique_id = UniqueId.from_buffer_copy(bytes.fromhex(json.loads(sys.stdin.readline())["id"]))
    begin = time.perf_counter()
    nccl.init(rank, unique_id)
    work = Rank(rank, nccl)
    work.barrier()
    say({"version": nccl.version(), "init_s": time.perf_counter() - begin})
    for operation in ("sendrecv", "allreduce", "allgather"):
        for size in sizes:
            say(work.measure(operation, size))
    nccl.end()
    say({"end": True})


if __name__ == "__main__":
    main()
