"""Processes: forks, children, interpreters that end, peers that die, and what idling costs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import pytest
from conftest import Pair, run

import linkspan


# Its malloc (clang 14) may be locked by another thread at the fork, and the child waits for ever.
forks = pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="needs a build without AddressSanitizer"
)


@forks
def test_a_fork_says_what_to_do(pair: Pair) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"nothing"
        try:
            pair.here.register_memory(bytearray(8))
        except linkspan.Error as error:
            said = str(error).encode()
        os.write(writing, said)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert b"forked" in pipe.read()
    assert os.waitpid(child, 0)[1] == 0


@forks
def test_a_forked_child_ends_as_usual() -> None:
    ended = run(
        "import os, linkspan\n"
        "here, there = linkspan.Engine(use_gpu=False), linkspan.Engine(use_gpu=False)\n"
        "peer = here.connect(there.listen())\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    raise SystemExit(3)\n"  # with all ends of an interpreter
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3\n"
        "got = there.accept(10).recv(1, memory := bytearray(2))\n"
        "peer.send(1, b'ok').wait(10)\n"
        "got.wait(10)\n"
        "print(memory.decode())\n"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ok\n", "")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_children_of_multiprocessing(method: str, tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing, sys, linkspan\n"
        "def child(address):\n"
        "    with linkspan.Engine('child', use_gpu=False) as engine:\n"
        "        engine.connect(address).send(1, b'hello').wait(20)\n"
        "if __name__ == '__main__':\n"
        "    with linkspan.Engine('parent', use_gpu=False) as engine:\n"
        "        context = multiprocessing.get_context(sys.argv[1])\n"
        "        process = context.Process(target=child, args=(engine.listen(),))\n"
        "        process.start()\n"
        "        got = engine.accept(20).recv(1, memory := bytearray(5))\n"
        "        got.wait(20)\n"
        "        process.join(20)\n"
        "        print(memory.decode(), process.exitcode)\n"
    )
    ended = subprocess.run(
        [sys.executable, program, method], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "hello 0\n", "")


@pytest.mark.parametrize(
    "last",
    [
        "",
        "del here",
        "del peer, here, there",
        "import sys; sys.exit(0)",
        "there.close()",
        "here.close(); there.close(); del remote",
        "keep = [here, peer, remote, flying]; keep.append(keep)",
        # It prints nothing: CPython aborts if it ends while a daemon thread writes to stderr.
        "import contextlib, threading\n"
        "def wait():\n"
        "    with contextlib.suppress(linkspan.Error):\n"
        "        flying.wait(0.5)\n"
        "threading.Thread(target=wait, daemon=True).start()",
    ],
)
def test_interpreters_end_in_any_order(last: str) -> None:
    ended = run(
        "import linkspan\n"
        "here, there = linkspan.Engine(), linkspan.Engine()\n"
        "there.publish('memory', there.register_memory(bytearray(100)))\n"
        "peer = here.connect(there.listen())\n"
        "remote = peer.lookup('memory')\n"
        "region = here.register_memory(bytearray(100))\n"
        "flying = peer.recv(1, bytearray(100))\n"
        "peer.write(region, remote).wait(10)\n" + last
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_import_starts_nothing() -> None:
    ended = run(
        "import os, threading, linkspan, nvlink_transfer_engine\n"
        "maps = open('/proc/self/maps').read()\n"
        "assert 'libcuda' not in maps and 'fake_cuda' not in maps, maps\n"
        "assert len(os.listdir('/proc/self/task')) == 1\n"
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_peer_that_dies_ends_what_waits_for_it(pair: Pair) -> None:
    child = subprocess.Popen(
        [
            sys.executable, "-c",
            "import linkspan, sys, time\n"
            "engine = linkspan.Engine('child', use_gpu=False)\n"
            f"peer = engine.connect({pair.here.listen()!r})\n"
            "time.sleep(60)",
        ]
    )
    try:
        peer = pair.here.accept(20)
        transfer = peer.recv(1, bytearray(10), deadline=60)
        child.kill()
        begin = time.monotonic()
        with pytest.raises(ConnectionError) as caught:
            asyncio.run(asyncio.wait_for(awaited(transfer), 20))
        assert time.monotonic() - begin < 5
        assert isinstance(caught.value, linkspan.DisconnectedError)
        assert caught.value.peer == peer.id
    finally:
        child.kill()
        child.wait(10)


async def awaited(transfer: linkspan.Transfer) -> None:
    await transfer


def test_an_idle_engine_costs_nothing() -> None:
    ended = run(
        "import linkspan, time\n"
        "here, there = linkspan.Engine(use_gpu=False), linkspan.Engine(use_gpu=False)\n"
        "peer = here.connect(there.listen())\n"
        "there.accept(5)\n"
        "time.sleep(0.3)\n"
        "before = time.process_time()\n"
        "time.sleep(2)\n"
        "print(time.process_time() - before)\n"
    )
    assert ended.stderr == "" and float(ended.stdout) < 0.02  # 1 % of a core, of two Engines


@forks
def test_a_forked_child_ends_while_a_thread_waits() -> None:
    for _ in range(5):
        ended = run(
            "import os, sys, threading, time, linkspan\n"
            "if (child := os.fork()) == 0:\n"
            "    engine = linkspan.Engine(use_gpu=False)\n"
            "    wait = lambda: engine.notifications(None)\n"
            "    threading.Thread(target=wait, daemon=True).start()\n"
            "    time.sleep(0.1)\n"
            "    sys.exit(0)\n"
            "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
        )
        assert (ended.stdout, ended.stderr) == ("0\n", "")


def test_a_second_interpreter_is_refused_and_disturbs_nothing() -> None:
    ended = run(
        "import linkspan\n"
        "try:\n"
        "    import _interpreters as interpreters\n"
        "except ImportError:\n"
        "    import _xxsubinterpreters as interpreters\n"
        "other = interpreters.create()\n"
        "said = 'import linkspan'\n"
        "try:\n"
        "    said = interpreters.run_string(other, said)\n"
        "except interpreters.RunFailedError as error:\n"
        "    said = error\n"
        "print(said)\n"
        "interpreters.destroy(other)\n"
        "with linkspan.Engine(use_gpu=False) as engine:\n"
        "    print(engine.register_memory(bytearray(3)))\n"
    )
    assert "main interpreter of a process only" in ended.stdout
    assert "3 bytes" in ended.stdout and ended.returncode == 0, ended.stderr
