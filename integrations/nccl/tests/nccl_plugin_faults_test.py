"""Two processes with the plugin: killed, stopped and slow ones, and hosts whose cable is cut, loses
packets or is slow. LINKSPAN_NCCL_PLUGIN names it."""

from __future__ import annotations

import base64
import os
import pathlib
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
PLUGIN = os.environ.get("LINKSPAN_NCCL_PLUGIN") or ROOT / "out/release/nccl/libnccl-net-linkspan.so"

sys.path.insert(0, str(ROOT / "tests" / "support"))

from child_process import ChildProcess  # noqa: E402
from two_hosts import ADDRESSES, TwoHosts, may_make_namespaces  # noqa: E402

BIG = 48 << 20  # more than sockets buffer
LARGE = 8 << 20
SOAK_S = 600 if os.environ.get("LINKSPAN_LONG") else 3


class Failed(Exception):
    pass


class Rank(ChildProcess):
    """A rank_process.py; ask() calls a method there."""

    def __init__(
        self, interface: str = "lo", by: Sequence[str] = (), ranks: int = 1, **more: str
    ) -> None:
        super().__init__(
            FOLDER / "rank_process.py", str(PLUGIN), str(ranks),
            path=[os.environ["PYTHONPATH"]], by=by, NCCL_SOCKET_IFNAME=interface, **more,
        )  # fmt: skip
        assert self.read_line() == b"ready"
        self.handle = b""

    def tell(self, method: str, *arguments: Any, number: int = 0) -> None:
        self.write_line(base64.b64encode(pickle.dumps((number, method, arguments))))

    def answer(self) -> Any:
        answer = pickle.loads(base64.b64decode(self.read_line()))
        if "error" in answer:
            raise Failed(answer["error"])
        return answer["result"]

    def ask(self, method: str, *arguments: Any, number: int = 0) -> Any:
        self.tell(method, *arguments, number=number)
        return self.answer()


class Numbered:
    """One rank of several in a process."""

    def __init__(self, process: Rank, number: int) -> None:
        self.process, self.number, self.handle = process, number, b""

    def ask(self, method: str, *arguments: Any) -> Any:
        return self.process.ask(method, *arguments, number=self.number)


class Pair:
    """A sender and a receiver that know each other's memory of `size` bytes."""

    def __init__(
        self, size: int, sender: Rank | Numbered, receiver: Rank | Numbered
    ) -> None:
        self.sender, self.receiver = sender, receiver
        handle = receiver.handle or receiver.ask("listen")
        receiver.handle = handle
        connected = accepted = False
        while not (connected and accepted):
            connected = connected or self.sender.ask("connect", handle)
            accepted = accepted or self.receiver.ask("accept")
        self.sender.ask("register", size, 1)
        self.receiver.ask("register", size, 2)
        self.move(8000)

    def move(self, size: int) -> None:
        self.receiver.ask("receive", size)
        self.sender.ask("send", size)
        left, until = [self.sender, self.receiver], time.monotonic() + 20
        while left:  # a rank goes on in its calls, as NCCL makes them
            left = [rank for rank in left if rank.ask("test", 0.01)[0] != size]
            assert time.monotonic() < until, f"{size} bytes do not come"
        assert self.receiver.ask("differs", 1, size) is None

    def end(self) -> None:
        self.sender.end()
        self.receiver.end()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair(BIG, Rank(), Rank())
    yield made
    made.end()


@pytest.fixture
def hasty_pair() -> Iterator[Pair]:
    """Loses a host after 2 s, and a process that takes no message after 6."""
    limits = {"LINKSPAN_NCCL_PEER_TIMEOUT": "2", "LINKSPAN_NCCL_MESSAGE_TIMEOUT": "6"}
    made = Pair(BIG, Rank(**limits), Rank(**limits))
    yield made
    made.end()


@pytest.fixture
def pair_of_hosts() -> Iterator[Callable[..., tuple[TwoHosts, Pair]]]:
    """Gives a function that makes two hosts, runs commands on them and lets a rank of each meet."""
    if not may_make_namespaces():
        pytest.skip("needs root, `ip`, `nft` and `nsenter`: it makes two network namespaces")
    made: list[Any] = []

    def make(*commands: str, **more: str) -> tuple[TwoHosts, Pair]:
        hosts = TwoHosts()
        made.append(hosts)
        for command in commands:
            for host in ADDRESSES:
                hosts.run(host, command)
        sender, receiver = (Rank("cable", hosts.by(host), **more) for host in ADDRESSES)
        made.insert(0, Pair(LARGE, sender, receiver))
        return hosts, made[0]

    yield make
    for each in made:
        each.end()


def test_a_message(pair: Pair) -> None:
    pair.move(BIG - 7)
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


@pytest.mark.parametrize("size", [BIG, 64 << 10])  # the second one fits into the sockets
def test_a_stopped_receiver_ends_the_message_at_its_limit(hasty_pair: Pair, size: int) -> None:
    hasty_pair.receiver.ask("receive", size)
    hasty_pair.receiver.stop()
    hasty_pair.sender.ask("send", size)
    assert hasty_pair.sender.ask("test", 4)[0] is None, "its host answers"
    with pytest.raises(Failed, match="test answered 6: .*(timed_out|disconnected)"):
        hasty_pair.sender.ask("test", 10)


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


def held_by(rank: Rank) -> tuple[int, int]:
    """Returns its file descriptors and the KiB of its memory."""
    of = pathlib.Path(f"/proc/{rank.process.pid}")
    resident = next(line for line in of.joinpath("status").open() if line.startswith("VmRSS"))
    return len(list(of.joinpath("fd").iterdir())), int(resident.split()[1])


def test_long_use_keeps_nothing(pair: Pair) -> None:
    chosen, ranks = random.Random(1), (pair.sender, pair.receiver)
    for _ in range(50):  # what grows at first
        pair.move(chosen.randrange(1 << 20))
    before, messages = [held_by(rank) for rank in ranks], 0
    until = time.monotonic() + SOAK_S
    while time.monotonic() < until:
        pair.move(chosen.choice([0, 1, 4048, 4049, chosen.randrange(1 << 20)]))
        messages += 1
    for rank, (files, kib) in zip(ranks, before, strict=True):
        after = held_by(rank)
        assert after[0] == files and after[1] < kib + 8192, (messages, before, after)


def test_killed_senders_leave_nothing() -> None:
    receiver, held = Rank(), []
    for _ in range(5):
        pair = Pair(1 << 20, Rank(), receiver)
        receiver.ask("receive", 1 << 20)
        pair.sender.end()
        with pytest.raises(Failed, match="gone"):
            receiver.ask("test", 10)
        receiver.ask("close", True)
        held.append(held_by(receiver)[0])
    assert held[-1] <= held[1], held
    receiver.end()


class Communicators:
    """Pairs of ranks from one process to others."""

    def __init__(self, size: int, *receivers: int) -> None:
        """receivers: how many ranks each of the other processes has."""
        self.near = Rank(ranks=sum(receivers))
        self.far = [Rank(ranks=each) for each in receivers]
        ranks = (Numbered(at, i) for at, many in zip(self.far, receivers) for i in range(many))
        self.pairs = [
            Pair(size, Numbered(self.near, number), far) for number, far in enumerate(ranks)
        ]

    def __enter__(self) -> list[Pair]:
        return self.pairs

    def __exit__(self, *_: object) -> None:
        for each in (self.near, *self.far):
            each.end()


@pytest.mark.parametrize("size", [LARGE, 4000])
def test_a_comm_to_a_stopped_process_is_closed_beside_others(size: int) -> None:
    with Communicators(LARGE, 1, 1) as (stopped, other):
        stopped.receiver.ask("receive", size)
        stopped.receiver.process.stop()
        stopped.sender.ask("send", size)
        stopped.sender.ask("test", 0.2)
        near = stopped.sender.process
        near.ask("close_beside", False)
        begin, moved, longest = time.monotonic(), 0, 0.0
        while not near.ask("is_closed"):  # raises what closing answered
            since = time.monotonic()
            other.move(8000)
            longest, moved = max(longest, time.monotonic() - since), moved + 1
            assert since - begin < 15
        assert longest < 2 and moved > 10, (longest, moved)


@pytest.mark.parametrize("receives", [False, True])
def test_the_other_rank_hears_that_a_comm_is_closed(receives: bool) -> None:
    with Communicators(LARGE, 2) as (closed, other):
        closed.move(LARGE)
        stays, ends = (closed.sender, closed.receiver) if receives else (
            closed.receiver, closed.sender
        )  # fmt: skip
        stays.ask("send" if receives else "receive", LARGE)
        assert stays.ask("test", 0.1)[0] is None
        ends.ask("close", receives)
        with pytest.raises(Failed, match="test answered 6"):
            stays.ask("test", 10)
        other.move(LARGE)


def test_messages_before_a_close_arrive() -> None:
    with Communicators(LARGE, 2) as pairs:
        for pair, size in zip(pairs, (4000, LARGE), strict=True):
            pair.receiver.ask("receive", size)
            pair.sender.ask("send", size)
            assert pair.sender.ask("test", 10)[0] is not None
            pair.sender.ask("close", False)
            time.sleep(0.2)
            assert pair.receiver.ask("test", 10)[0] == size
            assert pair.receiver.ask("differs", 1, size) is None


def test_a_process_that_was_lost_is_met_again_beside_its_old_comms() -> None:
    with Communicators(LARGE, 3) as (lost, other, _):
        lost.receiver.ask("receive", LARGE)
        lost.receiver.process.stop()
        lost.sender.ask("send", LARGE)
        lost.sender.ask("test", 0.5)
        lost.sender.ask("close", False)  # cuts the connections on which it was sent
        lost.receiver.process.go_on()
        time.sleep(1)
        with pytest.raises(Failed):
            other.move(LARGE)  # its connection is gone, and NCCL has not closed it yet
        lost.receiver.ask("close", True)
        Pair(LARGE, lost.sender, lost.receiver)


def test_small_messages_that_nobody_collects_are_bounded_and_come() -> None:
    with Communicators(8192, 36) as pairs:
        sent = []
        for pair in pairs:
            sent.append(0)
            done = True
            while done and sent[-1] < 16:
                pair.sender.ask("send", 4000)
                sent[-1] += 1
                done = pair.sender.ask("test", 0.02)[0] is not None
        assert sent == [16] * 32 + [1] * 4  # 2 MiB of a process to another, then each waits
        for pair, messages in zip(pairs, sent, strict=True):
            for _ in range(messages):
                pair.receiver.ask("receive", 4000)
                if messages == 1:
                    assert pair.sender.ask("test", 10)[0] == 4000
                assert pair.receiver.ask("test", 10)[0] == 4000
                assert pair.receiver.ask("differs", 1, 4000) is None


def test_a_comm_goes_on_beside_others_whose_messages_nobody_collects() -> None:
    with Communicators(8192, 33) as pairs:
        for pair in pairs[:32]:
            for _ in range(16):
                pair.sender.ask("send", 4000)
                assert pair.sender.ask("test", 10)[0] == 4000
        for _ in range(3):
            pairs[32].move(4000)


LOSSY = """nft 'table inet cable { chain in { type filter hook input priority 0;
    iifname "cable" numgen random mod 100 == 0 counter drop; }; }'"""
# Not every kernel has tbf.
SLOW = """tc qdisc add dev cable root tbf rate 200mbit burst 64kb latency 50ms ||
    nft 'table inet cable { chain in { type filter hook input priority 0;
    iifname "cable" limit rate over 20 mbytes/second burst 256 kbytes counter drop; }; }'"""
CUT = """nft 'table inet cut { chain in { type filter hook input priority -1;
    iifname "cable" drop; }; }'"""


@pytest.mark.parametrize("command", [LOSSY, SLOW])
def test_a_bad_cable_brings_every_message(pair_of_hosts: Any, command: str) -> None:
    _, pair = pair_of_hosts(command, LINKSPAN_NCCL_PEER_TIMEOUT="2")
    for size in (LARGE, 1, 4097, LARGE - 3):
        pair.move(size)


def test_a_cut_cable_is_an_error_on_both_sides(pair_of_hosts: Any) -> None:
    hosts, pair = pair_of_hosts(LINKSPAN_NCCL_PEER_TIMEOUT="3")
    pair.receiver.ask("receive", LARGE)
    hosts.run("far", CUT)
    hosts.run("near", CUT)
    begin = time.monotonic()
    pair.sender.ask("send", LARGE)
    for rank in (pair.sender, pair.receiver):
        with pytest.raises(Failed, match="test answered 6: "):
            rank.ask("test", 20)
    assert 2 < time.monotonic() - begin < 10


def test_a_cut_of_a_second_loses_nothing(pair_of_hosts: Any) -> None:
    hosts, pair = pair_of_hosts(LINKSPAN_NCCL_PEER_TIMEOUT="30")
    pair.receiver.ask("receive", LARGE)
    hosts.run("far", CUT)
    pair.sender.ask("send", LARGE)
    assert pair.sender.ask("test", 1)[0] is None
    hosts.run("far", "nft delete table inet cut")
    assert pair.sender.ask("test", 20)[0] is not None
    assert pair.receiver.ask("test", 20)[0] == LARGE
    assert pair.receiver.ask("differs", 1, LARGE) is None
