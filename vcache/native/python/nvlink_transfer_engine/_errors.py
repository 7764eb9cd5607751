"""What the engine raises beside TypeError, ValueError and TimeoutError."""

from __future__ import annotations

OK = 0
INVALID_VALUE = 1
NOT_INITIALIZED = 3
NOT_READY = 600
TIMED_OUT = 909
FAILED = 999
CANCELED = 20001

# As linkspan/nvlink_transfer.h has them: the same with a driver and without.
_NAMES = {
    INVALID_VALUE: "NVLINK_TRANSFER_INVALID_VALUE",
    NOT_INITIALIZED: "CUDA_ERROR_NOT_INITIALIZED",
    17: "NVLINK_TRANSFER_INVALID_DEVICE_POINTER",
    35: "NVLINK_TRANSFER_NO_DRIVER",
    100: "NVLINK_TRANSFER_NO_DEVICE",
    101: "NVLINK_TRANSFER_INVALID_DEVICE",
    400: "NVLINK_TRANSFER_INVALID_STREAM",
    NOT_READY: "NVLINK_TRANSFER_NOT_READY",
    900: "NVLINK_TRANSFER_CAPTURING",
    TIMED_OUT: "NVLINK_TRANSFER_TIMED_OUT",
    FAILED: "NVLINK_TRANSFER_FAILED",
    CANCELED: "NVLINK_TRANSFER_CANCELED",
}


class NvlinkTransferError(RuntimeError):
    """A transfer, or another call of the library, failed.

    code: CUDA's number of it (cudaError_t), or one of linkspan/nvlink_transfer.h.
    name: the number's name, "NVLINK_TRANSFER_INVALID_DEVICE" or, of one that only the driver has,
    "CUDA_ERROR_ILLEGAL_ADDRESS".
    text: which step failed, on what, and the remedy.
    """

    def __init__(self, code: int, name: str, text: str) -> None:
        super().__init__(code, name, text)  # the arguments: errors cross processes pickled
        self.code, self.name, self.text = code, name, text

    def __str__(self) -> str:
        return f"{self.name} ({self.code}): {self.text}"


def failure(code: int, text: str, driver_name: str = "") -> NvlinkTransferError:
    name = _NAMES.get(code, driver_name if driver_name.isidentifier() else f"CUDA error {code}")
    return NvlinkTransferError(code, name, text)


class LibraryNotFound(RuntimeError):
    """No libnvlink_transfer that works, and nothing here to take its place; what was tried."""
