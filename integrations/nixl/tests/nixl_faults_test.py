"""Killed, stopped and restarted peers, early releases, forks and wrong input."""

from __future__ import annotations

import re
import time

import pytest
from agents import Failed, Pair, idle_processes, start  # noqa: F401

BIG = 16 << 20  # more than sockets buffer
MANY = 1100  # an Engine has 1024 calls of a kind


def in_flight(start) -> tuple[Pair, int]:  # noqa: F811
    """A pair whose peer is stopped while a's write to it is under way, and the handle of that."""
    pair = Pair(start, BIG, network=True)
    pair.check()
    pair.b.stop()
    handle = pair.write()
    pair.a.ask("post", "a", handle)
    assert pair.a.ask("state", "a", handle) == "PROC"
    return pair, handle


def test_a_killed_peer(start) -> None:  # noqa: F811
    pair = Pair(start)
    pair.check()
    pair.b.end()
    handle = pair.write()
    try:
        pair.a.ask("post", "a", handle)
    except Failed as error:
        assert "nixlRemoteDisconnectError" in str(error)
    state, seconds = pair.a.ask("wait", "a", handle)
    assert state == "nixlRemoteDisconnectError" and seconds < 1
    with pytest.raises(Failed, match="nixlRemoteDisconnectError"):
        pair.a.ask("notify", "a", "b", b"to nobody")
    assert pair.a.ask("said").count('a write to agent "b"') == 1  # however often it is checked


def test_a_peer_killed_in_flight(start) -> None:  # noqa: F811
    pair, handle = in_flight(start)
    pair.b.end()
    state, seconds = pair.a.ask("wait", "a", handle)
    assert state == "nixlRemoteDisconnectError" and seconds < 1
    assert pair.a.ask("release", "a", handle)[1] < 1


def test_a_peer_that_restarts_under_its_name(start) -> None:  # noqa: F811
    pair = Pair(start)
    pair.check()
    first = pair.write()
    pair.b.end()
    pair.b = start()
    pair.b.ask("open", "b")
    pair.there = pair.b.ask("register", "b", pair.size)
    pair.a.ask("remove", "a", "b")
    assert pair.a.ask("add", "a", pair.b.ask("metadata", "b")) == "b"
    pair.check()
    with pytest.raises(Failed, match="nixl"):  # of the first process, which never comes back
        pair.a.ask("post", "a", first)


def test_release_in_flight(start) -> None:  # noqa: F811
    pair, handle = in_flight(start)
    _, seconds = pair.a.ask("release", "a", handle)
    assert seconds < 5
    pair.a.ask("fill", pair.here[0], 3)  # the pages are free
    pair.b.go_on()
    before = pair.b.ask("digest", pair.there[0])
    assert pair.b.ask("notifications", "b", 1, 0.2) == {}
    assert pair.b.ask("digest", pair.there[0]) == before


def test_a_stopped_peer(start) -> None:  # noqa: F811
    pair = Pair(start, BIG, network=True, deadline_s="0.5")
    pair.check()
    pair.b.stop()
    handle = pair.write()
    pair.a.ask("post", "a", handle)
    state, seconds = pair.a.ask("wait", "a", handle)  # its memory is quiet only after 5 s
    assert state == "nixlRemoteDisconnectError" and seconds < 8
    said = pair.a.ask("said")
    assert re.search(r'a write to agent "b" of \d+ bytes failed: disconnected', said)


def test_a_transfer_that_cannot_start_before_its_deadline(start) -> None:  # noqa: F811
    a, b = start(), start()
    a.ask("open", "a", deadline_s="0.3")
    b.ask("open", "b")
    here, there = a.ask("register", "a", 99), b.ask("register", "b", 99)
    metadata = b.ask("metadata", "b")
    b.stop()
    a.ask("add", "a", metadata)
    handle = a.ask("prepare", "a", "WRITE", "b", [(here[0], 99)], [(there[0], 99)])
    a.ask("post", "a", handle)
    state, seconds = a.ask("wait", "a", handle)
    assert "ancel" in state and seconds < 2, state
    assert "could not start before its deadline" in a.ask("said")


def test_deregistering_in_flight(start) -> None:  # noqa: F811
    pair = Pair(start, BIG, network=True)
    pair.check()
    pair.b.stop()
    handle = pair.write()
    pair.a.ask("post", "a", handle)
    assert pair.a.ask("deregister", "a", pair.here[0]) < 1
    state, _ = pair.a.ask("wait", "a", handle)
    assert "ancel" in state, state
    pair.b.go_on()


def idle_reads(pair: Pair) -> float:
    """Returns the reads that a makes in a second while nothing asks it, once it has made all calls.
    Their number does not depend on the CPU's speed, as CPU time does."""
    time.sleep(1)
    before, began = pair.a.ask("reads")
    time.sleep(1)
    after, ended = pair.a.ask("reads")
    return (after - before) / (ended - began)


def test_deregistering_more_than_an_engine_ends_at_once(start) -> None:  # noqa: F811
    pair = Pair(start, BIG // 1024, MANY, network=True)
    pair.check()
    handle = pair.write_all()
    pair.a.ask("post", "a", handle)
    assert pair.a.ask("wait", "a", handle)[0] == "DONE"  # all is imported
    pair.b.stop()
    pair.a.ask("post", "a", handle)
    assert pair.a.ask("deregister", "a", pair.here[0]) < 2
    assert idle_reads(pair) < 5 * MANY
    assert pair.a.ask("said").count("\n") < 3 * MANY


def test_importing_more_than_an_engine_looks_up_at_once(start) -> None:  # noqa: F811
    pair = Pair(start, 64, MANY)
    pair.check()
    pair.b.stop()
    handle = pair.write_all()
    pair.a.ask("post", "a", handle)
    assert idle_reads(pair) < 5 * MANY  # each import is tried again after 1 to 2 s
    pair.b.go_on()
    assert pair.a.ask("wait", "a", handle)[0] == "DONE"
    for index in (0, MANY - 1):
        there = pair.b.ask("digest", pair.there[index])
        assert there == pair.a.ask("digest", pair.here[index])


def test_importing_beside_stopped_peers(start) -> None:  # noqa: F811
    a, stopped, live = start(), start(), start()
    a.ask("open", "a")
    (here,) = a.ask("register", "a", 64)
    places = [(stopped, f"stopped {i}") for i in range(9)] + [(live, "live")]  # of 8 threads
    handles = []
    for process, name in places:
        process.ask("open", name)
        (there,) = process.ask("register", name, 64, 1, 5)
        a.ask("add", "a", process.ask("metadata", name))
        a.ask("notify", "a", name, b"connected")
        assert process.ask("notifications", name, 1) == {"a": [b"connected"]}
        handles.append((name, [(here, 64)], [(there, 64)]))
    stopped.stop()
    for each in handles:
        handle = a.ask("prepare", "a", "READ", *each)
        a.ask("post", "a", handle)
    state, seconds = a.ask("wait", "a", handle)
    assert state == "DONE" and seconds < 9
    assert a.ask("digest", here) == live.ask("digest", handles[-1][2][0][0])


def test_deregistering_what_a_peer_has_imported(start) -> None:  # noqa: F811
    pair = Pair(start)
    pair.check()
    assert pair.b.ask("deregister", "b", pair.there[0]) < 1
    handle = pair.write()  # by metadata from before
    with pytest.raises(Failed, match="nixl"):
        pair.a.ask("post", "a", handle)
        state, _ = pair.a.ask("wait", "a", handle)
        raise Failed(state)


def test_a_fork(start) -> None:  # noqa: F811
    pair = Pair(start)
    pair.check()
    assert pair.a.ask("fork", "a", "b") == 7
    assert "genNotif in a forked child: make a new agent" in pair.a.ask("said")
    pair.check()


def test_metadata_of_another_version(start) -> None:  # noqa: F811
    a, b = start(), start()
    a.ask("open", "a")
    b.ask("open", "b")
    metadata = b.ask("metadata", "b")
    assert metadata.count(b"LSNXA\1") == 1
    with pytest.raises(Failed, match="nixl"):
        a.ask("add", "a", metadata.replace(b"LSNXA\1", b"LSNXA\2"))
    said = a.ask("said")
    assert "has version 2 of its format and this plugin reads version 1" in said
    with pytest.raises(Failed, match="nixl"):
        a.ask("add", "a", metadata.replace(b"LSNXA\1", b"other!"))
    assert "is not of linkspan's plugin" in a.ask("said")
    a.ask("add", "a", metadata)
    a.ask("notify", "a", "b", b"all is well")
    assert b.ask("notifications", "b", 1) == {"a": [b"all is well"]}


def test_parameters(start) -> None:  # noqa: F811
    process = start()
    process.ask("open", "a", num_threads="8", colour="blue")
    said = process.ask("said")
    assert "parameter colour is unknown and has no effect" in said and "num_threads" not in said
    with pytest.raises(Failed, match="nixl"):
        process.ask("open", "b", deadline_s="soon")
    assert 'parameter deadline_s="soon": a number of seconds' in process.ask("said")


def test_descriptors_past_a_region(start) -> None:  # noqa: F811
    pair = Pair(start)
    for sides in (
        ([(pair.here[0], pair.size + 1)], [(pair.there[0], pair.size + 1)]),
        ([(pair.here[0] - 1, 5)], [(pair.there[0], 5)]),
    ):
        with pytest.raises(Failed, match="nixl"):
            pair.a.ask("prepare", "a", "WRITE", "b", *sides)
    pair.check()


def test_memory_that_is_registered_twice(start) -> None:  # noqa: F811
    pair = Pair(start)
    pair.a.ask("register_twice", "a", pair.here[0], 4096)
    pair.check()


def test_a_notification_that_is_too_long(start) -> None:  # noqa: F811
    pair = Pair(start)
    with pytest.raises(Failed, match="nixlInvalidParamError"):
        pair.a.ask("notify", "a", "b", b"m" * 65_536)
    assert "a notification of 65536 bytes" in pair.a.ask("said")
    pair.check()
