"""Waiting for transfers and futures in asyncio: one file descriptor and no thread for each loop.

Threads: each loop's Inbox is its own; until_done() in the loop that awaits.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from typing import Any

from ._core import CompletionQueue, Future, Transfer
from ._errors import InvalidArgumentError


class Inbox:
    """The transfers and futures that one loop waits for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = CompletionQueue()
        # By cookie: what is awaited, and the future that is done when it is.
        self._waiting: dict[int, tuple[Transfer | Future, asyncio.Future[None]]] = {}
        self._of: weakref.WeakKeyDictionary[Transfer | Future, asyncio.Future[None]] = (
            weakref.WeakKeyDictionary()
        )
        self._cookies = itertools.count()
        loop.add_reader(self._queue.fileno(), self._read)

    def ended(self, awaited: Transfer | Future) -> asyncio.Future[None]:
        """Returns a future that is done when `awaited` is; all waiting tasks share it."""
        future = self._of.get(awaited)
        if future is None:
            cookie = next(self._cookies)
            try:
                self._queue.add(awaited, cookie)
            except InvalidArgumentError:
                raise RuntimeError(
                    f"{awaited!r} was given to a CompletionQueue or to another event loop, perhaps"
                    " a closed one: call wait()"
                ) from None
            future = self._of[awaited] = asyncio.get_running_loop().create_future()
            self._waiting[cookie] = awaited, future
        return future

    def _read(self) -> None:
        for cookie in self._queue.take():
            awaited, future = self._waiting.pop(cookie)
            del self._of[awaited]
            if not future.done():
                future.set_result(None)


# An open loop keeps its Inbox: it calls _read(). The Inbox keeps the loop by its futures.
_inboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[Inbox]] = (
    weakref.WeakKeyDictionary()
)


async def until_done(awaited: Transfer | Future) -> Any:
    """Implements `await transfer` and `await future`: returns what wait() returns. Canceling the
    task cancels what it awaits and waits until that is done; canceling it again ends that wait too.
    """
    if not awaited.done():
        loop = asyncio.get_running_loop()
        known = _inboxes.get(loop)
        inbox = known() if known is not None else None
        if inbox is None:
            inbox = Inbox(loop)
            _inboxes[loop] = weakref.ref(inbox)
        future = inbox.ended(awaited)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            if not awaited.cancel():
                await asyncio.shield(future)  # other tasks may await it too
            raise
    return awaited.wait(0)
