"""Copies between GPUs and processes by CUDA IPC handles: libnvlink_transfer for Python.

    from nvlink_transfer_engine import NvlinkTransferEngine

    with NvlinkTransferEngine() as engine:
        result = engine.transfer(None, target, source_handle=handle, source_gpu=0)
        print(result.gb_per_s)

Standard library only. Without the library `engine.backend` says which copy takes its place and
`engine.backend_reason` why.
"""

from ._engine import NvlinkTransferEngine
from ._errors import LibraryNotFound, NvlinkTransferError
from ._future import TransferFuture
from ._library import LibraryStatistics
from ._statistics import Statistics, TransferResult

__all__ = [
    "LibraryNotFound",
    "LibraryStatistics",
    "NvlinkTransferEngine",
    "NvlinkTransferError",
    "Statistics",
    "TransferFuture",
    "TransferResult",
]
