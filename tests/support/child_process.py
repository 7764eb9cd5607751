"""Processes that tests start and ask, stop and kill, and the socket folder that they share."""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pytest

ANSWER_S = 30
_READ_BYTES = 1 << 20


class ChildProcess:
    """A Python program that answers each line of its input by a line."""

    def __init__(
        self,
        program: pathlib.Path,
        *arguments: str,
        path: Sequence[str],
        by: Sequence[str] = (),
        **more: str,
    ):
        """path: folders of PYTHONPATH. by: a command that executes it. more: further variables of
        its environment."""
        self.process = subprocess.Popen(
            [*by, sys.executable, program, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path)} | more,
        )  # fmt: skip
        self._bytes = bytearray()

    def write_line(self, line: bytes) -> None:
        self.process.stdin.write(line + b"\n")

    def read_line(self) -> bytes:
        until, searched = time.monotonic() + ANSWER_S, 0
        while (end := self._bytes.find(b"\n", searched)) < 0:
            searched = len(self._bytes)
            left = max(0.0, until - time.monotonic())
            ready, _, _ = select.select([self.process.stdout], [], [], left)
            assert ready, f"no answer in {ANSWER_S} s"
            more = os.read(self.process.stdout.fileno(), _READ_BYTES)
            assert more, f"ended with {self.process.wait(ANSWER_S)}"
            self._bytes += more
        line = bytes(self._bytes[:end])
        del self._bytes[: end + 1]
        return line

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(self.process.pid, os.WUNTRACED)[1])

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(ANSWER_S)
        self.process.stdin.close()
        self.process.stdout.close()


_Started = TypeVar("_Started", bound=ChildProcess)


@contextlib.contextmanager
def starting(kind: Callable[..., _Started]) -> Iterator[Callable[..., _Started]]:
    """Gives a function that starts children, which end here at the latest."""
    children: list[_Started] = []

    def start(*arguments: Any, **more: str) -> _Started:
        children.append(kind(*arguments, **more))
        return children[-1]

    try:
        yield start
    finally:
        for child in children:
            child.end()


@pytest.fixture(autouse=True)
def socket_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="linkspan-test-") as folder:
        monkeypatch.setenv("LINKSPAN_SOCKET_DIR", folder)
        yield folder
