"""The peers of mooncake.engine: killed, stopped and restarted ones, threads, secrets, strangers."""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Callable

import linkspan
import pytest
from engines import (  # noqa: F401
    ANSWER_S,
    MIB,
    Child,
    Memory,
    opened,
    pattern,
    refused,
    registered,
    session_of,
    socket_folder,
    start,
)

from mooncake import _ranges, _sessions


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
    child.stop()
    assert engine.send_probe(child.session) == -1
    assert opened().send_probe(child.session) == -1
    refused(caplog, child.session)
    child.go_on()
    assert (child.read(there) == memory.data).all()
    assert engine.send_probe(child.session) == 0


def test_memory_that_a_stopped_peer_uses_is_busy(
    start: Callable[..., Child], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_ranges, "_UNREGISTER_S", 0.2)
    child, engine = start(), opened()
    there, memory = child.ask("allocate", 100, 16), engine.allocate_managed_buffer(100)
    assert child.ask("transfer_sync_write", session_of(engine), there, memory, 100) == 0
    child.stop()
    assert engine.unregister_memory(memory) == -4
    refused(caplog, f"{memory:#x}", "call unregister_memory() again")
    child.go_on()
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
