"""linkspan by its Python package: a transfer is requested and waited for by one thread."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import linkspan
import numpy
from side import LIMIT_S, Move, Side, rally, timed, until

import memory


class LinkspanSide(Side):
    def __init__(self, role: str) -> None:
        super().__init__(role)
        self.engine = linkspan.Engine(role)
        self.address = self.engine.listen()
        self.peer: linkspan.Peer | None = None
        self.regions: list[linkspan.Region] = []
        self.remotes: Any = []
        self.last: Any = None

    def version(self) -> str:
        try:
            return importlib.metadata.version("linkspan")
        except importlib.metadata.PackageNotFoundError:
            return "built here"

    def allocate(self, kind: str, size: int, gpu: int) -> memory.Memory:
        if kind != "shared":
            return super().allocate(kind, size, gpu)
        region = self.engine.allocate_shared(size)
        return memory.of_array(kind, numpy.frombuffer(region.memory, numpy.uint8), region)

    def offer(self, memories: list[memory.Memory]) -> Any:
        self.regions = [
            each.owner if each.kind == "shared" else self.engine.register_memory(each.array)
            for each in memories
        ]
        self.engine.publish("regions", self.regions)
        return self.address

    def accept(self, offer: Any) -> None:
        if self.peer is None:
            self.peer = self.engine.connect(offer)
        self.remotes = self.peer.lookup_set("regions").regions

    def mover(self, row: Any, memories: list[memory.Memory]) -> Move:
        assert self.peer is not None
        regions, remotes = self.regions, self.remotes
        if not row.pages:
            self.how = "Prepared.post with after=None, Transfer.wait"
            offsets = [i * row.bytes for i in range(row.in_flight)]
            pieces = [
                self.peer.prepare(row.op, regions[0], remotes[0], [(at, at, row.bytes)])
                for at in offsets
            ]

            def once() -> None:
                for transfer in [each.post(after=None) for each in pieces]:
                    transfer.wait(LIMIT_S)

            return timed(once)
        self.how = f"Pages, Peer.{row.op} with after=None, Transfer.wait"
        call = self.peer.write if row.op == "write" else self.peer.read
        lists = [numpy.array(side, numpy.int32) for side in zip(*row.indices())]
        if not row.lists:
            lists = [each[0] for each in lists]
        if row.regions > 1:

            def once() -> None:
                pages = linkspan.Pages(row.bytes, *lists)
                call(regions, remotes, pages, after=None).wait(LIMIT_S)

        else:

            def once() -> None:
                pages = linkspan.Pages(row.bytes, *lists)
                call(regions[0], remotes[0], pages, after=None).wait(LIMIT_S)

        return timed(once)

    def player(self, row: Any, memories: list[memory.Memory]) -> Move:
        """Neither side waits for its own transfer: it asks for notifications alone."""
        assert self.peer is not None
        self.how = "Peer.write with a notification, Engine.notifications polled"
        shape = [(0, 0, row.bytes)]

        def post() -> None:
            self.last = self.peer.write(
                self.regions[0], self.remotes[0], shape, notification=b"!", after=None
            )

        def hear() -> None:
            until(self.engine.notifications, "a notification")

        return rally(self.role, post, hear)

    def drop(self) -> None:
        if self.last is not None:
            self.last.wait(LIMIT_S)
        self.last, self.remotes = None, []

    def release(self) -> None:
        for region in self.regions:
            self.engine.invalidate(region)
        self.regions = []


create = LinkspanSide
