"""Whether an installed linkspan works on this machine: `pytest --pyargs linkspan`. Needs no GPU."""

from __future__ import annotations

import asyncio
import pathlib
import subprocess
import sys

import pytest

import linkspan
import nvlink_transfer_engine

CHILD = """
import sys, linkspan
memory = bytearray(int(sys.argv[2]))
with linkspan.Engine("child", use_gpu=False) as engine:
    peer = engine.connect(sys.argv[1])
    region = engine.register_memory(memory)
    peer.read(region, peer.lookup("source")).wait(20)
    for i in range(len(memory)):
        memory[i] ^= 255
    peer.write(region, peer.lookup("target"), notification=b"done").wait(20)
"""


def pattern(size: int) -> bytearray:
    return bytearray((i * 2654435761 >> 13) & 255 for i in range(size))


def test_another_process_reads_and_writes() -> None:
    size = 100_003
    source, target = pattern(size), bytearray(size)
    with linkspan.Engine("parent", use_gpu=False) as engine:
        engine.publish("source", engine.register_memory(source))
        engine.publish("target", engine.register_memory(target))
        child = subprocess.Popen([sys.executable, "-c", CHILD, engine.listen(), str(size)])
        try:
            peer = engine.accept(30)
            assert engine.notifications(30) == [(peer.id, b"done")]
            assert target == bytes(each ^ 255 for each in source)
            assert child.wait(30) == 0
        finally:
            child.kill()


def test_await() -> None:
    with linkspan.Engine(use_gpu=False) as here, linkspan.Engine(use_gpu=False) as there:
        source, target = here.register_memory(pattern(4096)), there.register_memory(bytearray(4096))
        there.publish("target", target)
        peer = here.connect(there.listen())

        async def move() -> None:
            remote = peer.lookup("target")
            halves = [[(0, 2048, 2048)], [(2048, 0, 2048)]]
            await asyncio.gather(*(peer.write(source, remote, half) for half in halves))

        asyncio.run(move())
        assert bytes(target.memory) == bytes(source.memory[2048:]) + bytes(source.memory[:2048])


def test_errors_name_value_and_remedy() -> None:
    with linkspan.Engine(use_gpu=False) as here, linkspan.Engine(use_gpu=False) as there:
        with pytest.raises(linkspan.NotFoundError, match="nowhere"):
            here.connect(there.listen()).lookup("nowhere")
        with pytest.raises(ValueError, match="read-only"):
            here.register_memory(b"constant")


def test_what_the_package_brings() -> None:
    assert (pathlib.Path(linkspan.include_dir()) / "linkspan" / "linkspan.h").is_file()
    assert pathlib.Path(linkspan.library_path()).is_file()
    with nvlink_transfer_engine.NvlinkTransferEngine() as engine:
        assert engine.library_path is not None
    said = subprocess.run(
        [sys.executable, "-m", "linkspan", "--version"], capture_output=True, text=True, timeout=60
    )
    assert said.returncode == 0 and linkspan.__version__ in said.stdout
