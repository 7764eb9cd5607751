"""Importing, opening and dropping a TransferEngine, its names and its example."""

from __future__ import annotations

import inspect
import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest
from engines import (  # noqa: F401
    ANSWER_S,
    FOLDER,
    PACKAGES,
    opened,
    refused,
    registered,
    session_of,
    socket_folder,
)

from mooncake import engine as module
from mooncake.engine import Read, TransferEngine, Write


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
        ("get_engine", (), None), ("get_first_buffer_address", ("a:1",), 0),
        ("get_notifies", (), []), ("allocate_managed_buffer", (5,), 0),
        ("read_bytes_from_buffer", (1, 1), b""),
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
