"""Processes of a job find each other."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time

import pytest

import linkspan
from linkspan import util

WORKER = """
import pathlib, sys, time, linkspan
from linkspan import util
way, folder, rank, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

class Store:  # as torch.distributed's, in as far as rendezvous() uses it
    def set(self, key, value):
        file = pathlib.Path(folder, key.replace("/", "_"))
        file.with_suffix(".new").write_text(value)
        file.with_suffix(".new").rename(file)
    def get(self, key):
        file = pathlib.Path(folder, key.replace("/", "_"))
        for _ in range(2000):
            if file.exists():
                return file.read_bytes()
            time.sleep(0.01)
        raise TimeoutError(key)

with linkspan.Engine(f"rank {rank}", use_gpu=False, socket_dir=folder) as engine:
    if way == "group":
        import torch.distributed as dist
        dist.init_process_group("gloo", init_method=f"file://{folder}/init", rank=rank, world_size=size)
        peers = util.rendezvous(engine, group=dist.group.WORLD, timeout=30)
    elif way == "file store":
        import torch.distributed as dist
        store = dist.FileStore(f"{folder}/store", size)
        peers = util.rendezvous(engine, rank, size, store=store, timeout=30)
    elif way == "store":
        peers = util.rendezvous(engine, rank, size, store=Store(), timeout=30)
    else:
        peers = util.rendezvous(engine, rank, size, path=f"{folder}/job", timeout=30)
    assert peers[rank] is None and len(peers) == size
    others = [(other, peer) for other, peer in enumerate(peers) if peer is not None]
    assert [peer.name for _, peer in others] == [f"rank {other}" for other, _ in others]
    inboxes = [(peer.recv(7, memory := bytearray(2)), memory, other) for other, peer in others]
    for other, peer in others:
        peer.send(7, bytes([rank, other])).wait(20)
    for transfer, memory, other in inboxes:
        transfer.wait(20)
        assert memory == bytes([other, rank])
"""


def test_the_package_has_its_helpers_in_util_alone() -> None:
    assert not set(util.__all__) & set(linkspan.__all__)
    assert not any(hasattr(linkspan, name) for name in util.__all__)


@pytest.mark.parametrize("way", ["path", "store", "file store", "group"])
def test_three_processes(way: str, tmp_path: pathlib.Path) -> None:
    if way in ("file store", "group"):
        pytest.importorskip("torch", reason="needs torch")
    children = []
    for rank in (2, 0, 1):
        command = [sys.executable, "-c", WORKER, way, str(tmp_path), str(rank), "3"]
        children.append(subprocess.Popen(command))
        time.sleep(0.1)
    try:
        assert [child.wait(60) for child in children] == [0, 0, 0]
    finally:
        for child in children:
            child.kill()


def test_who_does_not_come_is_told(tmp_path: pathlib.Path) -> None:
    with linkspan.Engine(use_gpu=False) as engine:
        with pytest.raises((linkspan.UnreachableError, linkspan.TimedOutError)):
            util.rendezvous(engine, 1, 2, path=str(tmp_path / "job"), timeout=0.2)
    with linkspan.Engine(use_gpu=False) as engine:
        with pytest.raises(linkspan.TimedOutError):
            util.rendezvous(engine, 0, 2, path=str(tmp_path / "other"), timeout=0.2)


def test_wrong_arguments() -> None:
    with linkspan.Engine(use_gpu=False) as engine:
        with pytest.raises(ValueError, match="one of group, store and path"):
            util.rendezvous(engine, 0, 2)
        with pytest.raises(ValueError, match="rank=2 of world_size=2"):
            util.rendezvous(engine, 2, 2, path="/tmp/x")


@pytest.mark.parametrize(
    ("name", "value", "configured"),
    [
        ("LINKSPAN_SECRET", "x", True),
        ("LINKSPAN_SECRET_FILE", "/run/secret", True),
        ("LINKSPAN_SECRET", "", False),
        ("LINKSPAN_SECURITY", "insecure", True),
        ("LINKSPAN_SECURITY", "encrypted", False),
    ],
)
def test_tcp_is_configured(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, configured: bool
) -> None:
    for each in ("LINKSPAN_SECRET", "LINKSPAN_SECRET_FILE", "LINKSPAN_SECURITY"):
        monkeypatch.delenv(each, raising=False)
    assert not util.tcp_is_configured()
    monkeypatch.setenv(name, value)
    assert util.tcp_is_configured() == configured
