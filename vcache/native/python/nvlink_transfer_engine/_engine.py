"""The engine: what users of the package call."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Any, Optional, Union

from . import _fallback, _future, _library
from ._errors import TIMED_OUT, LibraryNotFound, NvlinkTransferError, failure
from ._future import TransferFuture
from ._request import Request, milliseconds, resolve
from ._statistics import Recorder, Statistics, TransferResult

_GRACE_S = 10.0  # what a transfer with a timeout may take to end once that is over


class NvlinkTransferEngine:
    """Copies GPU memory of this process and, by CUDA IPC handles, of others.

    library: the file to load. None: NVLINK_TRANSFER_LIBRARY names it, or it is searched for in the
    package's folder, in the build folders native/build, vcache/native/build and out/release of the
    repository and of the current folder, and in the loader's path. LibraryNotFound: one that was
    named does not load. When none is found the engine exists all the same, see `backend`.

    Threads: any thread, and calls go on beside each other: the interpreter's lock is free while
    bytes move. Processes: start them by spawn; in one that was forked from a user of CUDA every
    transfer is an NvlinkTransferError that says so.
    """

    def __init__(self, library: Union[str, os.PathLike[str], None] = None) -> None:
        self._recorder = Recorder()
        self._closed = False
        self._fallback: Optional[_fallback.Fallback] = None
        self._library, found = _library.find(library)
        if self._library is not None:
            self._backend, self._reason = "native", found
            return
        self._fallback, missing = _fallback.find()
        self._backend = self._fallback.name if self._fallback else "none"
        then = (
            f"{self._backend} copies within this process instead, without timeouts"
            if self._fallback
            else "nothing else here can copy"
        )
        self._reason = (
            f"libnvlink_transfer was not found; {then}{' (' + missing + ')' if missing else ''}."
            f" Build it (cmake, in vcache/native/build) or set {_library.VARIABLE}. Tried: {found}"
        )

    @property
    def backend(self) -> str:
        """What copies: "native" (the library), "torch", "cuda-python" or "none"."""
        return self._backend

    @property
    def backend_reason(self) -> str:
        """Which library was found and how; or why none, everything tried, and the remedy."""
        return self._reason

    @property
    def library_path(self) -> Optional[str]:
        """None without the library."""
        return self._library.path if self._library else None

    @property
    def library_version(self) -> Optional[str]:
        """ "0.1.0"; None without the library."""
        return self._library.version if self._library else None

    def transfer(
        self,
        source: Any,
        target: Any,
        size: Optional[int] = None,
        *,
        source_gpu: Optional[int] = None,
        target_gpu: Optional[int] = None,
        source_handle: Any = None,
        target_handle: Any = None,
        source_offset: int = 0,
        target_offset: int = 0,
        stream: Any = None,
        timeout: Optional[float] = None,
    ) -> TransferResult:
        """Copies `size` bytes and returns when they are in place.

        source, target: an address of GPU memory of this process (int), a contiguous torch tensor,
        an object with __cuda_array_interface__, an object with __dlpack__ or its capsule (which is
        consumed), or None when that side has a handle.
        size: bytes. None: what the source has behind its offset, beside a handle all that it has;
        if that does not say its size, what the target has.
        source_gpu, target_gpu: CUDA ordinals. None: the object's; address and handle have none.
        source_handle, target_handle: the CUDA IPC handle of an allocation of another process, bytes
        or an object with .reserved. The bytes begin ..._offset behind the start of the allocation;
        the object, if there is one too, is where memory of this very process lies.
        source_offset, target_offset: bytes.
        stream: a stream of the source's GPU, as an int or an object of torch, CuPy or cuda-python,
        whose work comes before the copy. None: the one that the source names (torch's current one,
        `stream` of __cuda_array_interface__), otherwise the legacy default stream. What torch has
        queued for a target tensor comes before the copy too; for other objects the caller waits for
        what still uses the target.
        timeout: seconds after which it ends as error 909; None: never. Not applied without the
        library.

        How another process exports a handle:
        cuda-python: driver.cuIpcGetMemHandle(address)[1].reserved, of memory of cuMemAlloc; the
        handle means the whole allocation, so send the address's distance from its start too.
        torch: shared = tensor.untyped_storage()._share_cuda_(); the handle is shared[1][-64:], and
        the offset shared[3] + tensor.storage_offset() * tensor.element_size(). Not with expandable
        segments. The exporter keeps the memory until the transfer is over.

        TypeError, ValueError: an argument that makes no sense. NvlinkTransferError: it failed.
        LibraryNotFound: nothing here can do this copy.
        """
        self._check_open()
        timeout_ms = milliseconds(timeout)
        request = resolve(
            source,
            target,
            size,
            source_gpu=source_gpu,
            target_gpu=target_gpu,
            source_handle=source_handle,
            target_handle=target_handle,
            source_offset=source_offset,
            target_offset=target_offset,
            stream=stream,
        )
        if self._library is not None and timeout is None:
            return self._wait_in_library(self._library, request)
        future = self._begin(request, timeout_ms)
        if timeout is None:
            return future.result()
        try:
            return future.result(timeout + _GRACE_S)
        except TimeoutError:
            raise failure(
                TIMED_OUT,
                f"the transfer still runs {_GRACE_S:g} seconds after its timeout of {timeout}"
                " seconds; its memory is kept until it is over",
            ) from None

    def transfer_async(
        self,
        source: Any,
        target: Any,
        size: Optional[int] = None,
        *,
        source_gpu: Optional[int] = None,
        target_gpu: Optional[int] = None,
        source_handle: Any = None,
        target_handle: Any = None,
        source_offset: int = 0,
        target_offset: int = 0,
        stream: Any = None,
        timeout: Optional[float] = None,
    ) -> TransferFuture:
        """Begins what transfer() does, with the same arguments and errors, and does not wait.

        It follows what is in `stream` now. The objects, and with them their memory, are kept until
        it is over; an address's memory is the caller's to keep. Arguments that make no sense and
        handles that do not open are raised here. Without the library the copy is made at once, and
        the future is over when this returns.
        """
        self._check_open()
        timeout_ms = milliseconds(timeout)
        request = resolve(
            source,
            target,
            size,
            source_gpu=source_gpu,
            target_gpu=target_gpu,
            source_handle=source_handle,
            target_handle=target_handle,
            source_offset=source_offset,
            target_offset=target_offset,
            stream=stream,
        )
        return self._begin(request, timeout_ms)

    def set_handle_cache(self, count: int) -> None:
        """Keeps up to `count` opened handles open, 0 to 65536; 0, the beginning: none.

        Of the whole process, not of this engine. A kept handle keeps its exporter's memory from
        being freed. Lowering it waits for what is in flight on those GPUs.
        """
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"count is {type(count).__name__}; pass a number of handles")
        if not 0 <= count <= _library.MAX_HANDLES:
            raise ValueError(f"count={count} must be from 0 to {_library.MAX_HANDLES}")
        self._check_open()
        if self._library is None:
            raise LibraryNotFound(f"only the library keeps handles. {self._reason}")
        self._library.set_handle_cache(count)

    def statistics(self) -> Statistics:
        """Of this engine's transfers that are known to be over, and the library's own counts."""
        return self._recorder.statistics(self._library.statistics() if self._library else None)

    def close(self, timeout: float = 10.0) -> None:
        """Cancels what transfer_async() began and waits, at most `timeout` seconds, until nothing
        touches its memory any more. Idempotent; transfer() in other threads ends by itself.

        NvlinkTransferError 909: some still run; their memory is kept. close() again waits again.
        """
        self._closed = True
        left = _future.end(self._recorder, timeout)
        if left:
            raise failure(
                TIMED_OUT,
                f"{left} transfers still run {timeout} seconds after they were canceled; their"
                " memory is kept until they are over",
            )

    def __enter__(self) -> NvlinkTransferEngine:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the engine is closed: make another")

    def _wait_in_library(self, library: _library.Library, request: Request) -> TransferResult:
        began = time.perf_counter()
        request.follow_target()
        try:
            library.transfer(request.arguments())
        except NvlinkTransferError:
            self._recorder.failed([None])
            raise
        result = TransferResult(request.size, time.perf_counter() - began, self._backend)
        self._recorder.succeeded(result, [None])
        return result

    def _begin(self, request: Request, timeout_ms: int) -> TransferFuture:
        future = TransferFuture(request.size, self._recorder, self._backend, time.perf_counter())
        request.follow_target()
        if self._library is None:
            return self._copy_instead(request, future)
        if request.size == 0:  # as perform_direct_transfer() has it, whatever the rest
            _future.finish(future, None)
            return future
        try:
            _future.start(future, self._library, request, timeout_ms)
        except NvlinkTransferError:
            self._recorder.failed([None])
            raise
        if self._closed:  # meanwhile, by a thread that may not have seen this one
            future.cancel()
            future.wait(_GRACE_S)
            self._check_open()
        return future

    def _copy_instead(self, request: Request, future: TransferFuture) -> TransferFuture:
        if self._fallback is None:
            raise LibraryNotFound(self._reason)
        if request.source_handle or request.target_handle:
            raise LibraryNotFound(
                f"a handle needs the library: {self._backend} copies within this process only."
                f" {self._reason}"
            )
        try:
            if request.size:
                self._fallback.copy(request)
            _future.finish(future, None)
        except NvlinkTransferError as error:
            _future.finish(future, error)
        return future
