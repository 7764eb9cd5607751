"""NIXL by its Python API, over one of its backends; without its progress thread, its fastest form.

Page lists are chosen from prepared lists of all pages by index, as vLLM does.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import time
from collections.abc import Callable
from typing import Any

import numpy
from side import Failed, Move, Side, rally, timed, until

import memory


class NixlSide(Side):
    needs_progress = True
    backend = "UCX"
    parameters: dict[str, str] = {}

    def __init__(self, role: str) -> None:
        super().__init__(role)
        for cuda in ("13", "12"):
            try:
                api = importlib.import_module(f"nixl_cu{cuda}._api")
                self.package = f"nixl-cu{cuda}"
                break
            except ModuleNotFoundError as error:
                if not (error.name or "").startswith("nixl_cu"):
                    raise
        else:
            raise Failed("no nixl_cu13 or nixl_cu12: run.py --fetch, then --wheels")
        config = api.nixl_agent_config(enable_prog_thread=False, backends=[])
        self.agent = api.nixl_agent(f"{role}-{os.getpid()}", config)
        self.agent.create_backend(self.backend, self.parameters)
        self.registered: Any = None
        self.peer, self.far = "", []
        self.far_kind = "DRAM"
        self.handles: list[Any] = []
        self.lists: list[Any] = []
        self.heard: list[bytes] = []

    def version(self) -> str:
        return importlib.metadata.version(self.package)

    def offer(self, memories: list[memory.Memory]) -> Any:
        kind = "VRAM" if memories[0].gpu >= 0 else "DRAM"
        places = [(each.address, each.bytes, max(each.gpu, 0)) for each in memories]
        descriptors = self.agent.get_reg_descs([(*place, "") for place in places], kind)
        self.registered = self.agent.register_memory(descriptors, backends=[self.backend])
        return self.agent.get_agent_metadata(), kind, places

    def accept(self, offer: Any) -> None:
        metadata, self.far_kind, self.far = offer
        name = self.agent.add_remote_agent(metadata)
        self.peer = name.decode() if isinstance(name, bytes) else name

    def prepared(
        self, agent: str, places: list[tuple[int, int, int]], kind: str, piece: int
    ) -> Any:
        rows = numpy.array(
            [
                (address + at, piece, gpu)
                for address, size, gpu in places
                for at in range(0, size, piece)
            ],
            numpy.uint64,
        )
        handle = self.agent.prep_xfer_dlist(agent, rows, kind, backends=[self.backend])
        self.lists.append(handle)
        return handle

    def sides(self, row: Any, memories: list[memory.Memory]) -> tuple[Any, Any]:
        near = [(each.address, each.bytes, max(each.gpu, 0)) for each in memories]
        kind = "VRAM" if memories[0].gpu >= 0 else "DRAM"
        return (
            self.prepared("NIXL_INIT_AGENT", near, kind, row.bytes),
            self.prepared(self.peer, self.far, self.far_kind, row.bytes),
        )

    def request(
        self, op: str, near: Any, mine: Any, far: Any, theirs: Any, told: bytes = b""
    ) -> Any:
        return self.agent.make_prepped_xfer(
            op, near, mine, far, theirs, told, backends=[self.backend]
        )

    def mover(self, row: Any, memories: list[memory.Memory]) -> Move:
        near, far = self.sides(row, memories)
        agent, op = self.agent, row.op.upper()
        self.how = "transfer of a request made before, check_xfer_state; no progress thread"
        if not row.pages:
            self.handles = [self.request(op, near, [i], far, [i]) for i in range(row.in_flight)]
            handles = self.handles

            def again() -> None:
                states = [agent.transfer(handle) for handle in handles]
                for handle, state in zip(handles, states):
                    if state == "PROC":
                        self.done(handle)
                    elif state != "DONE":
                        raise Failed(f"transfer: {state}")

            return timed(again)
        base = numpy.arange(row.regions)[:, None] * row.region_pages
        two = row.indices()
        mine = (numpy.array([each[0] for each in two]) + base).ravel().astype(numpy.int32)
        theirs = (numpy.array([each[1] for each in two]) + base).ravel().astype(numpy.int32)

        def make() -> Any:
            return self.request(op, near, mine, far, theirs)

        def move(handle: Any) -> None:
            if agent.transfer(handle) == "PROC":
                self.done(handle)

        if row.handle == "posted":
            self.handles = [make()]
            return timed(lambda: move(self.handles[0]))
        self.how = "make_prepped_xfer, transfer, check_xfer_state; no progress thread"

        def once() -> None:
            handle = make()
            move(handle)
            agent.release_xfer_handle(handle)

        return timed(once) if row.handle != "timed" else self.maker(make, move)

    def maker(self, make: Callable[[], Any], move: Callable[[Any], None]) -> Move:
        """Takes the time of making a handle alone, which is then used and released."""
        self.how = "make_prepped_xfer"

        def run(runs: int) -> list[int]:
            times, clock = [], time.perf_counter_ns
            for _ in range(runs):
                begin = clock()
                handle = make()
                times.append(clock() - begin)
                move(handle)
                self.agent.release_xfer_handle(handle)
            return times

        return run

    def done(self, handle: Any) -> None:
        def ended() -> bool:
            state = self.agent.check_xfer_state(handle)
            if state not in ("PROC", "DONE"):
                raise Failed(f"check_xfer_state: {state}")
            return state == "DONE"

        until(ended, "the transfer")

    def player(self, row: Any, memories: list[memory.Memory]) -> Move:
        near, far = self.sides(row, memories)
        handle = self.request("WRITE", near, [0], far, [0], b"!")
        self.how = "transfer with a notification, check_xfer_state, get_new_notifs polled"
        self.handles = [handle]

        def post() -> None:
            if self.agent.transfer(handle, b"!") == "PROC":
                self.done(handle)  # which sends the notification, without a progress thread

        def hear() -> None:
            def come() -> bool:
                for messages in self.agent.get_new_notifs().values():
                    self.heard += messages
                return bool(self.heard)

            until(come, "a notification")
            self.heard.pop(0)

        return rally(self.role, post, hear)

    def progress(self) -> None:
        self.agent.get_new_notifs()

    def drop(self) -> None:
        for handle in self.handles:
            self.agent.release_xfer_handle(handle)
        for handle in self.lists:
            self.agent.release_dlist_handle(handle)
        self.handles, self.lists, self.heard = [], [], []
        # The next row's memory may be at the same address: nothing of this row's may be left.
        if self.peer:
            self.agent.remove_remote_agent(self.peer)
        self.peer = ""

    def release(self) -> None:
        if self.registered is not None:
            self.agent.deregister_memory(self.registered, backends=[self.backend])
        self.registered = None


create = NixlSide
