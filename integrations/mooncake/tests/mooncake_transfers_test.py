"""The transfers of mooncake.engine between processes: the bytes they move, what they answer."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import linkspan
import numpy as np
import pytest
from engines import (  # noqa: F401
    ANSWER_S,
    MIB,
    Child,
    opened,
    pattern,
    refused,
    registered,
    session_of,
    socket_folder,
    start,
)

from mooncake import _transfers
from mooncake._ranges import Ranges
from mooncake.engine import Read, TransferEngine, TransferNotify, Write


def has_driver() -> bool:
    try:
        ctypes.CDLL(os.environ.get("LINKSPAN_CUDA_LIBRARY", "libcuda.so.1"))
    except OSError:
        return False
    return True


gpu = pytest.mark.skipif(not has_driver(), reason="needs a GPU")


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


def test_batches_in_flight(start: Callable[..., Child], caplog: pytest.LogCaptureFixture) -> None:
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


class Failed:
    """A transfer whose wait() raises."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def done(self) -> bool:
        return True

    def wait(self, timeout: float) -> None:
        assert timeout >= 12  # its own deadline and a while
        raise self._error


def test_a_transfer_that_times_out(caplog: pytest.LogCaptureFixture) -> None:
    engine = opened()
    for error, code, text in (
        (linkspan.TimedOutError("the deadline passed"), -2, "the deadline passed"),
        (TimeoutError("pending"), -1, "5.0 s after its deadline (pending): keep its memory"),
    ):
        engine._batches[7] = _transfers.Started(None, None, Failed(error), 7)
        assert engine.transfer_check_status(7) == code
        refused(caplog, text)
        engine._batches[7] = _transfers.Started(None, None, Failed(error), 7)
        assert engine.get_batch_transfer_status([7]) == -1
        refused(caplog, "batch 7", text)


def test_a_range_that_was_stale_when_the_transfer_ran(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine, other = opened(), opened()
    here, there = registered(engine, 9, 22), registered(other, 9)
    blocks = session_of(other), here.address, there.address, 9
    real, old = engine._transfers.start, Ranges(np.empty((0, 3), np.uint64))
    gone = Failed(linkspan.UnreachableError("the peer has deregistered the region"))
    for used, code in ((old, 0), (None, -1)):  # None: the ranges are as they were
        outcomes = [gone]

        def start(*arguments: Any) -> _transfers.Started:
            started = real(*arguments)
            stale = started._replace(ranges=started.ranges if used is None else used, transfer=gone)
            return stale if outcomes and outcomes.pop() else started

        monkeypatch.setattr(engine._transfers, "start", start)
        assert engine.transfer_sync_write(*blocks) == code
    refused(caplog, "the peer has deregistered the region")
    assert there.read() == here.read()


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
    long = TransferNotify("long", 70_000 * "x")
    assert engine.transfer_sync(child.session, here.address, there, 9, Write, long) == -1
    refused(caplog, "70008")
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
