"""The two processes of a library, as run.py sees them. One that misses a deadline is killed."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

import wheels
from rows import Row

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from child import Absent, Child  # noqa: E402

CEILING = "bare"
START_S = 60.0


def child_of(
    side: str, role: str, gpu: int, more: dict[str, str], site: pathlib.Path | None
) -> Child:
    """Starts a process of side.py."""
    environment = {
        **os.environ,
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "NIXL_LOG_LEVEL": "ERROR",
        "UCX_LOG_LEVEL": "error",
        "MC_LOG_LEVEL": "ERROR",
        "GLOG_minloglevel": "2",
        **more,
    }
    wheels_of_side = []
    if site:
        wheels_of_side = [str(site)]
        before = environment.get("LD_LIBRARY_PATH", "")
        environment["LD_LIBRARY_PATH"] = f"{before}:{wheels.library_paths(site)}".lstrip(":")
    program = [sys.executable, str(HERE / "side.py"), side, role]
    return Child(lambda pipe: [*program, str(pipe), str(gpu), *wheels_of_side], environment)


class Pair:
    """The two processes of a library."""

    def __init__(
        self, side: str, gpu_count: int, more: dict[str, str], site: pathlib.Path | None
    ) -> None:
        self.side, self.environment = side, more
        self.target = child_of(side, "target", gpu_count - 1, more, site)  # the last; -1: none
        self.initiator = child_of(side, "initiator", min(gpu_count, 1) - 1, more, site)
        try:
            self.version, self.how = self.initiator.ask("version", limit=START_S)
            self.target.ask("version", limit=START_S)
        except Absent:
            self.end(well=False)
            raise

    def set_up(self, row: Row) -> None:
        theirs = self.target.ask("set_up", row)
        ours = self.initiator.ask("set_up", row)
        self.during("accept", theirs, self.initiator)
        self.target.ask("accept", ours)
        self.target.ask("make")
        self.during("make", None, self.initiator)
        self.how = self.initiator.ask("version")[1]

    def during(self, method: str, argument: Any, child: Child) -> Any:
        """The target makes progress until the initiator has answered."""
        self.target.order("progress")
        try:
            arguments = [] if argument is None else [argument]
            return child.ask(method, *arguments)
        finally:
            self.target.order("version")
            self.target.answer("progress")
            self.target.answer("version")

    def run(self, row: Row, runs: int) -> list[int]:
        if not row.ping_pong:
            return self.during("run", runs, self.initiator)
        self.target.order("run", runs)
        times = self.initiator.ask("run", runs)
        self.target.answer("run")
        return times

    def verify(self, row: Row, seed: int) -> None:
        if self.side == CEILING and row.needs_gpu and row.remote != "gpu":
            return  # its own host memory is in the place of the target's, which it cannot reach
        written = row.op == "write"
        source, sink = (self.initiator, self.target) if written else (self.target, self.initiator)
        source.ask("fill", seed)
        sink.ask("fill", None)
        self.run(row, 1)
        if wrong := sink.ask("wrong_bytes", seed):
            raise Absent(f"verify: {wrong} bytes of {row.region_bytes * row.regions} are wrong")

    def clear(self) -> None:
        for method in ("drop", "clear"):
            self.initiator.ask(method)
            self.target.ask(method)

    def end(self, well: bool = True) -> None:
        self.initiator.end(well)
        self.target.end(well)
