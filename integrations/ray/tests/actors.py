"""What the tests of linkspan.ray share: the transport here, and others in processes of their own.

Ray itself is stood in for by stand_in/, and tensors are arrays of numpy.
"""

from __future__ import annotations

import base64
import os
import pathlib
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import linkspan
import pytest

TESTS = pathlib.Path(__file__).resolve().parent
STAND_IN = str(TESTS / "stand_in")
PACKAGES = str(pathlib.Path(linkspan.__file__).parents[1])  # where this process found linkspan
ANSWER_S = 30
MIB = 1 << 20

sys.path[:0] = [STAND_IN, str(TESTS)]

import linkspan.ray  # noqa: E402
from actor_process import pattern  # noqa: E402, F401
from ray.experimental.rdt.tensor_transport_manager import CommunicatorMetadata  # noqa: E402

COMMUNICATOR = CommunicatorMetadata()


class Child:
    """An actor_process.py; ask() calls a method there."""

    def __init__(self, **more: str) -> None:
        path = os.pathsep.join((STAND_IN, PACKAGES))
        self.process = subprocess.Popen(
            [sys.executable, TESTS / "actor_process.py"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
            env=os.environ | {"PYTHONPATH": path, "STAND_IN_ACTOR": "a1b2"} | more,
        )  # fmt: skip
        self._bytes = b""

    def ask(self, name: str, *arguments: Any) -> Any:
        self.process.stdin.write(base64.b64encode(pickle.dumps((name, arguments))) + b"\n")
        until = time.monotonic() + ANSWER_S
        while b"\n" not in self._bytes:
            left = max(0.0, until - time.monotonic())
            ready, _, _ = select.select([self.process.stdout], [], [], left)
            assert ready, f"no answer in {ANSWER_S} s"
            more = os.read(self.process.stdout.fileno(), MIB)
            assert more, f"ended with {self.process.wait(ANSWER_S)}"
            self._bytes += more
        line, _, self._bytes = self._bytes.partition(b"\n")
        answer = pickle.loads(base64.b64decode(line))
        assert "error" not in answer, answer["error"]
        return answer["result"]

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


@pytest.fixture(autouse=True)
def socket_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="linkspan-ray-") as folder:
        monkeypatch.setenv("LINKSPAN_SOCKET_DIR", folder)
        yield folder


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def starts(**more: str) -> Child:
        children.append(Child(**more))
        return children[-1]

    yield starts
    for child in children:
        child.end()


@pytest.fixture
def transport() -> Iterator[linkspan.ray.LinkspanTransport]:
    made = linkspan.ray.LinkspanTransport()
    yield made
    if made._engine is not None:
        made._engine.close()
