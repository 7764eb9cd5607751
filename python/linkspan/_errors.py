"""One exception for each code of the library.

Threads: any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._core import Transfer


class Error(Exception):
    """What a call or a transfer ended with.

    code: "timed_out" and so on. scope: the largest thing that can no longer be used, "request",
    "peer", "transport" or "process". peer: Peer.id, or None. transfer: which one, or None.
    """

    code = "internal"

    def __init__(
        self,
        text: str,
        scope: str = "request",
        peer: int | None = None,
        transfer: Transfer | None = None,
    ) -> None:
        super().__init__(text)
        self.scope, self.peer, self.transfer = scope, peer, transfer

    def __str__(self) -> str:
        of = [f"peer {self.peer}"] if self.peer is not None else []
        of += [f"transfer {self.transfer.id}"] if self.transfer is not None else []
        return f"{self.args[0]} ({', '.join(of)})" if of else str(self.args[0])

    def __reduce__(self) -> tuple:  # a Transfer stays in its process
        return type(self), (self.args[0], self.scope, self.peer)


class InvalidArgumentError(Error, ValueError):
    code = "invalid_argument"


class UnsupportedError(Error):
    code = "unsupported"


class NoResourceError(Error):
    """Nothing was started; try again when something has ended."""

    code = "no_resource"


class BusyError(Error):
    code = "busy"


class PendingError(Error):
    """It goes on: what it uses must live on. Call again."""

    code = "pending"


class TimedOutError(Error, TimeoutError):
    """Reports that a deadline or a time-out has passed. Transfer.wait() raises it for the deadline
    of the transfer, and the built-in TimeoutError for its own time-out."""

    code = "timed_out"


class CanceledError(Error):
    code = "canceled"


class NotFoundError(Error, LookupError):
    code = "not_found"


class PermissionDeniedError(Error, PermissionError):
    code = "permission_denied"


class TruncatedError(Error):
    code = "truncated"


class UnreachableError(Error, ConnectionError):
    code = "unreachable"


class DisconnectedError(Error, ConnectionError):
    code = "disconnected"


class CorruptError(Error):
    code = "corrupt"


class CudaError(Error):
    code = "cuda"


class SystemCallError(Error, OSError):
    code = "system"


class InternalError(Error):
    code = "internal"


_BY_CODE = {each.code: each for each in Error.__subclasses__()}


def of(
    code: str, scope: str, text: str, peer: int | None, transfer: Transfer | None
) -> Error:
    return _BY_CODE[code](text, scope, peer, transfer)
