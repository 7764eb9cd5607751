"""The memory of mooncake.engine: ranges that come, go, overlap and are not registered."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import linkspan
import numpy as np
import pytest
from engines import (  # noqa: F401
    ANSWER_S,
    MIB,
    Child,
    Memory,
    opened,
    refused,
    registered,
    session_of,
    socket_folder,
    start,
)


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
    assert not engine._sessions.get(child.session)._imported  # what has ended is not kept
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
    refused(caplog, f"[{there + 2**63:#x}, ", "of this process", "register_memory()", "of 1 reg")
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


class Refused:
    """The Future of a call that found too many others."""

    def done(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> None:
        raise linkspan.NoResourceError("1024 calls of its kind are outstanding")


def test_indexes_whose_end_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = opened()
    with monkeypatch.context() as refusing:
        refusing.setattr(engine.get_engine(), "invalidate_async", lambda *_: Refused())
        memories = [registered(engine, 100) for _ in range(20)]
    assert engine.batch_unregister_memory([each.address for each in memories]) == 0
    until = time.monotonic() + ANSWER_S
    left = r"linkspan_regions\{.*\} 1\n"  # the last index
    while not re.search(left, engine.get_engine().metrics()):
        assert time.monotonic() < until, engine.get_engine().metrics()


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
