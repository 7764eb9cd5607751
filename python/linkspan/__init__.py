"""linkspan moves bytes between memories: GPU and CPU, within a process, between processes.

    import linkspan, torch

    engine = linkspan.Engine("decode")
    kv = engine.register_memory(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
    engine.publish("kv", kv)
    engine.listen("unix:/run/app/decode.sock")

and in another process

    peer = engine.connect("unix:/run/app/decode.sock")
    await peer.write(region, peer.lookup("kv"), linkspan.Pages(4096, mine, theirs))

linkspan.util has helpers. docs/tutorial.md is the tutorial, docs/python.md shows each call.
Importing this initialises no CUDA and needs no GPU.
Threads: every object from any thread. A process that was forked from one with an Engine opens its
own; where GPUs are used it has to be spawned instead.
"""

from __future__ import annotations

import pathlib

from ._core import (
    CapturedTransfer,
    CompletionQueue,
    Descriptor,
    Explanation,
    Future,
    Pages,
    PathRefusal,
    Peer,
    Prepared,
    Region,
    RegionSet,
    RemoteRegion,
    Strides,
    Transfer,
)
from ._core import version as __version__
from ._tool import doctor
from ._engine import Engine, Notification
from ._errors import (
    BusyError,
    CanceledError,
    CorruptError,
    CudaError,
    DisconnectedError,
    Error,
    InternalError,
    InvalidArgumentError,
    NoResourceError,
    NotFoundError,
    PendingError,
    PermissionDeniedError,
    SystemCallError,
    TimedOutError,
    TruncatedError,
    UnreachableError,
    UnsupportedError,
)

__all__ = [
    "BusyError",
    "CanceledError",
    "CapturedTransfer",
    "CompletionQueue",
    "CorruptError",
    "CudaError",
    "Descriptor",
    "DisconnectedError",
    "Engine",
    "Error",
    "Explanation",
    "Future",
    "InternalError",
    "InvalidArgumentError",
    "NoResourceError",
    "NotFoundError",
    "Notification",
    "Pages",
    "PathRefusal",
    "Peer",
    "PendingError",
    "PermissionDeniedError",
    "Prepared",
    "Region",
    "RegionSet",
    "RemoteRegion",
    "Strides",
    "SystemCallError",
    "TimedOutError",
    "Transfer",
    "TruncatedError",
    "UnreachableError",
    "UnsupportedError",
    "__version__",
    "doctor",
    "include_dir",
    "library_path",
]


def include_dir() -> str:
    """The folder for -I: the C and C++ headers, and those for kernels."""
    return str(pathlib.Path(__file__).parent / "include")


def library_path() -> str:
    """The liblinkspan that this package uses, for programs in C that link it."""
    return str(pathlib.Path(__file__).parent / "lib" / "liblinkspan.so.0")
