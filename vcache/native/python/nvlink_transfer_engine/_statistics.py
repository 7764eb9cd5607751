"""What transfers took: one's result, and counts over all of an engine."""

from __future__ import annotations

import dataclasses
import random
import threading
from typing import NamedTuple, Optional

from ._library import LibraryStatistics

RESERVOIR = 4096


class TransferResult(NamedTuple):
    """A transfer that succeeded."""

    bytes: int
    seconds: float  # from the call to its end, or to when the end was noticed
    backend: str  # "native", "torch" or "cuda-python"

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes a second."""
        return rate(self.bytes, self.seconds)


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Of one engine since it was made."""

    count: int  # transfers that succeeded
    failures: int  # that did not, canceled and timed out ones too
    bytes: int
    seconds: float  # all transfers' seconds together; those that overlap count each
    p50_s: float  # of a transfer; from a fair sample of RESERVOIR ones when there were more
    p99_s: float
    library: Optional[LibraryStatistics]  # None without the library

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes a second of transfer."""
        return rate(self.bytes, self.seconds)


def rate(size: int, seconds: float) -> float:
    return size / seconds / 1e9 if seconds > 0 else 0.0


class Recorder:
    """Counts the ends of transfers.

    failed() and succeeded() empty the list `once`, and do nothing when it is empty, so that a
    transfer counts once. Between that and the count is no call, after which a signal's handler may
    raise.

    Threads: any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # again by a signal's handler
        self._random = random.Random(0)
        self._sample: list[float] = []
        self._count = self._failures = self._bytes = 0
        self._seconds = 0.0

    def failed(self, once: list[None]) -> None:
        with self._lock:
            if not once:
                return
            del once[:]
            self._failures += 1

    def succeeded(self, result: TransferResult, once: list[None]) -> None:
        with self._lock:
            if not once:
                return
            del once[:]
            self._count += 1
            self._bytes += result.bytes
            self._seconds += result.seconds
            if len(self._sample) < RESERVOIR:
                self._sample.append(result.seconds)
                return
            # Vitter's algorithm R: each transfer so far is in the sample with the same chance.
            at = self._random.randrange(self._count)
            if at < RESERVOIR:
                self._sample[at] = result.seconds

    def statistics(self, library: LibraryStatistics | None) -> Statistics:
        with self._lock:
            sample = sorted(self._sample)
            sums = (self._count, self._failures, self._bytes, self._seconds)

        def percentile(per_cent: int) -> float:
            return sample[-(-len(sample) * per_cent // 100) - 1] if sample else 0.0  # nearest rank

        return Statistics(*sums, percentile(50), percentile(99), library)
