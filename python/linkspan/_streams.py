"""Converts CUDA streams of torch, CuPy, cuda-python and others to numbers.

Threads: any thread.
"""

from __future__ import annotations

import sys
from typing import Any

_LEGACY = 1  # cudaStreamLegacy; 2 is cudaStreamPerThread


def number_and_gpu(stream: Any, what: str) -> tuple[int, bytes | None]:
    """Returns the cudaStream_t, and the GPU's UUID for streams of torch, else None."""
    if isinstance(getattr(stream, "cuda_stream", None), int):  # torch's 0 is the legacy stream
        return stream.cuda_stream or _LEGACY, _gpu_of(stream)
    if isinstance(getattr(stream, "ptr", None), int):  # CuPy's too
        return stream.ptr or _LEGACY, None
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1]) or _LEGACY, None
    if isinstance(stream, (bool, float)) or not hasattr(stream, "__int__"):
        raise TypeError(
            f"{what} is {type(stream).__name__}: give a stream object of torch, CuPy or"
            ' cuda-python, a cudaStream_t, "current" or None'
        )
    number = int(stream)
    if not 0 < number < 1 << 64:
        raise ValueError(
            f"{what}={number} is no stream: the default ones are 1 (legacy) and 2 (per thread)"
        )
    return number, None


def _gpu_of(stream: Any) -> bytes | None:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(stream, torch.cuda.Stream):
        return None
    uuid = getattr(torch.cuda.get_device_properties(stream.device), "uuid", None)
    return bytes.fromhex(str(uuid).removeprefix("GPU-").replace("-", "")) if uuid else None
