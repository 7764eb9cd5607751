"""One request on its way to one rank of the decode side."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Sequence

import linkspan
import numpy as np
from layout import Layout

SECONDS = 10.0  # in which a layer arrives


@dataclasses.dataclass
class Remote:
    """A rank of the decode side, in one of its lives."""

    peer: linkspan.Peer
    layers: list[linkspan.RemoteRegion]
    layout: Layout


class Send:
    """Pages `mine` here become pages `its` there, layer by layer and chunk by chunk.

    Made at admission, off the path of the forward pass: where the ranks have the same heads the
    pages are checked here, once, and then posted by position.
    """

    def __init__(
        self,
        name: str,
        layers: Sequence[linkspan.Region],
        layout: Layout,
        to: Remote,
        mine: Sequence[int],
        its: Sequence[int],
    ) -> None:
        self.name, self.layers, self.layout, self.to = name, layers, layout, to
        self.mine, self.its = np.asarray(mine), np.asarray(its)
        self.left = len(self.mine) * len(layers)  # pages of layers that are not posted yet
        self.transfers: list[linkspan.Transfer] = []
        self.prepared: list[linkspan.Prepared] = []
        if to.layout == layout:
            pages = linkspan.Pages(layout.page, self.mine, self.its)
            pairs = zip(layers, to.layers)
            self.prepared = [to.peer.prepare("write", *pair, pages) for pair in pairs]

    def post(self, layer: int, chunk: np.ndarray) -> None:
        """These positions of one layer, behind what is queued on the current stream."""
        self.left -= len(chunk)
        if self.prepared:
            self.transfers.append(self.prepared[layer].post(chunk, **self._options(len(chunk))))
            return
        sides = self.layers[layer], self.to.layers[layer]
        heads = self.layout.common_heads(self.to.layout, self.mine[chunk], self.its[chunk])
        for shape, pages in heads:
            self.transfers.append(self.to.peer.write(*sides, shape, **self._options(pages)))

    def _options(self, pages: int) -> dict[str, Any]:
        arrived = f"kv {pages} {self.name}".encode()
        return {"after": "current", "deadline": SECONDS, "notification": arrived}

    def complete(self) -> bool:
        return self.left == 0 and all(each.status == "ok" for each in self.transfers)

    def error(self) -> linkspan.Error | None:
        for each in self.transfers:
            if each.status not in ("ok", "pending"):
                try:
                    each.wait(0)
                except linkspan.Error as error:
                    return error
        return None

    def end(self) -> int:
        """Early. When it returns nobody reads or writes the pages; how many transfers it caught."""
        for each in reversed(self.transfers):
            each.cancel()
        for each in self.transfers:
            with contextlib.suppress(linkspan.Error):  # its end
                each.wait(SECONDS)  # TimeoutError: it still uses the pages; call again
        return sum(each.status != "ok" for each in self.transfers)
