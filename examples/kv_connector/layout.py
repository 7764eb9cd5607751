"""Describes how a rank lays out its cache, and what of it another rank needs."""

from __future__ import annotations

import dataclasses
from typing import Iterator

import linkspan
import numpy as np


@dataclasses.dataclass(frozen=True)
class Layout:
    """One layer's cache on one rank of tensor parallelism: [page][K or V][token][head]."""

    tokens: int  # of a page; the same on both sides
    heads: int  # on this rank
    first_head: int  # its number in the model
    head_bytes: int

    @property
    def row(self) -> int:
        return self.heads * self.head_bytes

    @property
    def page(self) -> int:
        return 2 * self.tokens * self.row

    def common_heads(
        self, other: Layout, mine: np.ndarray, its: np.ndarray
    ) -> Iterator[linkspan.Strides]:
        """Returns the heads that both ranks have: a shape for each run of pages that follow each
        other on both sides. The rows of tokens are equally far apart across K, V and pages, so one
        level of strides has them all."""
        first = max(self.first_head, other.first_head)
        count = min(self.first_head + self.heads, other.first_head + other.heads) - first
        here, there = ((first - each.first_head) * self.head_bytes for each in (self, other))
        breaks = np.flatnonzero((np.diff(mine) != 1) | (np.diff(its) != 1)) + 1
        for run in np.split(np.arange(len(mine)), breaks):
            rows = (len(run) * 2 * self.tokens, self.row, other.row)
            bases = int(mine[run[0]]) * self.page + here, int(its[run[0]]) * other.page + there
            yield linkspan.Strides(
                count * self.head_bytes, [rows], local_base=bases[0], remote_base=bases[1]
            )
