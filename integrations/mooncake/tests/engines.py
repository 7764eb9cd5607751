"""What the tests of mooncake.engine share: engines here and in other processes, and their memory.

The package linkspan is the one that this process imports; LINKSPAN_CUDA_LIBRARY says which driver.
"""

from __future__ import annotations

import base64
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import linkspan
import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = str(pathlib.Path(linkspan.__file__).parents[1])  # where this process found linkspan
ANSWER_S = 30
MIB = 1 << 20

sys.path.insert(0, str(FOLDER))
sys.path.insert(0, str(FOLDER / "tests"))

from engine_process import Memory, pattern  # noqa: E402, F401
from mooncake.engine import TransferEngine  # noqa: E402


class Child:
    """An engine_process.py; ask() calls a method there."""

    def __init__(self, host: str = "127.0.0.1", **more: str) -> None:
        path = os.pathsep.join((str(FOLDER), PACKAGES))
        self.process = subprocess.Popen(
            [sys.executable, FOLDER / "tests" / "engine_process.py", host],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
            env=os.environ | {"PYTHONPATH": path} | more,
        )  # fmt: skip
        self._bytes = b""
        self.session: str = self.answer()

    def answer(self) -> Any:
        until = time.monotonic() + ANSWER_S
        while b"\n" not in self._bytes:
            ready, _, _ = select.select([self.process.stdout], [], [], until - time.monotonic())
            assert ready, f"no answer in {ANSWER_S} s"
            more = os.read(self.process.stdout.fileno(), MIB)
            assert more, f"ended with {self.process.wait(ANSWER_S)}"
            self._bytes += more
        line, _, self._bytes = self._bytes.partition(b"\n")
        return json.loads(line)["result"]

    def tell(self, name: str, *arguments: Any) -> None:
        self.process.stdin.write(json.dumps([name, arguments]).encode() + b"\n")

    def ask(self, name: str, *arguments: Any) -> Any:
        self.tell(name, *arguments)
        return self.answer()

    def read(self, address: int) -> np.ndarray:
        return np.frombuffer(base64.b64decode(self.ask("read", address)), np.uint8)

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
    with tempfile.TemporaryDirectory(prefix="linkspan-mooncake-") as folder:
        monkeypatch.setenv("LINKSPAN_SOCKET_DIR", folder)
        yield folder


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def starts(*arguments: str, **more: str) -> Child:
        children.append(Child(*arguments, **more))
        return children[-1]

    yield starts
    for child in children:
        child.end()


def opened(host: str = "127.0.0.1") -> TransferEngine:
    engine = TransferEngine()
    assert engine.initialize(host, "P2PHANDSHAKE", "tcp", "") == 0
    return engine


def session_of(engine: TransferEngine) -> str:
    return f"127.0.0.1:{engine.get_rpc_port()}"


def registered(engine: TransferEngine, size: int, seed: int | None = None) -> Memory:
    memory = Memory(size, seed)
    assert engine.register_memory(memory.address, size) == 0
    return memory


def refused(caplog: pytest.LogCaptureFixture, *texts: str) -> None:
    """The last line of the log has these texts."""
    line = caplog.records[-1].getMessage()
    for text in texts:
        assert text in line, line
