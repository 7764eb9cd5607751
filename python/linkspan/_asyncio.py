"""Waiting for transfers in asyncio: one file descriptor and no thread for each loop.

Threads: each loop's Inbox is its own; until_quiet() in the loop that awaits.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref

from ._core import CompletionQueue, Transfer
from ._errors import InvalidArgumentError


class Inbox:
    """The transfers that one loop waits for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = CompletionQueue()
        self._waiting: dict[int, asyncio.Future[None]] = {}  # by cookie
        self._of: weakref.WeakKeyDictionary[Transfer, asyncio.Future[None]] = (
            weakref.WeakKeyDictionary()
        )
        self._cookies = itertools.count()
        loop.add_reader(self._queue.fileno(), self._read)

    def ended(self, transfer: Transfer) -> asyncio.Future[None]:
        """Returns a future that is done when the transfer is quiet; all waiting tasks share it."""
        future = self._of.get(transfer)
        if future is None:
            cookie = next(self._cookies)
            try:
                self._queue.add(transfer, cookie)
            except InvalidArgumentError:
                raise RuntimeError(f"{transfer!r} is awaited in another event loop") from None
            future = self._of[transfer] = asyncio.get_running_loop().create_future()
            self._waiting[cookie] = future
        return future

    def _read(self) -> None:
        for cookie in self._queue.take():
            future = self._waiting.pop(cookie)
            if not future.done():
                future.set_result(None)


_inboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Inbox] = (
    weakref.WeakKeyDictionary()
)


async def until_quiet(transfer: Transfer) -> None:
    """Implements `await transfer`: returns when the transfer is quiet. Canceling the task cancels
    the transfer and waits until it is quiet; canceling it again ends that wait too.
    """
    if not transfer.done():
        loop = asyncio.get_running_loop()
        inbox = _inboxes.get(loop)
        if inbox is None:
            inbox = _inboxes[loop] = Inbox(loop)
        future = inbox.ended(transfer)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            if not transfer.cancel():
                await future
            raise
    transfer.wait(0)
