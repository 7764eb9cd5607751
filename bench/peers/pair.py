"""The two processes of a library, as run.py sees them.

Every answer has a deadline; a process that misses one is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import wheels
from rows import Row

HERE = pathlib.Path(__file__).resolve().parent
CEILING = "bare"
START_S, ORDER_S, STOP_S = 60.0, 60.0, 5.0


class Absent(Exception):
    """Says why there is no figure."""


class Child:
    """A process of side.py, and the pipe to it."""

    def __init__(
        self, side: str, role: str, gpu: int, more: dict[str, str], site: pathlib.Path | None
    ) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        environment = {
            **os.environ,
            "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
            "NIXL_LOG_LEVEL": "ERROR",
            "UCX_LOG_LEVEL": "error",
            "MC_LOG_LEVEL": "ERROR",
            "GLOG_minloglevel": "2",
            **more,
        }
        arguments = [
            sys.executable,
            str(HERE / "side.py"),
            side,
            role,
            str(theirs.fileno()),
            str(gpu),
        ]
        if site:
            arguments.append(str(site))
            before = environment.get("LD_LIBRARY_PATH", "")
            environment["LD_LIBRARY_PATH"] = f"{before}:{wheels.library_paths(site)}".lstrip(":")
        # What a library prints is no answer: it goes to a file, of which an error shows the end.
        self.said = tempfile.TemporaryFile()  # noqa: SIM115 closed by end()
        self.process = subprocess.Popen(
            arguments,
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self.said,
            stderr=subprocess.STDOUT,
        )
        theirs.close()

    def order(self, method: str, *arguments: Any) -> None:
        try:
            self.pipe.send((method, *arguments))
        except OSError:
            raise Absent(f"{method}: the process ended{self.last_words()}") from None

    def answer(self, method: str, limit: float = ORDER_S) -> Any:
        try:
            if not self.pipe.poll(limit):
                raise Absent(f"{method}: no answer after {limit:.0f} s")
            kind, value = self.pipe.recv()
        except (EOFError, OSError):
            raise Absent(f"{method}: the process ended{self.last_words()}") from None
        if kind == "failed":
            raise Absent(f"{method}: {value}")
        return value

    def ask(self, method: str, *arguments: Any, limit: float = ORDER_S) -> Any:
        self.order(method, *arguments)
        return self.answer(method, limit)

    def last_words(self) -> str:
        self.said.seek(0)
        text = self.said.read()[-300:].decode(errors="replace").strip()
        return f": {text}" if text else ""

    def end(self, well: bool) -> None:
        try:
            if well:
                self.ask("end", limit=STOP_S)
                self.process.wait(STOP_S)
        except (Absent, subprocess.TimeoutExpired):
            pass
        finally:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()
            self.pipe.close()
            self.said.close()


class Pair:
    """The two processes of a library."""

    def __init__(
        self, side: str, gpu_count: int, more: dict[str, str], site: pathlib.Path | None
    ) -> None:
        self.side, self.environment = side, more
        self.target = Child(side, "target", gpu_count - 1, more, site)  # the last; -1: none
        self.initiator = Child(side, "initiator", min(gpu_count, 1) - 1, more, site)
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
