"""A transfer that goes on while its caller does something else.

All that run are kept in this module until they are over, and with them the memory that they copy,
whether anybody still holds the future or the engine.

After each call in here a signal's handler may run, which may raise, or use the same future.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import itertools
import os
import threading
import time
from collections import deque
from typing import Any, Generator, Optional

from ._errors import CANCELED, NOT_READY, OK, TIMED_OUT, NvlinkTransferError
from ._library import Library, claim_process
from ._request import Request
from ._statistics import Recorder, TransferResult

_PIECE_S = 0.05  # of a wait in C: how late another thread learns what this one does not yet know
_FIRST_POLL_S, _LAST_POLL_S = 0.0001, 0.005
_SWEPT = 8  # futures looked at when another begins
_EXIT_S = 5.0

_ENDS = {OK: "done", CANCELED: "canceled", TIMED_OUT: "timed out"}


class TransferFuture:
    """Made by transfer_async(). Can be awaited in asyncio; canceling the task cancels the transfer.

    Threads: any thread. In a process forked from the one that began it, nothing of it works.
    """

    def __init__(self, size: int, recorder: Recorder, backend: str, began: float) -> None:
        """began: time.perf_counter() then."""
        self._size, self._recorder, self._backend, self._began = size, recorder, backend, began
        self._library: Optional[Library] = None
        self._number = ctypes.c_uint64()  # 0: not begun
        self._keep: Any = None
        self._progress = ctypes.c_uint64()
        self._answer: deque[Any] = deque((NOT_READY, b""), 2)  # the library's last code and text
        self._result: Optional[TransferResult] = None
        self._error: Optional[BaseException] = None
        self._once: list[None] = [None]  # empty: it is counted
        self._over = False
        # Held by whoever asks the library, which forgets the number when it says how it ended.
        self._asking = threading.RLock()

    def status(self) -> str:
        """ "running", "done", "failed", "canceled" or "timed out". Does not block."""
        if not self._poll():
            return "running"
        if not isinstance(self._error, NvlinkTransferError):
            return "failed" if self._error else "done"
        return _ENDS.get(self._error.code, "failed")

    def done(self) -> bool:
        """Whether it is over, however it ended: nothing touches the memory any more."""
        return self._poll()

    def progress(self) -> int:
        """Bytes that are in place, as last heard of; all of them once it is done."""
        self._poll()
        return self._progress.value

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Until it is over, at most `timeout` seconds (None: without end). Whether it is over.

        Threads: others go on meanwhile, and may wait for the same."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._over:
            left = _PIECE_S if until is None else min(_PIECE_S, until - time.monotonic())
            if left <= 0:
                return self._poll()
            self._ask(left)
        return True

    def result(self, timeout: Optional[float] = None) -> TransferResult:
        """Of wait(timeout). TimeoutError: it still runs. NvlinkTransferError: how it failed."""
        if not self.wait(timeout):
            raise TimeoutError(
                f"the transfer of {self._size} bytes still runs after {timeout} seconds;"
                " cancel() ends it"
            )
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def cancel(self) -> bool:
        """Asks it to end early; False: it is over. It runs until status() or wait() says so."""
        if self._poll():
            return False
        assert self._library is not None
        claim_process()
        return self._library.cancel(self._number.value) == OK

    def __await__(self) -> Generator[Any, None, TransferResult]:
        loop = asyncio.get_running_loop()
        over = loop.create_future()

        def look(delay: float) -> None:
            if over.done():
                return
            if self._poll():
                over.set_result(None)
            else:
                loop.call_later(delay, look, min(2 * delay, _LAST_POLL_S))

        look(_FIRST_POLL_S)
        try:
            yield from over
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self.result(0)

    def _poll(self) -> bool:
        if not self._over:
            self._ask(0)
        return self._over

    def _ask(self, wait_s: float) -> None:
        """Asks the library, unless another thread does so just now and for longer than wait_s."""
        claim_process()
        held: list[bool] = []
        try:
            # Stored by the call itself, so that a handler that raises after it leaves no lock held.
            held.extend(map(self._asking.acquire, (wait_s > 0,), (wait_s or -1,)))
            if True in held:
                self._ask_alone(wait_s)
        finally:
            if True in held:
                self._asking.release()

    def _ask_alone(self, wait_s: float) -> None:
        library, number = self._library, self._number.value
        if library is None or not number:
            return
        if wait_s and self._runs():
            library.wait(number, max(1, int(wait_s * 1000)), self._answer)
        if self._runs():
            library.test(number, self._progress, self._answer)
        code, text = self._answer
        if not self._over and code != NOT_READY:
            self._end(None if code == OK else library.error(code, text))

    def _runs(self) -> bool:
        """False also if a call that was interrupted has left the end in _answer."""
        return not self._over and self._answer[0] == NOT_READY

    def _end(self, error: Optional[BaseException]) -> None:
        """Changes nothing if it is over, also when a handler has ended it meanwhile."""
        result = None
        if error is None:
            self._progress.value = self._size
            seconds = time.perf_counter() - self._began
            result = TransferResult(self._size, seconds, self._backend)
            self._recorder.succeeded(result, self._once)
        else:
            self._recorder.failed(self._once)
        kept = self._keep  # ends with this function: what it frees may run code of others
        if not self._over:  # no call from here on
            self._result, self._error, self._keep, self._over = result, error, None, True
        del kept


# ---- all that run ---------------------------------------------------------------------------
_lock = threading.RLock()
_running: dict[TransferFuture, None] = {}  # in the order in which they are looked at


def start(future: TransferFuture, library: Library, request: Request, timeout_ms: int) -> None:
    """Begins it. Keeps `request`, which holds its memory, from before that until it is over."""
    future._library, future._keep = library, request
    try:
        with _lock:
            _running[future] = None
        library.begin(request.arguments(), timeout_ms, future._number)
    except BaseException:  # also a handler's, and then it may have begun
        if not future._number.value:
            _running.pop(future, None)
        raise
    with _lock:
        oldest = list(itertools.islice(_running, _SWEPT))
    # Those whose futures nobody asks any more are over too at some time. Not under the lock: what
    # they kept may end here, in code of others.
    for other in oldest:
        done = other.done()
        with _lock:
            if other in _running:
                del _running[other]
                if not done:
                    _running[other] = None


def finish(future: TransferFuture, error: Optional[BaseException]) -> None:
    """One that was never in the library."""
    future._end(error)


def end(recorder: Optional[Recorder], timeout: float) -> int:
    """Cancels all of an engine, None: of all engines, and waits. How many still run after that."""
    with _lock:
        known = list(_running)
    # One that is only about to begin sees by itself that its engine was closed.
    mine = [f for f in known if f._number.value and recorder in (None, f._recorder)]
    for future in mine:
        future.cancel()
    until = time.monotonic() + timeout
    left = 0
    for future in mine:
        if future.wait(max(0.0, until - time.monotonic())):
            with _lock:
                _running.pop(future, None)
        else:
            left += 1
    return left


def _forget_all() -> None:
    """In a forked child, where nothing of them works."""
    global _lock
    _lock = threading.RLock()
    _running.clear()


atexit.register(end, None, _EXIT_S)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
