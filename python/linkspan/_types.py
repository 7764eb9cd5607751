"""What annotations are made of.

A Shape says which bytes of two regions: Pages, Strides, rows of (local offset, remote offset,
bytes) as a list or an array of int64 or uint64 with three columns.
"""

from __future__ import annotations

from typing import Any, Literal, Sequence, TypedDict, Union

from ._core import Pages, Strides

Block = tuple[int, int, int]
Shape = Union[Pages, Strides, Sequence[Block], Any]
IndexArray = Any  # a list, an array or a tensor of whole numbers
Memory = Any  # see Engine.register_memory()
Stream = Any  # torch's, CuPy's, cuda-python's, or a cudaStream_t


class CaptureOptions(TypedDict, total=False):
    """Of Prepared.capture()."""

    notification: bytes | None
    """Delivered to the peer after the data of each launch, in Engine.notifications()."""
    copy_ctas: int | None
    """As of TransferOptions."""


class TransferOptions(TypedDict, total=False):
    """Of write, read, post, send, recv and write_to_all."""

    deadline: float | None
    """Seconds from the submission on; what is not complete by then is canceled and ends timed_out.
    None: the Engine's, 30."""
    notification: bytes | None
    """Delivered to the peer after the data, in Engine.notifications()."""
    after: Stream | Literal["current"] | None
    """The stream to run after. "current", the default: torch's current stream of the GPU that the
    local memory is on, if torch works with CUDA here, else none. Local regions on several GPUs need
    a stream or None."""
    release: Stream | Literal["current"] | None
    """The stream that goes on when it is complete: what is queued there later sees the bytes, or
    may write the source again."""
    require: str | None
    """A prefix of Explanation.path that must hold, or with "!" one that must not; else it is
    refused as unsupported."""
    low_latency: bool
    """Of a single block of some KiB: a kernel that stays on an SM for up to a millisecond."""
    copy_ctas: int | None
    """CTAs that a kernel may take for it; 0: copy engines only."""
    checksum: bool
    """CRC32C of what goes over TCP, from memory to memory; what differs raises CorruptError, and
    the bytes at the destination are not to be used. Refused as unsupported on other ways, and of
    send and recv."""
    failover: bool
    """True, the default: goes on over the next transport, such as TCP, with what is left if the
    transport that carries it fails while the peer lives. False, or `require` is set: it raises
    UnreachableError."""
