"""One request on its way to one rank of the decode side."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import linkspan
import numpy as np
from layout import Layout

SECONDS = 10.0  # the deadline of a transfer


@dataclasses.dataclass
class Remote:
    """A process of the decode side."""

    peer: linkspan.Peer
    layers: list[linkspan.RemoteRegion]
    layout: Layout


@dataclasses.dataclass
class Send:
    """Sends pages `mine` here to pages `its` there, whole or by layers and chunks."""

    name: str
    layers: list[linkspan.Region]
    layout: Layout
    to: Remote
    mine: np.ndarray
    its: np.ndarray
    posted: int = 0  # pages of layers
    transfers: list[linkspan.Transfer] = dataclasses.field(default_factory=list)

    def post(self, layers: slice, positions: Any) -> None:
        """Starts one transfer of these layers and positions. Its notification, after all of its
        data, has the number of pages; the decode side counts them."""
        mine, its = self.mine[positions], self.its[positions]
        here, there = self.layers[layers], self.to.layers[layers]
        pages = len(here) * len(mine)
        options = {
            "after": "current",
            "deadline": SECONDS,
            "notification": f"kv {pages} {self.name}".encode(),
        }
        write = self.to.peer.write
        if self.to.layout == self.layout:
            same = linkspan.Pages(self.layout.page, mine, its)
            self.transfers.append(write(here, there, same, **options))
        else:
            heads = list(self.layout.common_heads(self.to.layout, mine, its))
            parts = [(*pair, shape) for pair in zip(here, there) for shape in heads]
            self.transfers.append(write(parts, **options))
        self.posted += pages

    def complete(self) -> bool:
        everything = len(self.mine) * len(self.layers)
        return self.posted == everything and all(each.status == "ok" for each in self.transfers)

    def error(self) -> linkspan.Error | None:
        for each in self.transfers:
            if each.status not in ("ok", "pending"):
                try:
                    each.wait(0)
                except linkspan.Error as error:
                    return error
        return None

    def end(self) -> int:
        """Cancels all transfers. When it returns, none uses the pages any more. Returns how many
        it canceled."""
        for each in reversed(self.transfers):
            each.cancel()
        for each in self.transfers:
            with contextlib.suppress(linkspan.Error):  # its end
                each.wait(SECONDS)  # TimeoutError: it still uses the pages; call again
        return sum(each.status != "ok" for each in self.transfers)
