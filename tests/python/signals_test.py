"""A signal ends every wait, and a wait ends with its Engine.

Each case runs in a process of its own, which is in the wait when SIGINT comes. Its peer is another
process, stopped by SIGSTOP, so that nothing else ends the wait.
"""

from __future__ import annotations

import contextlib
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Iterator

import pytest

import linkspan

PATIENCE_S = 60
WITHIN_S = 1.0  # from the signal to the exception

PEER = """
import sys, linkspan
engine = linkspan.Engine("peer", use_gpu=False)
print(engine.listen(), flush=True)
peer = engine.accept(60)
theirs = peer.lookup("mine", 60)
peer.notify(b"imported")
sys.stdin.read()
"""

WAITER = """
import sys, time, linkspan
from linkspan import util
from linkspan.compat import ipc
address, argument, call = sys.argv[1:]
def described(address):
    with linkspan.Engine("ended", use_gpu=False) as ended:
        ended.listen(address)
        ended.publish("x", ended.allocate_shared(1))
        return ended.describe("x")
engine = linkspan.Engine("waiter", use_gpu=False)
region = engine.register_memory(bytearray(4096))
engine.publish("mine", region)
peer = engine.connect(address, 60)
assert engine.notifications(60)[0].message == b"imported"
print("ready", flush=True)
assert sys.stdin.readline() == "go\\n"
print("waiting", flush=True)
try:
    eval(call)
    print("nothing", flush=True)
except KeyboardInterrupt:
    print(time.monotonic(), flush=True)
import os
os._exit(0)
"""

# What is called, while nobody answers. `argument` is a free path or a silent TCP port.
WAITS = {
    "lookup": "peer.lookup('other', 60)",
    "lookup_set": "peer.lookup_set('others', 60)",
    "await_version": "peer.await_version('others', 0, 60)",
    "deregister": "engine.deregister(region, 60)",
    "invalidate": "engine.invalidate(region, 60)",
    "close": "engine.close(60)",
    "with": "engine.__exit__(None, None, None)",
    "accept": "engine.accept(None)",
    "notifications": "engine.notifications(None)",
    "notifications_60": "engine.notifications(60)",
    "connect_nobody": "engine.connect('unix:' + argument, 60)",
    "connect_silent": "engine.connect('tcp:' + argument, 60)",
    "engine_lookup": "engine.lookup(described('unix:' + argument), 60)",
    "rendezvous_connects": "util.rendezvous(engine, 1, 2, path=argument)",
    "rendezvous_accepts": "util.rendezvous(engine, 0, 2, path=argument)",
    "wait": "peer.recv(1, bytearray(8), deadline=60).wait()",
    "recv_ipc": "ipc.recv_ipc(engine, peer.id, bytearray(8), deadline=60)",
}


@contextlib.contextmanager
def started(code: str, *arguments: str) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def wait_until_asleep(pid: int) -> None:
    """Returns when the main thread sleeps, in each of several looks."""
    stat = pathlib.Path(f"/proc/{pid}/task/{pid}/stat")
    looks, end = 0, time.monotonic() + PATIENCE_S
    while looks < 20:
        assert time.monotonic() < end, "it does not sleep"
        looks = looks + 1 if stat.read_text().rsplit(")", 1)[1].split()[0] == "S" else 0
        time.sleep(0.005)


def stop(process: subprocess.Popen) -> None:
    """Stops it; no thread of it runs when this returns."""
    process.send_signal(signal.SIGSTOP)
    stats = lambda: pathlib.Path(f"/proc/{process.pid}/task").glob("*/stat")  # noqa: E731
    end = time.monotonic() + PATIENCE_S
    while {stat.read_text().rsplit(")", 1)[1].split()[0] for stat in stats()} != {"T"}:
        assert time.monotonic() < end, "it does not stop"
        time.sleep(0.005)


def waiting(argument: str, call: str, peer: subprocess.Popen) -> subprocess.Popen:
    return started(WAITER, peer.stdout.readline().strip(), argument, call)


@pytest.mark.parametrize("name", WAITS)
def test_sigint_ends(name: str, tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, started(PEER) as peer:
        argument = str(tmp_path / "s")
        if name == "connect_silent":
            argument = f"127.0.0.1:{silent.getsockname()[1]}"
        with waiting(argument, WAITS[name], peer) as waiter:
            assert waiter.stdout.readline() == "ready\n"
            stop(peer)
            waiter.stdin.write("go\n")
            waiter.stdin.flush()
            assert waiter.stdout.readline() == "waiting\n"
            wait_until_asleep(waiter.pid)
            sent = time.monotonic()
            waiter.send_signal(signal.SIGINT)
            heard = waiter.stdout.readline().strip()
            assert heard not in ("nothing", "")
            assert float(heard) - sent < WITHIN_S


def test_a_wait_goes_on_after_a_handler_that_raises_nothing() -> None:
    handler = (
        "import signal; signal.signal(signal.SIGINT, lambda *_: print('handled', flush=True));"
        "peer.lookup('other', 60)"
    )
    with started(PEER) as peer, waiting("", f"exec({handler!r})", peer) as waiter:
        assert waiter.stdout.readline() == "ready\n"
        stop(peer)
        waiter.stdin.write("go\n")
        waiter.stdin.flush()
        assert waiter.stdout.readline() == "waiting\n"
        for _ in range(3):
            wait_until_asleep(waiter.pid)
            waiter.send_signal(signal.SIGINT)
            assert waiter.stdout.readline() == "handled\n"
        assert waiter.poll() is None


def test_an_interrupted_call_may_be_repeated(tmp_path: pathlib.Path) -> None:
    again = (
        "for call in (lambda: engine.close(60),):\n"
        "    try:\n"
        "        print('first', flush=True); call()\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    call(); print('done', flush=True)\n"
    )
    with started(PEER) as peer, waiting("", f"exec({again!r})", peer) as waiter:
        assert waiter.stdout.readline() == "ready\n"
        stop(peer)
        waiter.stdin.write("go\n")
        waiter.stdin.flush()
        assert waiter.stdout.readline() == "waiting\n"
        assert waiter.stdout.readline() == "first\n"
        wait_until_asleep(waiter.pid)
        waiter.send_signal(signal.SIGINT)
        assert waiter.stdout.readline() == "interrupted\n"
        peer.send_signal(signal.SIGCONT)
        waiter.stdin.write("\n")
        waiter.stdin.flush()
        assert waiter.stdout.readline() == "done\n"


@pytest.mark.parametrize("timeout", [None, 60])
def test_notifications_end_with_the_engine(timeout: float | None) -> None:
    engine = linkspan.Engine("closed", use_gpu=False)
    came: list[list] = []
    thread = threading.Thread(target=lambda: came.append(engine.notifications(timeout)))
    thread.start()
    engine.close()
    thread.join(PATIENCE_S / 2)
    assert came == [[]]
    begin = time.thread_time()
    assert engine.notifications(timeout) == []
    assert time.thread_time() - begin < WITHIN_S


def test_accept_ends_with_the_engine() -> None:
    engine = linkspan.Engine("closed", use_gpu=False)
    engine.close()
    with pytest.raises(linkspan.CanceledError):
        engine.accept(None)
