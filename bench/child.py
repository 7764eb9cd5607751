"""A process of a bench and the pipe to it, over which it is told methods to call.

Every answer has a deadline. What the process prints is no answer: it goes to a file, of which an error
shows the end.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import tempfile
from collections.abc import Callable
from typing import Any

ORDER_S, STOP_S = 60.0, 5.0


class Absent(Exception):
    """Says why there is no figure."""


class Child:
    def __init__(self, command: Callable[[int], list[str]], environment: dict[str, str]) -> None:
        """command: of the pipe's file descriptor there."""
        self.pipe, theirs = multiprocessing.Pipe()
        self.said = tempfile.TemporaryFile()  # noqa: SIM115 closed by end()
        self.process = subprocess.Popen(
            command(theirs.fileno()),
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
