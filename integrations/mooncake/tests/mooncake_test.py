"""mooncake.engine over linkspan, between processes: each method, what it answers where it fails and
what it logs, and peers that die, stop, restart and are no TransferEngines.

The package linkspan is the one that this process imports; LINKSPAN_CUDA_LIBRARY says which driver.
"""

from __future__ import annotations

import base64
import inspect
import json
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
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

from engine_process import Memory, pattern  # noqa: E402
from mooncake import _ranges, _sessions, engine as module  # noqa: E402
from mooncake.engine import Read, TransferEngine, TransferNotify, Write  # noqa: E402

gpu = pytest.mark.skipif(
    os.environ.get("LINKSPAN_CUDA_LIBRARY", "").startswith("/non"), reason="needs a GPU"
)


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


# ---- moving bytes --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 4097, MIB + 3])
def test_writes_and_reads_between_processes(start: Callable[..., Child], size: int) -> None:
    child, engine = start(), opened()
    there = child.ask("allocate", size + 9, 1)
    here, back = registered(engine, size + 5, 2), registered(engine, size + 9)
    session = child.session
    assert engine.transfer_sync_write(session, here.address + 5, there + 4, size) == 0
    expected = pattern(size + 9, 1)
    expected[4 : 4 + size] = pattern(size + 5, 2)[5:]
    assert (child.read(there) == expected).all()
    assert engine.transfer_sync_read(session, back.address + 1, there + 1, size + 7) == 0
    assert (np.frombuffer(back.read(), np.uint8)[1:-1] == expected[1:-1]).all()
    assert back.data[0] == back.data[-1] == 0
    assert engine.transfer_sync(session, back.address, there, 1, Read) == 0
    assert back.data[0] == expected[0]


def test_a_batch_of_blocks_of_many_ranges(start: Callable[..., Child]) -> None:
    child, engine = start(), opened()
    sizes = [30_000, 41_111, 1, 52_003]
    theirs = [child.ask("allocate", size) for size in sizes]
    mine = [registered(engine, size, seed) for seed, size in enumerate(sizes[::-1], 1)]
    generator = np.random.default_rng(5)
    blocks, expected = [], [np.zeros(size, np.uint8) for size in sizes]
    for target, size in enumerate(sizes):  # disjoint there, anywhere here
        for begin in range(0, size, 1000):
            source = int(generator.choice([0, 2, 3]))
            length = int(generator.integers(1, min(1000, size - begin) + 1))
            at = int(generator.integers(0, mine[source].bytes - length + 1))
            blocks.append((mine[source].address + at, theirs[target] + begin, length))
            expected[target][begin : begin + length] = mine[source].data[at : at + length]
    generator.shuffle(blocks)
    buffers, peers, lengths = map(list, zip(*blocks))
    buffers, peers, lengths = buffers + [7], peers + [9], lengths + [0]  # no bytes, so anywhere
    assert engine.batch_transfer_sync_write(child.session, buffers, peers, lengths) == 0
    for address, bytes_there in zip(theirs, expected):
        assert (child.read(address) == bytes_there).all()
    backs = [registered(engine, size) for size in sizes]
    whole = [each.address for each in backs], theirs, np.array(sizes)  # an array will do as well
    assert engine.batch_transfer_sync_read(child.session, *whole) == 0
    for back, bytes_there in zip(backs, expected):
        assert back.read() == bytes_there.tobytes()
    assert engine.batch_transfer_sync(child.session, *whole, Write) == 0
    assert engine.batch_transfer_sync(child.session, [], [], [], Write) == 0


def test_batches_in_flight(
    start: Callable[..., Child], caplog: pytest.LogCaptureFixture
) -> None:
    child, engine = start(), opened()
    there = child.ask("allocate", MIB)
    here, back = registered(engine, MIB, 3), registered(engine, MIB)
    half, at = [MIB // 2], child.session
    ids = [
        engine.batch_transfer_async_write(at, [here.address], [there], half),
        engine.batch_transfer_async(
            at, [here.address + half[0]], [there + half[0]], half, opcode=Write
        ),
    ]
    assert 0 < ids[0] < ids[1]
    assert engine.get_batch_transfer_status(ids) == 0
    assert engine.get_batch_transfer_status(ids) == -1
    refused(caplog, f"batch {ids[1]}", "never started")
    assert engine.get_batch_transfer_status([]) == 0
    one = engine.batch_transfer_async_read(at, [back.address], [there], [MIB])
    assert until_done(engine, one) == 1 and back.read() == here.read()
    assert engine.transfer_check_status(one) == -1
    refused(caplog, f"no such batch: {one}")
    nothing = engine.transfer_submit_write(at, here.address, there, 0)
    assert engine.transfer_check_status(nothing) == 1
    assert engine.transfer_submit_write(at, here.address, there - 1, 1) == -1
    assert engine.batch_transfer_async_write(at, [here.address - 1], [there], [1]) == 0
    assert engine.get_batch_transfer_status([0]) == -1


def until_done(engine: TransferEngine, batch_id: int) -> int:
    until = time.monotonic() + ANSWER_S
    while time.monotonic() < until:
        if code := engine.transfer_check_status(batch_id):
            return code
    raise AssertionError(f"not done in {ANSWER_S} s")


def test_notifies_come_after_the_bytes(
    start: Callable[..., Child], caplog: pytest.LogCaptureFixture
) -> None:
    child, engine = start(), opened()
    there, mine = child.ask("allocate", 9), registered(engine, 9)
    notify = TransferNotify(name="größe", msg="")
    here = registered(engine, 9, 4)
    assert engine.transfer_sync(child.session, here.address, there, 9, Write, notify) == 0
    empty = TransferNotify()
    notify.msg = "second"
    assert engine.transfer_sync(child.session, here.address, there, 0, Write, empty) == 0
    arguments = [here.address], [there], [9], Write, notify
    assert engine.batch_transfer_sync(child.session, *arguments) == 0
    came: list = []
    until = time.monotonic() + ANSWER_S
    while len(came) < 3 and time.monotonic() < until:
        came += child.ask("notifies")
    assert came == [["größe", ""], ["", ""], ["größe", "second"]]
    assert (child.read(there) == here.data).all()
    assert child.ask("write_and_notify", session_of(engine), there, mine.address, 9, "name") == 0
    waited: list[TransferNotify] = []
    while not waited and time.monotonic() < until:
        waited = engine.get_notifies()
    assert repr(waited) == "[TransferNotify(name='name', msg='message')]"
    assert mine.read() == here.read() and engine.get_notifies() == []
    with linkspan.Engine("no TransferEngine") as other:
        peer = other.connect(engine.get_engine().address)
        peer.notify(b"\0\0\1\0short")
        peer.notify(b"\0\0\0\1\xff")
        while len(caplog.records) < 2 and time.monotonic() < until:
            assert engine.get_notifies() == []
    refused(caplog, "get_notifies", "can't decode")
    assert "9 bytes are no notification of a TransferEngine" in caplog.text


def test_managed_buffers_and_bytes(caplog: pytest.LogCaptureFixture) -> None:
    engine, other = opened(), opened()
    address = engine.allocate_managed_buffer(1001)
    assert engine.read_bytes_from_buffer(address, 1001) == bytes(1001)
    assert engine.write_bytes_to_buffer(address + 1, b"a\0b", 3) == 0
    assert engine.write_bytes_to_buffer(address + 4, "cd", 1) == 0
    back = registered(other, 5)
    assert other.get_first_buffer_address(session_of(engine)) == address
    assert other.transfer_sync_read(session_of(engine), back.address, address, 5) == 0
    assert back.read() == b"\0a\0bc"
    assert engine.write_bytes_to_buffer(address + 1000, b"ab", 2) == -3
    refused(caplog, f"{address + 1000:#x}", "register_memory()")
    assert engine.write_bytes_to_buffer(address, b"ab", 3) == -1
    refused(caplog, "length 3 of a source of 2 bytes")
    assert engine.read_bytes_from_buffer(16, 2) == b""
    assert engine.free_managed_buffer(address, 1001) == 0
    assert engine.free_managed_buffer(address, 1001) == -3
    assert engine.allocate_managed_buffer(0) == 0
    assert other.get_first_buffer_address(session_of(engine)) == 0


@gpu
def test_gpu_memory_of_two_processes(
    start: Callable[..., Child], caplog: pytest.LogCaptureFixture
) -> None:
    child, engine = start(), opened()
    there = child.ask("allocate_gpu", 70_001, 6)
    back = registered(engine, 70_001)
    blocks = [back.address + 3, back.address], [there + 3, there], [69_998, 3]
    assert engine.batch_transfer_sync_read(child.session, *blocks) == 0
    assert back.read() == pattern(70_001, 6).tobytes()
    assert engine.transfer_sync_write(child.session, back.address, there + 10, 1000) == 0
    expected = pattern(70_001, 6)
    expected[10:1010] = expected[:1000].copy()
    assert (child.read(there) == expected).all()
    assert child.ask("write_bytes_to_buffer", there, "a", 1) == -1
    assert child.ask("unregister_memory", there) == 0  # although this side has mapped it
    assert engine.transfer_sync_write(child.session, back.address, there, 1) == -3


# ---- memory that comes and goes ------------------------------------------------------------------


def test_ranges_that_come_after_the_peer_has_connected(start: Callable[..., Child]) -> None:
    child, engine = start(), opened()
    here = registered(engine, 100, 7)
    assert engine.send_probe(child.session) == 0
    assert engine.get_first_buffer_address(child.session) == 0
    first = child.ask("allocate", 100)
    assert engine.transfer_sync_write(child.session, here.address, first, 100) == 0
    assert engine.get_first_buffer_address(child.session) == first
    second = child.ask("allocate", 100, None, False)
    assert engine.transfer_sync_write(child.session, here.address, second, 100) == -3
    assert child.ask("batch_register_memory", [second], [100]) == 0
    assert engine.transfer_sync_write(child.session, here.address, second, 100) == 0
    assert (child.read(second) == here.data).all()


def test_ranges_that_are_registered_anew(start: Callable[..., Child]) -> None:
    child, engine = start(), opened()
    here = registered(engine, 300, 8)
    there = child.ask("allocate", 300, None, False)
    for address, size in ((there, 100), (there, 300), (there + 50, 100), (there, 300)):
        assert child.ask("register_memory", address, size) == 0
        assert engine.transfer_sync_write(child.session, here.address, address, size) == 0
        batch = engine.batch_transfer_async_write(child.session, [here.address], [address], [size])
        assert engine.get_batch_transfer_status([batch]) == 0
        assert child.ask("unregister_memory", address) == 0
    assert (child.read(there) == here.data).all()
    assert engine.transfer_sync_write(child.session, here.address, there, 1) == -3
    address = here.address
    assert engine.unregister_memory(address) == 0
    assert engine.register_memory(address + 1, 299) == 0
    assert engine.register_memory(address, 1) == 0  # a neighbour
    assert child.ask("register_memory", there, 300) == 0
    assert engine.transfer_sync_write(child.session, address, there + 1, 1) == 0
    assert engine.transfer_sync_write(child.session, address, there, 2) == -3


def test_what_is_not_registered(
    start: Callable[..., Child], caplog: pytest.LogCaptureFixture
) -> None:
    child, engine = start(), opened()
    here = registered(engine, 100, 9)
    assert engine.transfer_sync_write(child.session, here.address, 4096, 1) == -3
    refused(caplog, child.session, "[0x1000, 0x1001)", "none of the 0 registered ranges")
    there = child.ask("allocate", 100)
    for address, size in (
        (there - 1, 2), (there + 99, 2), (there + 100, 1), (0, 1), (2**64 - 1, 1),
        (there, 2**64 - 1), (2**63 + 5, 2**63), (there + 2**63, 1),
    ):  # fmt: skip
        assert engine.transfer_sync_write(child.session, here.address, address, size) == -3, address
        assert engine.transfer_sync_read(child.session, address, there, size) == -3, address
    refused(caplog, f"[{there + 2**63:#x}, ", "of this process", "register_memory()", "nearest of 1")
    batch = [here.address] * 3, [there, there + 99, there], [1, 5, 1]
    assert engine.batch_transfer_sync_read(child.session, *batch) == -3
    refused(caplog, f"block 1, [{there + 99:#x}, {there + 104:#x})")
    assert not child.read(there).any()


@pytest.mark.parametrize(
    "lists",
    [([1], [1], [1, 2]), ([-1], [1], [1]), ([1.5], [1], [1]), (["1"], [1], [1]), (5, [1], [1]),
     ([2**64], [1], [1]), ([None], [1], [1])],
)  # fmt: skip
def test_what_is_no_list_of_numbers(lists: tuple, caplog: pytest.LogCaptureFixture) -> None:
    engine = opened()
    assert engine.batch_transfer_sync_write(session_of(engine), *lists) == -1
    refused(caplog, "give")


def test_registering(caplog: pytest.LogCaptureFixture) -> None:
    engine = opened()
    memory = registered(engine, 100)
    end = memory.address + 100
    for address, size in ((end - 100, 100), (end - 100, 1), (end - 1, 1), (end - 130, 200)):
        assert engine.register_memory(address, size) == -7
        refused(caplog, f"[{end - 100:#x}, {end:#x})", "overlap", "unregister_memory()")
    for address, size in ((end, 0), (0, 5), (2**64 - 1, 2), (-4, 2), (end, -1)):
        assert engine.register_memory(address, size) == -1
        refused(caplog, f"{address:#x} with {size} bytes")
    assert engine.register_memory(4096, 10) == -1  # nothing is mapped there
    others = [Memory(50), Memory(50)]
    both = [each.address for each in others]
    assert engine.batch_register_memory(both + [end - 1], [50, 50, 1]) == -7
    assert engine.batch_register_memory(both + [4096], [50, 50, 1]) == -1
    assert engine.batch_register_memory(both, [50]) == -1
    refused(caplog, "2 buffer_addresses, 1 capacities")
    assert engine.batch_register_memory([both[0], both[0]], [50, 50]) == -7
    assert engine.batch_register_memory(both, [50, 50]) == 0  # none of them was left
    assert engine.batch_unregister_memory(both + [4096]) == -3
    refused(caplog, "begins at 0x1000")
    assert engine.batch_unregister_memory(both) == 0
    assert engine.batch_unregister_memory(both) == -3
    for address in (end - 99, -5, 2**64):
        assert engine.unregister_memory(address) == -3
        refused(caplog, f"begins at {address:#x}", "registered range")
    assert engine.unregister_memory(end - 100) == 0
    assert engine.register_memory(end - 130, 160) == 0


def test_thousands_of_ranges(start: Callable[..., Child]) -> None:
    child, engine = start(), opened()
    count, step = 3000, 40
    here, there = Memory(count * step, 10), child.ask("allocate", count * step, None, False)
    offsets, sizes = (np.arange(count) * step).tolist(), [step - 1] * count  # with gaps
    mine, theirs = ([base + each for each in offsets] for base in (here.address, there))
    assert engine.batch_register_memory(mine, sizes) == 0
    assert child.ask("batch_register_memory", theirs, sizes) == 0
    assert engine.batch_transfer_sync_write(child.session, mine, theirs[::-1], sizes) == 0
    expected = here.data.reshape(count, step)[::-1].copy()
    expected[:, -1] = 0
    assert (child.read(there).reshape(count, step) == expected).all()
    assert child.ask("batch_unregister_memory", theirs) == 0
    assert engine.batch_transfer_sync_write(child.session, mine, theirs, sizes) == -3


def test_unregistering_in_flight_leaves_the_memory_alone(start: Callable[..., Child]) -> None:
    child, engine = start(), opened()
    size = 64 * MIB
    there = child.ask("allocate", size, 11)
    for _ in range(4):
        memory = registered(engine, size)
        child.tell("transfer_sync_write", session_of(engine), there, memory.address, size)
        until = time.monotonic() + ANSWER_S
        while not memory.data[0] and time.monotonic() < until:
            pass  # it has begun
        assert engine.unregister_memory(memory.address) == 0
        memory.data[:] = 0
        assert child.answer() in (0, -1)
        assert not memory.data.any()


# ---- peers ---------------------------------------------------------------------------------------


def test_a_peer_that_is_killed(
    start: Callable[..., Child], caplog: pytest.LogCaptureFixture
) -> None:
    child, other, engine = start(), start(), opened()
    size = 64 * MIB
    there, elsewhere = child.ask("allocate", size), other.ask("allocate", 100)
    here = registered(engine, size, 12)
    assert engine.transfer_sync_write(child.session, here.address, there, 1) == 0
    batches = [
        engine.batch_transfer_async_read(child.session, [here.address], [there], [size])
        for _ in range(20)
    ]
    killer = threading.Thread(target=child.process.kill)
    killer.start()
    begin = time.monotonic()
    assert engine.get_batch_transfer_status(batches) == -1
    assert engine.transfer_sync_write(child.session, here.address, there, 1) < 0
    assert engine.send_probe(child.session) == -1
    assert time.monotonic() - begin < 1
    killer.join(ANSWER_S)
    refused(caplog, child.session)
    assert engine.transfer_sync_write(other.session, here.address, elsewhere, 100) == 0


def test_a_peer_that_restarts_at_its_port(start: Callable[..., Child]) -> None:
    child, engine = start(), opened()
    here = registered(engine, 100, 13)
    there = child.ask("allocate", 100)
    assert engine.transfer_sync_write(child.session, here.address, there, 100) == 0
    child.end()
    again = start(child.session)
    assert again.session == child.session
    other = again.ask("allocate", 100, 14)
    if other != there:  # what the first life had registered
        assert engine.transfer_sync_write(child.session, here.address, there, 1) < 0
    assert engine.transfer_sync_write(child.session, here.address + 1, other + 1, 98) == 0
    expected = pattern(100, 14)
    expected[1:99] = here.data[1:99]
    assert (again.read(other) == expected).all()


def test_a_peer_that_is_stopped(
    start: Callable[..., Child], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_ranges, "_LOOKUP_S", 0.2)
    monkeypatch.setattr(_sessions, "_CONNECT_S", 0.2)
    child, engine = start(), opened()
    there, memory = child.ask("allocate", 100), registered(engine, 100, 15)
    assert engine.transfer_sync_write(child.session, memory.address, there, 100) == 0
    child.process.send_signal(signal.SIGSTOP)
    assert engine.send_probe(child.session) == -1
    assert opened().send_probe(child.session) == -1
    refused(caplog, child.session)
    child.process.send_signal(signal.SIGCONT)
    assert (child.read(there) == memory.data).all()
    assert engine.send_probe(child.session) == 0


def test_memory_that_a_stopped_peer_uses_is_busy(
    start: Callable[..., Child], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_ranges, "_UNREGISTER_S", 0.2)
    child, engine = start(), opened()
    there, memory = child.ask("allocate", 100, 16), engine.allocate_managed_buffer(100)
    assert child.ask("transfer_sync_write", session_of(engine), there, memory, 100) == 0
    child.process.send_signal(signal.SIGSTOP)
    assert engine.unregister_memory(memory) == -4
    refused(caplog, f"{memory:#x}", "call unregister_memory() again")
    child.process.send_signal(signal.SIGCONT)
    monkeypatch.setattr(_ranges, "_UNREGISTER_S", 10)
    assert engine.unregister_memory(memory) == 0
    assert engine.unregister_memory(memory) == -3


def test_two_engines_of_a_process_and_threads() -> None:
    here, there = opened(), opened("localhost")
    assert here.get_rpc_port() != there.get_rpc_port()
    size, threads = 10_000, 8
    mine, theirs = registered(here, threads * size, 17), registered(there, threads * size)
    spare = [Memory(100) for _ in range(threads)]
    codes: list[list[int]] = [[] for _ in range(threads)]

    def work(index: int) -> None:
        at, session = index * size, session_of(there)
        begin = threading.Barrier.wait  # all connect at once
        begin(barrier, ANSWER_S)
        for step in range(0, size, 500):
            blocks = mine.address + at + step, theirs.address + at + step, 500
            codes[index].append(here.transfer_sync_write(session, *blocks))
            codes[index].append(there.register_memory(spare[index].address, 100))
            codes[index].append(there.unregister_memory(spare[index].address))

    barrier = threading.Barrier(threads)
    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(ANSWER_S)
    assert codes == [[0] * (3 * size // 500)] * threads
    assert theirs.read() == mine.read()
    assert len(here.get_engine().peers()) == 1


@pytest.mark.parametrize(
    "session, why",
    [
        ("127.0.0.1", "has no port"),
        ("127.0.0.1:0", "has no port"),
        ("127.0.0.1:65536", 'give "host:port"'),
        ("../etc:5", 'give "host:port"'),
        (":5", 'give "host:port"'),
        ("", 'give "host:port"'),
        ("[::1]:1", "no engine answers"),
        ("fe80::1", "has no port"),
        ("10.255.255.1:5", "LINKSPAN_SECRET_FILE"),
    ],
)
def test_a_session_of_nobody(session: str, why: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = opened()
    assert engine.send_probe(session) == -1
    refused(caplog, session, why)
    memory = registered(engine, 1)
    assert engine.transfer_sync_read(session, memory.address, 1, 1) == -1
    assert engine.get_first_buffer_address(session) == 0
    refused(caplog, "get_first_buffer_address", session)


@pytest.mark.parametrize(
    "index, why",
    [
        (b"", "no TransferEngine"),
        (bytes(25), "has an index of 25 bytes"),
        (bytes(48), "of another release"),
    ],
)
def test_a_peer_that_is_no_transfer_engine(
    index: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine, memory = opened(), Memory(1)
    assert engine.register_memory(memory.address, 1) == 0
    with linkspan.Engine("other") as other:
        other.listen("mooncake-127.0.0.1-9")
        if index:
            other.publish("mooncake", other.register_memory(bytearray(index)))
        assert engine.transfer_sync_write("127.0.0.1:9", memory.address, 1, 1) == -1
        refused(caplog, why)
        assert engine.send_probe("127.0.0.1:9") == -1


# ---- other hosts ---------------------------------------------------------------------------------


def folder_of_others(socket_folder: str) -> str:
    path = pathlib.Path(socket_folder) / "other"
    path.mkdir(mode=0o700)
    return str(path)


@pytest.mark.parametrize("security", ["authenticated", "encrypted"])
def test_by_tcp_with_a_secret(
    start: Callable[..., Child], socket_folder: str, monkeypatch: pytest.MonkeyPatch, security: str
) -> None:
    monkeypatch.setenv("LINKSPAN_SECRET", "a secret of the tests")
    monkeypatch.setenv("LINKSPAN_SECURITY", security)
    child = start(LINKSPAN_SOCKET_DIR=folder_of_others(socket_folder))
    engine, size = opened("127.0.0.1:0"), 300_001
    there, here = child.ask("allocate", size), registered(engine, size, 18)
    assert engine.transfer_sync_write(child.session, here.address, there, size) == 0
    assert (child.read(there) == here.data).all()
    assert child.ask("transfer_sync_write", session_of(engine), there + 1, here.address, 9) == 0
    batches = [
        engine.batch_transfer_async_read(child.session, [here.address], [there], [size])
        for _ in range(50)
    ]
    begin = time.monotonic()
    child.process.kill()
    assert engine.get_batch_transfer_status(batches) in (0, -1)
    assert engine.transfer_sync_read(child.session, here.address, there, size) < 0
    assert time.monotonic() - begin < 1
    again = start(child.session, LINKSPAN_SOCKET_DIR=f"{socket_folder}/other")
    there = again.ask("allocate", 100, 19)
    assert engine.transfer_sync_read(again.session, here.address, there, 100) == 0
    assert (here.data[:100] == pattern(100, 19)).all()


def test_by_tcp_with_another_secret_or_none(
    start: Callable[..., Child], socket_folder: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    folder = folder_of_others(socket_folder)
    child = start(LINKSPAN_SOCKET_DIR=folder, LINKSPAN_SECRET="a secret of the tests")
    alone = start(LINKSPAN_SOCKET_DIR=folder)
    assert opened().send_probe(child.session) == -1
    refused(caplog, child.session, "not by TCP, which needs LINKSPAN_SECRET_FILE")
    monkeypatch.setenv("LINKSPAN_SECRET", "another of the tests")
    engine = opened()
    assert engine.send_probe(child.session) == -1
    refused(caplog, f"tcp:{child.session}", "secret")
    assert engine.send_probe(alone.session) == -1  # it has no port that is open
    refused(caplog, f"tcp:{alone.session}", "refused")


# ---- opening -------------------------------------------------------------------------------------


def test_opening(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    engine = TransferEngine()
    for name, arguments in (
        ("get_rpc_port", ()), ("register_memory", (1, 1)), ("unregister_memory", (1,)),
        ("batch_register_memory", ([1], [1])), ("batch_unregister_memory", ([1],)),
        ("transfer_sync_write", ("a:1", 1, 1, 1)), ("transfer_sync_read", ("a:1", 1, 1, 1)),
        ("batch_transfer_sync_write", ("a:1", [1], [1], [1])), ("send_probe", ("a:1",)),
        ("free_managed_buffer", (1, 1)), ("write_bytes_to_buffer", (1, b"a", 1)),
        ("transfer_submit_write", ("a:1", 1, 1, 1)), ("get_batch_transfer_status", ([1],)),
        ("transfer_check_status", (1,)),
    ):  # fmt: skip
        assert getattr(engine, name)(*arguments) < 0, name
    for name, arguments, failed in (
        ("get_engine", (), None), ("get_first_buffer_address", ("a:1",), 0), ("get_notifies", (), []),
        ("allocate_managed_buffer", (5,), 0), ("read_bytes_from_buffer", (1, 1), b""),
        ("batch_transfer_async_read", ("a:1", [1], [1], [1]), 0),
    ):  # fmt: skip
        assert getattr(engine, name)(*arguments) == failed
        refused(caplog, "call initialize() first")
    for host in ("", "a/b", "127.0.0.1:99999", ":7"):
        assert engine.initialize(host, "P2PHANDSHAKE", "tcp", "") == -1
        refused(caplog, f'local_hostname "{host}"')
    assert engine.initialize("127.0.0.1", "etcd://127.0.0.1:2379", "tcp", "") == -1
    refused(caplog, "etcd://127.0.0.1:2379", "P2PHANDSHAKE")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert engine.initialize(f"127.0.0.1:{port}", "P2PHANDSHAKE", "tcp", "") == -1
        refused(caplog, f"port {port} is taken")
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "soon")
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1
    refused(caplog, 'MC_TRANSFER_TIMEOUT="soon"')
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "7")
    monkeypatch.setenv("LINKSPAN_SECURITY", "encrypted")
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1
    refused(caplog, "secret")
    monkeypatch.delenv("LINKSPAN_SECURITY")
    assert engine.initialize_ext(f"[::1]:{port}", "P2PHANDSHAKE", "rdma", "mlx5_0", "etcd") == 0
    assert engine.get_rpc_port() == port
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1
    refused(caplog, "was called before")
    memory, other = registered(engine, 5), opened("::1")
    back = registered(other, 5, 20)
    for session in (f"[::1]:{port}", f"localhost:{port}"):
        assert other.transfer_sync_write(session, back.address, memory.address, 5) == 0
    assert memory.read() == back.read()
    assert engine.batch_transfer_sync("a:1", [1], [1], [1], 7) == -1
    refused(caplog, "opcode 7", "TransferOpcode.Read")


def test_an_engine_that_is_dropped_is_closed() -> None:
    engine, other = opened(), opened()
    session = session_of(engine)
    assert other.send_probe(session) == 0
    del engine
    assert other.send_probe(session) == -1
    again = opened(session)  # its port is free
    assert session_of(again) == session and other.send_probe(session) == 0


def test_has_the_names_of_mooncake() -> None:
    for name, parameters in {
        "transfer_sync_write": "target_hostname buffer peer_buffer_address length transport_hint",
        "batch_transfer_sync": "target_hostname buffers peer_buffer_addresses lengths opcode notify"
        " transport_hint",
        "batch_transfer_async_write": "target_hostname buffers peer_buffer_addresses lengths"
        " transport_hint",
        "register_memory": "buffer_addr capacity location",
        "batch_register_memory": "buffer_addresses capacities location",
        "send_probe": "peer_server_name",
    }.items():
        found = inspect.signature(getattr(TransferEngine, name)).parameters
        assert list(found) == ["self", *parameters.split()]
    assert module.TransferOpcode.Read == module.TransferOpcode.READ == Read == 0
    assert module.TransferOpcode.Write == Write == 1


def run(code: str, *path: pathlib.Path | str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=ANSWER_S,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))},
    )  # fmt: skip


def test_importing(tmp_path: pathlib.Path) -> None:
    without = run("from mooncake.engine import TransferEngine", FOLDER, tmp_path)
    if "ImportError" in without.stderr:  # else linkspan is installed
        assert re.search("needs the package linkspan: pip install it.*./dev build", without.stderr)
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake" / "__init__.py").write_text("")
    (tmp_path / "mooncake" / "store.py").write_text("NAME = 'the real one'")
    beside = run(
        "from mooncake import engine, store; print(store.NAME, engine.__file__)",
        FOLDER, tmp_path, PACKAGES,
    )  # fmt: skip
    assert beside.stdout == f"the real one {FOLDER}/mooncake/engine.py\n"


def test_example() -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "example.py"], capture_output=True, text=True, timeout=ANSWER_S,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(FOLDER), PACKAGES))},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "") and "8 pages" in done.stdout, done.stderr
