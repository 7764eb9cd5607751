"""The copy in the library's place: torch's, or cuda-python's. Within this process only.

Threads: any thread. A copy is over when copy() returns.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import Any, Optional, Union

from ._errors import FAILED, INVALID_VALUE, OK, LibraryNotFound, failure
from ._memory import Memory
from ._request import Request

_LEGACY_STREAM = 1  # CU_STREAM_LEGACY


class TorchCopy:
    name = "torch"

    def __init__(self) -> None:
        self._torch = importlib.import_module("torch")
        if not self._torch.cuda.is_available():
            raise RuntimeError("torch.cuda.is_available() is False")

    def copy(self, request: Request) -> None:
        for side, memory in (("source", request.source), ("target", request.target)):
            if memory.tensor is None:
                raise LibraryNotFound(
                    f"{side} is no torch tensor, and torch copies only those: pass a tensor, or"
                    " build libnvlink_transfer"
                )
            if memory.gpu != (request.source_gpu if side == "source" else request.target_gpu):
                raise ValueError(f"{side}_gpu is not the tensor's, which is {memory.gpu}")
        source = self._bytes(request.source, request.source_offset, request.size)
        target = self._bytes(request.target, request.target_offset, request.size)
        cuda = self._torch.cuda
        if request.stream:
            stream = cuda.ExternalStream(request.stream, device=request.source_gpu)
        else:
            stream = cuda.default_stream(request.source_gpu)
        try:
            with cuda.stream(stream):
                target.copy_(source, non_blocking=True)
            stream.synchronize()
        except RuntimeError as error:
            raise failure(FAILED, f"torch: {error}") from error

    def _bytes(self, memory: Memory, offset: int, size: int) -> Any:
        # detach: the copy is no part of a gradient, as the library's is none.
        flat = memory.tensor.detach().reshape(-1).view(self._torch.uint8)
        return flat[offset : offset + size]


class CudaPythonCopy:
    name = "cuda-python"

    def __init__(self) -> None:
        try:
            self._driver = importlib.import_module("cuda.bindings.driver")
        except ImportError:
            self._driver = importlib.import_module("cuda.cuda")
        self._call("cuInit", 0)
        if int(self._call("cuDeviceGetCount")) == 0:
            raise RuntimeError("cuda-python sees no GPU")

    def copy(self, request: Request) -> None:
        driver = self._driver
        with contextlib.ExitStack() as stack:
            target = self._context(stack, request.target_gpu)
            source = self._context(stack, request.source_gpu)
            self._call("cuCtxPushCurrent", source)
            stack.callback(self._call, "cuCtxPopCurrent")
            stream = driver.CUstream(request.stream or _LEGACY_STREAM)
            self._call(
                "cuMemcpyPeerAsync",
                self._address(request.target, request.target_offset, request.size),
                target,
                self._address(request.source, request.source_offset, request.size),
                source,
                request.size,
                stream,
            )
            self._call("cuStreamSynchronize", stream)

    def _context(self, stack: contextlib.ExitStack, gpu: int) -> Any:
        device = self._call("cuDeviceGet", gpu)
        context = self._call("cuDevicePrimaryCtxRetain", device)
        stack.callback(self._call, "cuDevicePrimaryCtxRelease", device)
        return context

    def _address(self, memory: Memory, offset: int, size: int) -> Any:
        base, length = self._call("cuMemGetAddressRange", self._driver.CUdeviceptr(memory.pointer))
        at = memory.pointer - int(base) + offset
        if at + size > int(length):
            raise failure(
                INVALID_VALUE,
                f"{size} bytes from byte {at} leave the allocation of {int(length)} bytes at"
                f" {int(base):#x}",
            )
        return self._driver.CUdeviceptr(memory.pointer + offset)

    def _call(self, function: str, *arguments: Any) -> Any:
        error, *results = getattr(self._driver, function)(*arguments)
        if int(error) != OK:
            name = getattr(error, "name", "")
            raise failure(int(error), f"{function}() of cuda-python failed: {name}", name)
        return results[0] if len(results) == 1 else results


Fallback = Union[TorchCopy, CudaPythonCopy]


def find() -> tuple[Optional[Fallback], str]:
    """The copy that is possible, and why those before it are not."""
    reasons: list[str] = []
    for kind in (TorchCopy, CudaPythonCopy):
        try:
            return kind(), "; ".join(reasons)
        except Exception as error:  # noqa: BLE001 - a foreign package in any state
            reasons.append(f"{kind.name}: {error}")
    return None, "; ".join(reasons)
