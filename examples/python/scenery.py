"""What the examples of this folder share: test data, memory, a progress bar, their processes."""

from __future__ import annotations

import multiprocessing.connection
import sys
import time
from typing import Any

import numpy as np

try:
    import torch

    GPUS = torch.cuda.device_count()
except ImportError:
    GPUS = 0
SECONDS = 30.0  # of any single wait


def pattern(size: int, seed: int) -> np.ndarray:
    """Bytes that tell their place: eight of them occur nowhere else, nor with another seed."""
    words = np.arange(size // 8 + 1, dtype=np.uint64) + np.uint64(seed << 40)
    return (words * np.uint64(0x9E3779B97F4A7C15)).view(np.uint8)[:size]


def memory(size: int, gpu: int) -> Any:
    if GPUS:
        return torch.zeros(size, dtype=torch.uint8, device=f"cuda:{gpu % GPUS}")
    return np.zeros(size, np.uint8)


def bar(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r[{'#' * (40 * done // total):40}]", end="\n" * (done == total), file=sys.stderr)


def run(processes: list[Any]) -> int:
    """1 where one fails, or ten minutes are over. Then the others are killed."""
    until = time.monotonic() + 600
    for each in processes:
        each.start()
    left = processes
    while left and not any(each.exitcode for each in processes) and time.monotonic() < until:
        multiprocessing.connection.wait([each.sentinel for each in left], until - time.monotonic())
        left = [each for each in left if each.is_alive()]
    for each in left:
        each.kill()
    return int(any(each.exitcode != 0 for each in processes))
