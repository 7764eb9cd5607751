"""Makes transfers of lists of absolute addresses: one transfer for a batch, however many ranges its
blocks lie in. Blocks are found and grouped by numpy, never one by one.

Threads: any thread.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import linkspan
import numpy as np

from ._failures import NOT_REGISTERED, Failure
from ._ranges import Ranges, Registrations, RemoteRanges
from ._sessions import Sessions

_NAME_BYTES = struct.Struct("!I")  # of a notification, before name and message
_BYTES_A_SECOND = 1e9  # what a deadline allows for beyond the timeout
_GRACE_S = 5.0  # from a deadline until a wait gives up


def numbers(values: Sequence[int], what: str) -> np.ndarray:
    """Returns addresses or lengths as an array of uint64."""
    array = np.asarray(values)
    kind = array.dtype.kind if array.size else "u"
    if array.ndim != 1 or kind not in "iu" or kind == "i" and array.min() < 0:
        raise Failure(
            f"{what}: give a list of whole numbers from 0 to 2^64 - 1, not {values!r:.100}"
        )
    return array.astype(np.uint64)


def same_lengths(**arrays: np.ndarray) -> None:
    if len({len(array) for array in arrays.values()}) > 1:
        counts = ", ".join(f"{len(array)} {name}" for name, array in arrays.items())
        raise Failure(f"{counts}: give as many of each")


def pack(name: str, message: str) -> bytes:
    """Returns the bytes of a notification."""
    as_bytes = name.encode()
    return _NAME_BYTES.pack(len(as_bytes)) + as_bytes + message.encode()


def unpack(notification: bytes) -> tuple[str, str]:
    """Returns name and message. ValueError: these are other bytes."""
    body = notification[_NAME_BYTES.size :]
    if len(notification) < _NAME_BYTES.size or len(body) < int.from_bytes(notification[:4], "big"):
        raise ValueError(f"{len(notification)} bytes are no notification of a TransferEngine")
    (size,) = _NAME_BYTES.unpack_from(notification)
    return body[:size].decode(), body[size:].decode()


class Started(NamedTuple):
    """A transfer that was started."""

    remote: RemoteRanges
    ranges: Ranges  # the peer's, as they were then
    transfer: linkspan.Transfer | None  # None: there were no bytes to move
    limit: float  # its deadline, in seconds

    def wait(self) -> None:
        """Waits until it is done, and raises what it ended with."""
        try:
            if self.transfer is not None:
                self.transfer.wait(self.limit + _GRACE_S)
        except linkspan.Error:
            raise
        except TimeoutError as error:
            raise Failure(
                f"it still runs {_GRACE_S} s after its deadline ({error}): keep its memory until"
                " unregister_memory() returns 0"
            ) from error


class Transfers:
    """Starts transfers between the registered ranges of this process and those of sessions."""

    def __init__(self, registrations: Registrations, sessions: Sessions, timeout: float) -> None:
        self._registrations, self._sessions, self._timeout = registrations, sessions, timeout

    def start(
        self,
        session: str,
        buffers: Sequence[int],
        peers: Sequence[int],
        lengths: Sequence[int],
        writes: bool,
        notification: bytes = b"",
    ) -> Started:
        """Starts one transfer of all blocks; the peer gets the notification after them."""
        here, there = numbers(buffers, "buffers"), numbers(peers, "peer_buffer_addresses")
        sizes = numbers(lengths, "lengths")
        same_lengths(buffers=here, peer_buffer_addresses=there, lengths=sizes)
        if not sizes.all():
            here, there, sizes = (each[sizes != 0] for each in (here, there, sizes))
        remote = self._sessions.get(session)
        if not len(sizes):
            if notification:
                remote.peer.notify(notification)
            return Started(remote, remote.ranges, None, 0.0)
        limit = self._timeout + float(sizes.sum()) / _BYTES_A_SECOND
        options = {"deadline": limit, "notification": notification, "after": None}  # no stream
        submit = remote.peer.write if writes else remote.peer.read
        used = remote.ranges
        try:
            used, parts = self._parts(session, remote, here, there, sizes)
            transfer = submit(parts, **options)
        except (linkspan.UnreachableError, linkspan.NotFoundError):
            if not remote.refresh(used):  # else the peer has registered its memory anew
                raise
            used, parts = self._parts(session, remote, here, there, sizes)
            transfer = submit(parts, **options)
        return Started(remote, used, transfer, limit)

    def local_region(self, address: int, size: int) -> linkspan.Region:
        """Returns the region of this process that has the block. Failure: none has."""
        ranges = self._registrations.ranges
        at, _ = _find(
            "this process", ranges, numbers([address], "address"), numbers([size], "length")
        )
        return self._registrations.region(int(ranges.numbers[at[0]]))

    def _parts(
        self,
        session: str,
        remote: RemoteRanges,
        here: np.ndarray,
        there: np.ndarray,
        sizes: np.ndarray,
    ) -> tuple[Ranges, list[tuple[linkspan.Region, linkspan.RemoteRegion, np.ndarray]]]:
        """Groups the blocks by the two ranges that each lies in. Returns the peer's ranges too."""
        ranges = self._registrations.ranges
        at, offsets = _find("this process", ranges, here, sizes)
        others = remote.ranges
        try:
            at_there, offsets_there = _find(f'session "{session}"', others, there, sizes)
        except Failure:
            if not remote.refresh(others):
                raise
            others = remote.ranges
            at_there, offsets_there = _find(f'session "{session}"', others, there, sizes)
        rows = np.stack((offsets, offsets_there, sizes), axis=1)
        pair_of = at * len(others) + at_there
        if (pair_of == pair_of[0]).all():
            pairs, blocks = pair_of[:1], [rows]
        else:
            order = np.argsort(pair_of, kind="stable")
            pairs, begins = np.unique(pair_of[order], return_index=True)
            blocks = np.split(rows[order], begins[1:])
        local_numbers = ranges.numbers[pairs // len(others)].tolist()
        local = [self._registrations.region(number) for number in local_numbers]
        imported = remote.regions(others.numbers[pairs % len(others)].tolist())
        return others, list(zip(local, imported, blocks))


def _find(
    whose: str, ranges: Ranges, addresses: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns what Ranges.find() does. Failure: a block lies in no range."""
    at, offsets, wrong = ranges.find(addresses, sizes)
    if wrong is None:
        return at, offsets
    begin, size = int(addresses[wrong]), int(sizes[wrong])
    raise Failure(
        f"block {wrong}, [{begin:#x}, {begin + size:#x}), does not lie in one registered range of"
        f" {whose}; {ranges.nearest(begin)}: register_memory() it there",
        NOT_REGISTERED,
    )
