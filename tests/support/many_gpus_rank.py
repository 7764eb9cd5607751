"""A rank of bench/many_gpus whose peers may die: tells of each target how its transfer ended."""

from __future__ import annotations

import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "many_gpus"))

import linkspan  # noqa: E402
from rank import LIMIT_S, Rank, serve  # noqa: E402


class RankThatIsWatched(Rank):
    def write_until_told(self, begin: float, targets: list[int], size: int) -> dict[int, str]:
        """Writes again and again for 30 ms. Returns of each target "ok", or the name of
        the first error."""
        mine, ends = self.regions[self.rank], dict.fromkeys(targets, "ok")
        self.at(begin)
        while time.monotonic() < begin + 0.03:
            going = []
            for i in targets:
                try:
                    there = self.theirs[i][self.rank]
                    going.append((i, self.peers[i].write(mine, there, [(0, 0, size)], after=None)))
                except linkspan.Error as error:
                    ends[i] = type(error).__name__
            for i, transfer in going:
                try:
                    transfer.wait(LIMIT_S)
                except linkspan.Error as error:
                    ends[i] = type(error).__name__
        return ends

    def part(self, rank: int) -> int:
        """Ends with a peer. Returns how many file descriptors this process has then."""
        self.theirs.pop(rank)
        self.peers.pop(rank).close()
        return len(os.listdir("/proc/self/fd"))


if __name__ == "__main__":
    serve(RankThatIsWatched)
