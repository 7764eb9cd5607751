"""Memory of a process, and data in it that differs at every position and between seeds.

GPU and pinned memory are torch's, with a cudaMalloc for each (run.py switches its cache off), so a
peer that exports whole allocations finds them at their start.
"""

from __future__ import annotations

import dataclasses
import mmap
from typing import Any

import numpy
from rows import Row

POISON = 0xA5
LEAST_GPU_BYTES = 2 << 20  # what cudaMalloc gives anyway


@dataclasses.dataclass
class Memory:
    kind: str
    bytes: int
    array: Any  # uint8, of torch on a GPU, else of numpy
    address: int
    gpu: int  # -1: memory of the CPU
    owner: Any = None


def of_array(kind: str, array: numpy.ndarray, owner: Any = None) -> Memory:
    return Memory(kind, array.nbytes, array, array.ctypes.data, -1, owner)


def allocate(kind: str, size: int, gpu: int) -> Memory:
    if kind == "gpu":
        import torch

        whole = torch.empty(max(size, LEAST_GPU_BYTES), dtype=torch.uint8, device=f"cuda:{gpu}")
        return Memory(kind, size, whole[:size], whole.data_ptr(), gpu, whole)
    if kind == "pinned":
        import torch

        whole = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return of_array(kind, whole.numpy(), whole)
    if kind == "shared":
        return of_array(kind, numpy.frombuffer(mmap.mmap(-1, size), numpy.uint8))
    return of_array(kind, numpy.zeros(size, numpy.uint8))


def fill(memory: Memory, seed: int) -> None:
    memory.array[:] = pattern(memory, seed)
    synchronize(memory)


def poison(memory: Memory) -> None:
    memory.array[:] = POISON
    synchronize(memory)


def synchronize(memory: Memory) -> None:
    if memory.gpu >= 0:
        import torch

        torch.cuda.synchronize(memory.gpu)


def pattern(like: Memory, seed: int) -> Any:
    """Returns the bytes of a source region of this size: the same of numpy and of torch."""
    words, odd, start = (like.bytes + 7) // 8, 0x1E3779B97F4A7C15, (seed + 1) * 0x2545F4914F6CDD1D
    start = (start & (1 << 63) - 1) - (1 << 62)
    if like.gpu >= 0:
        import torch

        values = torch.arange(words, dtype=torch.int64, device=like.array.device)
    else:
        values = numpy.arange(words, dtype=numpy.int64)
    with numpy.errstate(over="ignore"):
        values += start
        values *= odd
        values ^= values >> 29
    bytes_ = values.view(torch.uint8) if like.gpu >= 0 else values.view(numpy.uint8)
    return bytes_[: like.bytes]


def wrong_bytes(row: Row, targets: list[Memory], seed: int, written: bool) -> int:
    """Counts the bytes of the target's memory that are not what the row puts there, gaps included.

    written: the initiator wrote to them; else it read, and they are the initiator's.
    """
    wrong = 0
    for region, (memory, (mine, theirs)) in enumerate(zip(targets, row.indices())):
        source = pattern(memory, seed + region)
        if row.pages:
            to, from_ = (theirs, mine) if written else (mine, theirs)
            expected = source.clone() if memory.gpu >= 0 else source.copy()
            expected[:] = POISON
            expected.reshape(-1, row.bytes)[to] = source.reshape(-1, row.bytes)[from_]
        else:
            expected = source
        wrong += int((memory.array != expected).sum())
    return wrong
