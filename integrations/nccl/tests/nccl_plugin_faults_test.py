"""Two processes with the plugin: killed, stopped, and slow ones. LINKSPAN_NCCL_PLUGIN names it."""

from __future__ import annotations

import base64
import os
import pathlib
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pytest

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
PLUGIN = os.environ.get("LINKSPAN_NCCL_PLUGIN") or ROOT / "out/release/nccl/libnccl-net-linkspan.so"

sys.path.insert(0, str(ROOT / "tests" / "support"))

from child_process import ChildProcess  # noqa: E402

BIG = 48 << 20  # more than sockets buffer


class Failed(Exception):
    pass


class Rank(ChildProcess):
    """A rank_process.py; ask() calls a method there."""

    def __init__(self) -> None:
        super().__init__(FOLDER / "rank_process.py", str(PLUGIN), path=(), NCCL_SOCKET_IFNAME="lo")
        assert self.read_line() == b"ready"

    def ask(self, method: str, *arguments: Any) -> Any:
        self.write_line(base64.b64encode(pickle.dumps((method, arguments))))
        answer = pickle.loads(base64.b64decode(self.read_line()))
        if "error" in answer:
            raise Failed(answer["error"])
        return answer["result"]


class Pair:
    """A sender and a receiver that are connected, each with memory of `size` bytes."""

    def __init__(self, size: int) -> None:
        self.sender, self.receiver = Rank(), Rank()
        handle = self.receiver.ask("listen")
        connected = accepted = False
        while not (connected and accepted):
            connected = connected or self.sender.ask("connect", handle)
            accepted = accepted or self.receiver.ask("accept")
        self.sender.ask("register", size, 1)
        self.receiver.ask("register", size, 2)

    def end(self) -> None:
        self.sender.end()
        self.receiver.end()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair(BIG)
    yield made
    made.end()


def test_a_message(pair: Pair) -> None:
    pair.receiver.ask("receive", BIG)
    pair.sender.ask("send", BIG - 7)
    assert pair.sender.ask("test", 20)[0] is not None
    assert pair.receiver.ask("test", 20)[0] == BIG - 7
    assert pair.receiver.ask("differs", 1, BIG - 7) is None
    assert pair.receiver.ask("differs", 2, BIG) == 0


def test_a_killed_receiver(pair: Pair) -> None:
    pair.receiver.ask("receive", BIG)
    pair.receiver.stop()
    pair.sender.ask("send", BIG)
    assert pair.sender.ask("test", 0.3)[0] is None
    pair.receiver.end()
    with pytest.raises(Failed, match="test answered 6: .*(gone|disconnected)"):
        pair.sender.ask("test", 10)


def test_a_killed_sender(pair: Pair) -> None:
    pair.receiver.ask("receive", BIG)
    assert pair.receiver.ask("test", 0.1)[0] is None
    pair.sender.end()
    with pytest.raises(Failed, match="test answered 6: .*gone"):
        pair.receiver.ask("test", 10)


def test_a_stopped_receiver_goes_on(pair: Pair) -> None:
    pair.receiver.ask("receive", BIG)
    pair.receiver.stop()
    pair.sender.ask("send", BIG)
    assert pair.sender.ask("test", 3)[0] is None
    pair.receiver.go_on()
    assert pair.sender.ask("test", 20)[0] is not None
    assert pair.receiver.ask("test", 20)[0] == BIG
    assert pair.receiver.ask("differs", 1, BIG) is None


def test_a_message_waits_for_its_receive(pair: Pair) -> None:
    pair.sender.ask("send", BIG)
    assert pair.sender.ask("test", 2)[0] is None
    pair.receiver.ask("receive", BIG)
    assert pair.sender.ask("test", 20)[0] is not None
    assert pair.receiver.ask("differs", 1, BIG) is None
