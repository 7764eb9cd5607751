"""A transfer that was asked for, checked and complete: from what a caller passes to C's arguments.

Threads: any thread.
"""

from __future__ import annotations

import operator
import sys
from typing import Any, NamedTuple, Optional

from . import _memory
from ._memory import Memory

MAX_TIMEOUT_S = (2**32 - 1) / 1000


class Request(NamedTuple):
    source: Memory
    target: Memory
    size: int  # bytes
    source_gpu: int
    target_gpu: int
    source_handle: Optional[bytes]
    target_handle: Optional[bytes]
    source_offset: int  # bytes
    target_offset: int
    stream: int  # 0: the legacy default stream

    def arguments(self) -> tuple[Any, ...]:
        """perform_direct_transfer()'s."""
        return (
            self.source_gpu,
            self.source.pointer,
            self.target_gpu,
            self.target.pointer,
            self.size,
            self.source_handle,
            len(self.source_handle or b""),
            self.target_handle,
            len(self.target_handle or b""),
            self.source_offset,
            self.target_offset,
            self.stream or None,
        )

    def follow_target(self) -> None:
        """Puts what torch has queued for a target tensor before the copy; blocks nobody."""
        if self.target.tensor is None:
            return
        cuda = sys.modules["torch"].cuda
        if (self.source_gpu, self.stream) == (self.target_gpu, self.target.stream):
            return
        if self.stream:
            ours = cuda.ExternalStream(self.stream, device=self.source_gpu)
        else:
            ours = cuda.default_stream(self.source_gpu)
        ours.wait_stream(cuda.current_stream(self.target.tensor.device))


def resolve(
    source: Any,
    target: Any,
    size: int | None,
    *,
    source_gpu: int | None,
    target_gpu: int | None,
    source_handle: Any,
    target_handle: Any,
    source_offset: int,
    target_offset: int,
    stream: Any,
) -> Request:
    """TypeError, ValueError: which value makes no sense, and the remedy."""
    handles = (
        _memory.handle_bytes(source_handle, "source_handle"),
        _memory.handle_bytes(target_handle, "target_handle"),
    )
    offsets = _whole(source_offset, "source_offset"), _whole(target_offset, "target_offset")
    given = _memory.stream_number(stream)
    memories = (
        _memory.describe(source, "source", given or 0),
        _memory.describe(target, "target"),
    )
    for side, memory, handle in zip(("source", "target"), memories, handles):
        if handle is None and memory.pointer == 0 and memory.bytes is None:
            raise ValueError(f"{side} is None or address 0: pass its memory, or {side}_handle=")
    if size is None:
        size = _size_of(memories, handles, offsets)
    size = _whole(size, "size")
    for side, memory, handle, offset in zip(("source", "target"), memories, handles, offsets):
        # Behind a handle the offset counts from the allocation, and the library knows its end.
        if handle is None and memory.bytes is not None and offset + size > memory.bytes:
            raise ValueError(
                f"{side}_offset={offset} and size={size} leave the {side}, which has"
                f" {memory.bytes} bytes"
            )
    return Request(
        *memories,
        size,
        _gpu(source_gpu, memories[0], "source"),
        _gpu(target_gpu, memories[1], "target"),
        *handles,
        *offsets,
        memories[0].stream if given is None else given,
    )


def milliseconds(timeout: float | None) -> int:
    """For C, where 0 is never: a moment becomes 1 ms."""
    if timeout is None:
        return 0
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout is {type(timeout).__name__}; pass seconds, or None for none")
    if not 0 < timeout <= MAX_TIMEOUT_S:
        raise ValueError(
            f"timeout={timeout} must be above 0 and at most {MAX_TIMEOUT_S:.0f} seconds; None: none"
        )
    return max(1, round(timeout * 1000))


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {type(value).__name__}; pass a number of bytes")
    number = operator.index(value)
    if not 0 <= number < 1 << 64:
        raise ValueError(f"{name}={number} must be at least 0 and below 2**64 bytes")
    return number


def _size_of(
    memories: tuple[Memory, Memory], handles: tuple[Any, Any], offsets: tuple[int, int]
) -> int:
    """What is behind the offset of the source, or if that does not say its size, of the target."""
    for side, memory, handle, offset in zip(("source", "target"), memories, handles, offsets):
        if memory.bytes is None:
            continue
        if handle is not None:  # the offset tells where in the allocation the object begins
            return memory.bytes
        if offset > memory.bytes:
            raise ValueError(f"{side}_offset={offset} is beyond its {memory.bytes} bytes")
        return memory.bytes - offset
    raise ValueError("neither the source nor the target says its size: pass size= (bytes)")


def _gpu(given: Any, memory: Memory, side: str) -> int:
    if given is None:
        given = memory.gpu
    if given is None:
        raise ValueError(f"the {side} does not say its GPU: pass {side}_gpu= (0 is the first)")
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise TypeError(f"{side}_gpu is {type(given).__name__}; pass an ordinal, 0 is the first")
    number = operator.index(given)
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(f"{side}_gpu={number} is no GPU's ordinal; 0 is the first")
    return number
