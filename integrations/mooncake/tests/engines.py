"""What the tests of mooncake.engine share: engines here and in other processes, and their memory.

The package linkspan is the one that this process imports; LINKSPAN_CUDA_LIBRARY says which driver.
"""

from __future__ import annotations

import base64
import json
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import linkspan
import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = str(pathlib.Path(linkspan.__file__).parents[1])  # where this process found linkspan
MIB = 1 << 20

sys.path[:0] = [str(FOLDER / "tests"), str(FOLDER), str(FOLDER.parents[1] / "tests" / "support")]

from child_process import ANSWER_S, ChildProcess, socket_folder, starting  # noqa: E402, F401
from engine_process import Memory, pattern  # noqa: E402, F401
from mooncake.engine import TransferEngine  # noqa: E402


class Child(ChildProcess):
    """An engine_process.py; ask() calls a method there."""

    def __init__(self, host: str = "127.0.0.1", **more: str) -> None:
        program = FOLDER / "tests" / "engine_process.py"
        super().__init__(program, host, path=(str(FOLDER), PACKAGES), **more)
        self.session: str = self.answer()

    def answer(self) -> Any:
        return json.loads(self.read_line())["result"]

    def tell(self, name: str, *arguments: Any) -> None:
        self.write_line(json.dumps([name, arguments]).encode())

    def ask(self, name: str, *arguments: Any) -> Any:
        self.tell(name, *arguments)
        return self.answer()

    def read(self, address: int) -> np.ndarray:
        return np.frombuffer(base64.b64decode(self.ask("read", address)), np.uint8)


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    with starting(Child) as starts:
        yield starts


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
