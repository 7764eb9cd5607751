"""Messages in order, under the names of the programs that linkspan follows.

    ipc.send_ipc(engine, peer.id, tensor)      # the peer's process: ipc.recv_ipc(engine, ...)

Moves a message as Peer.send() and recv() do, without a tag: the n-th send_ipc of a connection matches
its n-th recv_ipc, whichever comes first. `conn_id` is Peer.id, the memory need not be registered, and
a deadline is in seconds (None: the Engine's). The steps are logged at INFO.
NotFoundError: there is no such connection. TruncatedError, on both sides, and nothing is written: the
receiver has less room.
Threads: any thread.
"""

from __future__ import annotations

from typing import Any

from .. import _memory
from .._core import Transfer
from .._engine import Engine


def send_ipc(
    engine: Engine, conn_id: int, memory: Any, *, deadline: float | None = None
) -> None:
    """Sends `memory`, and returns when it is in the receiver's."""
    send_ipc_async(engine, conn_id, memory, deadline=deadline).wait()


def recv_ipc(
    engine: Engine, conn_id: int, memory: Any, *, deadline: float | None = None
) -> int:
    """Receives into `memory`; returns how many bytes came."""
    transfer = recv_ipc_async(engine, conn_id, memory, deadline=deadline)
    transfer.wait()
    return transfer.bytes


def send_ipc_async(
    engine: Engine, conn_id: int, memory: Any, *, deadline: float | None = None
) -> Transfer:
    """Begins the same and returns at once."""
    address, size, _, _, owner = _memory.whole(memory, False)
    return engine._send_ipc(conn_id, address, size, deadline, owner)


def recv_ipc_async(
    engine: Engine, conn_id: int, memory: Any, *, deadline: float | None = None
) -> Transfer:
    """Begins the same and returns at once; Transfer.bytes tells how many came."""
    address, size, _, _, owner = _memory.whole(memory, True)
    return engine._recv_ipc(conn_id, address, size, deadline, owner)
