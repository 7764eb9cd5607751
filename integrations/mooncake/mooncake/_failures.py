"""What calls answer when they fail: a code, and a line of the logger "mooncake.engine"."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import linkspan

log = logging.getLogger("mooncake.engine")

# Return codes, with the numbers of Mooncake's error.h.
INVALID, TIMED_OUT, NOT_REGISTERED, BUSY, OVERLAPPED = -1, -2, -3, -4, -7


class Failure(Exception):
    """What a call answers with `code` and logs as `text`."""

    def __init__(self, text: str, code: int = INVALID) -> None:
        super().__init__(text)
        self.code = code


def answers(failed: Callable[[], Any] | None = None) -> Callable:
    """Makes a method log a failure and return its code, or failed() where that is no code."""

    def decorate(method: Callable) -> Callable:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except (
                Failure,
                linkspan.Error,
                ValueError,
                OSError,
                ArithmeticError,
                MemoryError,
            ) as error:
                log.error("[%s] %s", method.__name__, error)
                if failed is not None:
                    return failed()
                return error.code if isinstance(error, Failure) else INVALID

        return call

    return decorate
