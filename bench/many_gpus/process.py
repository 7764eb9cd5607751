"""The processes of rank.py, or of a program like it, as who orders them sees them.

Every answer has a deadline.
"""

from __future__ import annotations

import multiprocessing
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

ANSWER_S = 120.0
RANK = pathlib.Path(__file__).resolve().parent / "rank.py"


class Failed(Exception):
    """Says what did not work."""


class Process:
    """A rank of `count`, or "bare"."""

    def __init__(self, name: str, count: int, program: pathlib.Path = RANK) -> None:
        self.name = name
        self.pipe, theirs = multiprocessing.Pipe()
        self.said = tempfile.TemporaryFile()  # noqa: SIM115 closed by end()
        self.process = subprocess.Popen(
            [sys.executable, program, str(theirs.fileno()), name, str(count)],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=self.said,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        theirs.close()

    def order(self, method: str, *arguments: Any) -> None:
        self.pipe.send((method, *arguments))

    def answer(self) -> Any:
        try:
            if not self.pipe.poll(ANSWER_S):
                raise Failed(f"rank {self.name}: no answer in {ANSWER_S:.0f} s")
            kind, value = self.pipe.recv()
        except (EOFError, OSError):
            self.said.seek(0)
            said = self.said.read()[-400:].decode(errors="replace")
            raise Failed(f"rank {self.name} ended: {said}") from None
        if kind == "failed":
            raise Failed(f"rank {self.name}: {value}")
        return value

    def ask(self, method: str, *arguments: Any) -> Any:
        self.order(method, *arguments)
        return self.answer()

    def end(self) -> None:
        try:
            if self.process.poll() is None:
                self.ask("end")
                self.process.wait(10)
        except (Failed, OSError, subprocess.TimeoutExpired):
            pass
        finally:
            self.process.kill()
            self.process.wait()
            self.pipe.close()
            self.said.close()
