"""What the tests of linkspan.ray share: the transport here, and others in processes of their own.

Ray itself is stood in for by stand_in/, and tensors are arrays of numpy.
"""

from __future__ import annotations

import base64
import pathlib
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

import linkspan
import pytest

TESTS = pathlib.Path(__file__).resolve().parent
STAND_IN = str(TESTS / "stand_in")
PACKAGES = str(pathlib.Path(linkspan.__file__).parents[1])  # where this process found linkspan
MIB = 1 << 20

sys.path[:0] = [STAND_IN, str(TESTS), str(TESTS.parents[2] / "tests" / "support")]

import linkspan.ray  # noqa: E402
from actor_process import pattern  # noqa: E402, F401
from child_process import ANSWER_S, ChildProcess, socket_folder, starting  # noqa: E402, F401
from ray.experimental.rdt.tensor_transport_manager import CommunicatorMetadata  # noqa: E402

COMMUNICATOR = CommunicatorMetadata()


class Child(ChildProcess):
    """An actor_process.py; ask() calls a method there."""

    def __init__(self, **more: str) -> None:
        environment = {"STAND_IN_ACTOR": "a1b2"} | more
        super().__init__(TESTS / "actor_process.py", path=(STAND_IN, PACKAGES), **environment)

    def ask(self, name: str, *arguments: Any) -> Any:
        self.write_line(base64.b64encode(pickle.dumps((name, arguments))))
        answer = pickle.loads(base64.b64decode(self.read_line()))
        assert "error" not in answer, answer["error"]
        return answer["result"]


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    with starting(Child) as starts:
        yield starts


@pytest.fixture
def transport() -> Iterator[linkspan.ray.LinkspanTransport]:
    made = linkspan.ray.LinkspanTransport()
    yield made
    if made._engine is not None:
        made._engine.close()
