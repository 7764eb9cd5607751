"""Finds registered memory by absolute address, of this process and of a peer.

Each registered range is published under a name of its own, and an index of all ranges as the set
INDEX: a header, then a row of (address, bytes, number) for each range in order of registration. A
peer reads the index where it meets an address that it does not know, and imports what it uses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence

import linkspan
import numpy as np

from ._failures import BUSY, NOT_REGISTERED, OVERLAPPED, Failure

INDEX = "mooncake"
_HEADER = (0x65726B6C6D697373, 1, 0)  # what it is, its version, unused
_ROW_BYTES = 24
_MOST_INDEX_BYTES = 1 << 26  # of a peer's: 2.8 million ranges
_LOOKUP_S = 5.0
_UNREGISTER_S = 10.0
_GRACE_S = 1.0  # from the deadline of a call until a wait for it gives up
_ENDING = 256  # ranges whose ends are waited for together; an Engine has 1024 such calls


def name_of(number: int) -> str:
    return f"{INDEX} {number}"


class Ranges:
    """Ranges of addresses that do not overlap.

    Threads: immutable after construction.
    """

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows  # (address, bytes, number), in order of registration
        by_address = rows[np.argsort(rows[:, 0], kind="stable")]
        self._begins, self._bytes, self.numbers = (by_address[:, i].copy() for i in range(3))

    def __len__(self) -> int:
        return len(self.rows)

    def find(
        self, addresses: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, int | None]:
        """Returns the place in `numbers` of the range of each block, the block's offset in it, and
        the index of the first block that lies in no range or leaves its own; None: all lie in one.
        """
        if not len(self):
            return np.zeros(len(addresses), np.int64), addresses, 0 if len(addresses) else None
        at = np.searchsorted(self._begins, addresses, side="right") - 1
        offsets = addresses - self._begins[at]
        room = self._bytes[at]
        good = (at >= 0) & (offsets <= room) & (lengths <= room - np.minimum(offsets, room))
        return at, offsets, None if good.all() else int(np.argmin(good))

    def nearest(self, address: int) -> str:
        """Describes the range that begins at or before the address, for an error."""
        within = np.uint64(min(max(address, 0), (1 << 64) - 1))
        at = int(np.searchsorted(self._begins, within, side="right")) - 1
        if at < 0:
            return f"none of the {len(self)} registered ranges begins at or before it"
        begin, size = int(self._begins[at]), int(self._bytes[at])
        return f"the nearest of {len(self)} registered ranges is [{begin:#x}, {begin + size:#x})"


def _no_rows() -> np.ndarray:
    return np.empty((0, 3), np.uint64)


def _refuse_overlaps(rows: np.ndarray) -> None:
    sorted_rows = rows[np.argsort(rows[:, 0], kind="stable")]
    begins, ends = sorted_rows[:, 0], sorted_rows[:, 0] + sorted_rows[:, 1]
    if (wrong := np.flatnonzero(begins[1:] < ends[:-1])).size:
        one, other = ((int(begins[i]), int(ends[i])) for i in (wrong[0], wrong[0] + 1))
        raise Failure(
            f"[{one[0]:#x}, {one[1]:#x}) and [{other[0]:#x}, {other[1]:#x}) overlap: register each"
            " byte once, and unregister_memory() the earlier range first",
            OVERLAPPED,
        )


class Registrations:
    """The registered ranges of this process, as they are published.

    Threads: any thread.
    """

    def __init__(self, engine: linkspan.Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._next = 1
        self._regions: dict[int, linkspan.Region] = {}  # by number
        self._ending: list[linkspan.Region] = []  # unregistered; somebody may still use them
        self._index: linkspan.Region | None = None
        self._former: list[tuple[linkspan.Region, linkspan.Future | None]] = []  # indexes
        self.ranges = Ranges(_no_rows())
        self._publish(_no_rows())

    def region(self, number: int) -> linkspan.Region:
        try:
            return self._regions[number]
        except KeyError:
            raise Failure("the local range was unregistered meanwhile", NOT_REGISTERED) from None

    def register(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Registers all (address, bytes) or, after a Failure, none."""
        for address, size in pairs:
            if size <= 0 or address <= 0 or address + size > 1 << 64:
                raise Failure(
                    f"address {address:#x} with {size} bytes is no memory: give an address above 0"
                    " and at least one byte"
                )
        regions: list[linkspan.Region] = []
        try:
            for pair in pairs:
                regions.append(self._engine.register_memory(pair))
            self._add(regions)
        except BaseException:
            self._end(regions)
            raise

    def allocate(self, size: int) -> int:
        """Allocates and registers zeroed memory. Returns its address."""
        region = self._engine.register_memory(np.zeros(size, np.uint8))
        try:
            self._add([region])
        except BaseException:
            self._end([region])
            raise
        return region.address

    def unregister(self, addresses: Iterable[int]) -> None:
        """Ends the ranges that begin at these addresses: transfers on them are canceled, and
        nothing touches their memory afterwards. Of unknown addresses ends none."""
        wanted = set(addresses)
        with self._lock:
            rows = self.ranges.rows
            possible = [each for each in wanted if 0 <= each < 1 << 64]
            ended = np.isin(rows[:, 0], np.array(possible, np.uint64))
            numbers = {int(row[0]): int(row[2]) for row in rows[ended]}
            unknown = wanted - numbers.keys() - {region.address for region in self._ending}
            if unknown:
                first = min(unknown)
                raise Failure(
                    f"no registered range begins at {first:#x}; {self.ranges.nearest(first)}: give"
                    " the address that was registered",
                    NOT_REGISTERED,
                )
            if numbers:
                self._publish(rows[~ended])
            self._ending += [self._regions.pop(number) for number in numbers.values()]
            ending = [region for region in self._ending if region.address in wanted]
        self._end(ending)

    def _add(self, regions: list[linkspan.Region]) -> None:
        with self._lock:
            numbers = range(self._next, self._next + len(regions))
            new = [(r.address, r.bytes, number) for r, number in zip(regions, numbers)]
            rows = np.concatenate((self.ranges.rows, np.array(new, np.uint64).reshape(-1, 3)))
            _refuse_overlaps(rows)
            self._next = numbers.stop
            for region, number in zip(regions, numbers):
                self._engine.publish(name_of(number), region)
            self._regions.update(zip(numbers, regions))
            try:
                self._publish(rows)
            except BaseException:
                for number in numbers:
                    del self._regions[number]
                raise

    def _end(self, ending: list[linkspan.Region]) -> None:
        """Waits until nothing touches the memory of these regions any more."""
        until, ended, busy = time.monotonic() + _UNREGISTER_S, set(), None
        for some in (ending[at : at + _ENDING] for at in range(0, len(ending), _ENDING)):
            left = max(0.0, until - time.monotonic())
            futures = [self._engine.invalidate_async(region, left) for region in some]
            for region, future in zip(some, futures):
                try:
                    future.wait(_UNREGISTER_S + _GRACE_S)
                except linkspan.InvalidArgumentError:
                    pass  # another thread has ended it
                except (linkspan.BusyError, linkspan.NoResourceError, TimeoutError) as error:
                    busy = Failure(
                        f"the range at {region.address:#x} is still in use ({error}): keep its"
                        " memory and call unregister_memory() again",
                        BUSY,
                    )
                    continue
                ended.add(id(region))
        with self._lock:
            self._ending = [region for region in self._ending if id(region) not in ended]
            self._end_former()
        if busy is not None:
            raise busy

    def _publish(self, rows: np.ndarray) -> None:
        table = np.concatenate((np.array([_HEADER], np.uint64), rows))
        index = self._engine.register_memory(table, peers_write=False)
        try:
            self._engine.publish(INDEX, [index])
        except BaseException:
            self._end_former(index)
            raise
        before, self._index = self._index, index
        self.ranges = Ranges(rows)
        self._end_former(*([] if before is None else [before]))

    def _end_former(self, *added: linkspan.Region) -> None:
        """Ends indexes, whoever reads them: that peer reads the next one. Tries again what has
        failed, such as of a peer that stands still."""
        former = [*self._former, *((region, None) for region in added)]
        self._former = []
        for region, end in former:
            if end is not None and end.done():
                try:
                    end.wait(0)
                    continue
                except linkspan.InvalidArgumentError:
                    continue  # it has ended
                except linkspan.Error:
                    end = None
            self._former.append((region, end or self._engine.invalidate_async(region)))


class RemoteRanges:
    """The ranges of a peer, and those of them that are imported.

    Threads: any thread.
    """

    def __init__(self, engine: linkspan.Engine, peer: linkspan.Peer) -> None:
        self._engine, self.peer = engine, peer
        self._lock = threading.Lock()
        self._version = 0  # of the index that was read last; 0: none
        self._imported: dict[int, linkspan.RemoteRegion] = {}  # by number
        self.ranges = Ranges(_no_rows())

    def refresh(self, used: Ranges | None = None) -> bool:
        """Reads the peer's index if it has changed. Returns whether `ranges` are now others than
        the `used` ones."""
        until = time.monotonic() + _LOOKUP_S
        with self._lock:
            while (left := until - time.monotonic()) > 0:
                try:
                    found = self.peer.lookup_set(INDEX, left)
                    if found.version == self._version:
                        return self.ranges is not used
                    self.ranges = Ranges(self._read(found.regions[0], left))
                except (linkspan.UnreachableError, linkspan.CanceledError):
                    continue  # replaced while it was read
                except linkspan.NotFoundError as error:
                    raise Failure(
                        f"{self.peer!r} is no TransferEngine over linkspan ({error}): give the"
                        " session of one"
                    ) from error
                self._version = found.version
                known = set(self.ranges.numbers.tolist())
                self._imported = {n: r for n, r in self._imported.items() if n in known}
                return True
        raise Failure(f"the index of {self.peer!r} was not read in {_LOOKUP_S} s: call again")

    def regions(self, numbers: list[int]) -> list[linkspan.RemoteRegion]:
        with self._lock:
            missing = [number for number in numbers if number not in self._imported]
            if missing:
                found = self.peer.lookup_all([name_of(each) for each in missing], _LOOKUP_S)
                self._imported.update(zip(missing, found))
            return [self._imported[number] for number in numbers]

    def _read(self, index: linkspan.RemoteRegion, limit: float) -> np.ndarray:
        if index.bytes % _ROW_BYTES or not 0 < index.bytes <= _MOST_INDEX_BYTES:
            raise Failure(f"{self.peer!r} has an index of {index.bytes} bytes, which is none")
        rows = np.empty((index.bytes // _ROW_BYTES, 3), np.uint64)
        region = self._engine.register_memory(rows)
        try:
            self.peer.read(region, index, deadline=limit).wait(limit + _GRACE_S)
        finally:
            self._engine.deregister_async(region)
        if tuple(rows[0].tolist()) != _HEADER:
            raise Failure(
                f"{self.peer!r} has an index of another release ({rows[0].tolist()}): use the same"
                " linkspan on both sides"
            )
        return rows[1:]
