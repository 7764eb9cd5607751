"""Connects all processes of a job with each other."""

from __future__ import annotations

import os
from typing import Any

from ._core import Peer
from ._engine import Engine

TAG = (1 << 64) - 1  # of send() and recv(): the rank that has connected


def rendezvous(
    engine: Engine,
    rank: int | None = None,
    world_size: int | None = None,
    *,
    group: Any = None,
    store: Any = None,
    path: str | bytes | os.PathLike | None = None,
    key: str = "linkspan",
    timeout: float = 60.0,
) -> list[Peer | None]:
    """Connects to all processes of the job and returns the peers by rank, None for this process.
    Each process calls it once, with an Engine that no other peer connects to meanwhile.

    Give one of these to exchange the addresses:
    group: a process group of torch.distributed, which also knows rank and world_size;
    store: a store of torch.distributed (TCPStore, FileStore ...), used below `key`;
    path: the prefix of Unix sockets PATH.0, PATH.1 ... in a folder that all processes see.

    Uses the tag linkspan.RENDEZVOUS_TAG of send() and recv(). TimedOutError, UnreachableError:
    a process did not connect.
    """
    if sum(way is not None for way in (group, store, path)) != 1:
        raise ValueError("give one of group, store and path")
    if group is not None:
        import torch.distributed as dist

        rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if rank is None or world_size is None or not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} of world_size={world_size}: give 0 <= rank < world_size")
    addresses = _exchange(engine, rank, world_size, group, store, path, key)
    peers: list[Peer | None] = [None] * world_size
    for other in range(rank):  # who comes later connects
        peer = peers[other] = engine.connect(addresses(other), timeout)
        peer.send(TAG, rank.to_bytes(8, "little"), deadline=timeout).wait()
    for _ in range(rank + 1, world_size):
        peer = engine.accept(timeout)
        who = bytearray(8)
        peer.recv(TAG, who, deadline=timeout).wait()
        peers[int.from_bytes(who, "little")] = peer
    return peers


def _exchange(
    engine: Engine,
    rank: int,
    world_size: int,
    group: Any,
    store: Any,
    path: str | bytes | os.PathLike | None,
    key: str,
) -> Any:
    """Listens; a function from a rank to its address."""
    if path is not None:
        base = os.fsdecode(path)
        engine.listen(f"unix:{base}.{rank}")
        return lambda other: f"unix:{base}.{other}"
    if not engine.address:
        engine.listen()
    if group is not None:
        import torch.distributed as dist

        addresses: list[str] = [""] * world_size
        dist.all_gather_object(addresses, engine.address, group)
        return addresses.__getitem__
    store.set(f"{key}/{rank}", engine.address)
    return lambda other: _text(store.get(f"{key}/{other}"))


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()
