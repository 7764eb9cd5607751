"""Helps programs that use linkspan: connects the processes of a job, and describes slices.

    from linkspan import util

    peers = util.rendezvous(engine, rank, world_size, path="/run/job/link")
    peers[1].write(region, remote, util.packed(region, tensor[:, 4:8]))

All of it is made of the functions of linkspan, and nothing there needs it.
Threads: any thread.
"""

from __future__ import annotations

import math
import os
from typing import Any

from . import _memory
from ._core import Peer, Region, Strides
from ._engine import Engine

__all__ = ["RENDEZVOUS_TAG", "packed", "rendezvous", "tcp_is_configured"]

RENDEZVOUS_TAG = (1 << 64) - 1  # of send() and recv(): the rank that has connected


def tcp_is_configured() -> bool:
    """Returns whether the environment lets TCP leave loopback: it names a secret, or
    LINKSPAN_SECURITY is "insecure". For programs that choose by themselves whether to listen."""
    return os.environ.get("LINKSPAN_SECURITY") == "insecure" or any(
        os.environ.get(name) for name in ("LINKSPAN_SECRET", "LINKSPAN_SECRET_FILE")
    )


def packed(region: Region, memory: Any, *, remote_base: int = 0) -> Strides:
    """Returns the shape that moves a view of registered memory. On the peer's side its elements lie
    one after the other from remote_base on, so a slice of a tensor is sent without a copy.

    memory: a view of what `region` was made of, with at most three levels of gaps.
    ValueError: it leaves the region, or has more levels, or a negative step.
    """
    of = _memory.view(memory)
    levels = of.levels()
    block = of.bytes // math.prod(count for count, _ in levels) if of.bytes else 0
    if len(levels) > 3 or any(step < 0 for _, step in levels):
        raise ValueError(
            f"shape {of.shape} with strides {of.strides} in bytes has {len(levels)} levels of gaps;"
            " at most 3, with steps forward: give a contiguous copy"
        )
    base = of.address - region.address
    reach = base + sum((count - 1) * step for count, step in levels) + block
    if base < 0 or reach > region.bytes:
        raise ValueError(f"the view lies outside {region!r}: give a view of what was registered")
    steps = []
    remote_step = of.bytes
    for count, step in levels:
        remote_step //= count
        steps.append((count, step, remote_step))
    return Strides(block, steps, local_base=base, remote_base=remote_base)


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

    Uses the tag RENDEZVOUS_TAG of send() and recv(). TimedOutError, UnreachableError: a process
    did not connect.
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
    for other in range(rank):  # the higher rank connects
        peer = peers[other] = engine.connect(addresses(other), timeout)
        peer.send(RENDEZVOUS_TAG, rank.to_bytes(8, "little"), deadline=timeout).wait()
    for _ in range(rank + 1, world_size):
        peer = engine.accept(timeout)
        who = bytearray(8)
        peer.recv(RENDEZVOUS_TAG, who, deadline=timeout).wait()
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
    """Listens, and returns a function from a rank to its address."""
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
