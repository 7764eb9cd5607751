"""p2p/uccl, the stand-in for uccl.p2p, and the test in p2p/tests by the commands that users type.

What is asked of an unknown conn_id is False, as the real one does; the asynchronous forms answer
(False, 0). A null pointer, of which the real one aborts the process, is a ValueError.
The package linkspan is the one that this process imports; LINKSPAN_CUDA_LIBRARY says which driver.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import linkspan
import pytest
from child_process import socket_folder  # noqa: F401

P2P = pathlib.Path(__file__).resolve().parents[2] / "p2p"
PACKAGES = str(pathlib.Path(linkspan.__file__).parents[1])  # where this process found linkspan
BUILD = P2P.parent / "out" / "release" / "python" / "linkspan"
IMPORT = ["-c", "from uccl import p2p; print('OK')"]
RUN_S = 1000  # more than the test in p2p/tests takes itself

sys.path.insert(0, str(P2P))

from uccl import p2p  # noqa: E402


def run(
    *arguments: str, found: bool = True, folder: pathlib.Path = P2P, limit: float = 60, **more: str
) -> subprocess.CompletedProcess[str]:
    """found: linkspan is on PYTHONPATH."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if found:
        environment["PYTHONPATH"] = PACKAGES
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment | more,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=limit,
    )


@pytest.fixture
def pair() -> Iterator[tuple[p2p.Endpoint, int, p2p.Endpoint, int]]:
    """Two Endpoints of this process and their conn_ids."""
    here, there = p2p.Endpoint(3), p2p.Endpoint(11)
    ok, to_there = here.connect_local(11)
    accepted, who, to_here = there.accept_local()
    assert (ok, accepted, who) == (True, True, 3)
    yield here, to_there, there, to_here


class Bytes:
    def __init__(self, content: bytes) -> None:
        self._bytes = bytearray(content)
        self.place = ctypes.addressof(ctypes.c_char.from_buffer(self._bytes)), len(content)

    def read(self) -> bytes:
        return bytes(self._bytes)


def end_of(endpoint: p2p.Endpoint, started: tuple[bool, int]) -> bool:
    ok, transfer_id = started
    assert ok
    until = time.monotonic() + 60
    while time.monotonic() < until:
        ok, done = endpoint.poll_async(transfer_id)
        if done:
            return ok
        time.sleep(0.001)
    raise AssertionError("not done after 60 s")


# ---- finding linkspan --------------------------------------------------------------------------


def test_import() -> None:
    done = run(*IMPORT)
    assert (done.returncode, done.stdout) == (0, "OK\n")


def test_import_from_the_build() -> None:
    done = run(*IMPORT, found=False)
    if BUILD.is_dir():
        assert (done.returncode, done.stdout) == (0, "OK\n")
    else:
        assert done.returncode == 0 or "./dev build" in done.stdout


def test_import_without_linkspan(tmp_path: pathlib.Path) -> None:
    (tmp_path / "p2p" / "uccl").mkdir(parents=True)
    for source in (P2P / "uccl").glob("*.py"):
        (tmp_path / "p2p" / "uccl" / source.name).write_bytes(source.read_bytes())
    # -S: nothing that is installed.
    done = run("-S", *IMPORT, found=False, folder=tmp_path / "p2p")
    assert done.returncode == 1
    for text in ("ImportError: the package linkspan is neither", "./dev build", "pip install"):
        assert text in done.stdout


# ---- the test in p2p/tests; whole: tests/seed_commands.sh -----------------------------------------


def test_matrix_of_cpu_memory_by_pytest_and_from_the_build() -> None:
    done = run(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-rP", "tests/test_ipc_cpu_gpu.py"),
        found=not BUILD.is_dir(),
        limit=RUN_S,
        LINKSPAN_CUDA_LIBRARY="/none",
    )
    assert done.returncode == 0, done.stdout
    assert "left out: all pairs with GPU and pinned CPU memory" in done.stdout
    assert "ok CPU -> CPU" in done.stdout and "1 passed" in done.stdout


def test_matrix_wants_two_processes() -> None:
    done = run("tests/test_ipc_cpu_gpu.py", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    assert (done.returncode, done.stdout.count("--nproc_per_node=2")) == (1, 1)


# ---- Endpoint ----------------------------------------------------------------------------------


def test_messages(pair: tuple[p2p.Endpoint, int, p2p.Endpoint, int]) -> None:
    here, to_there, there, to_here = pair
    source, target = Bytes(b"forth"), Bytes(b".......")
    receive = there.recv_ipc_async(to_here, *target.place)
    assert there.poll_async(receive[1]) == (True, False)
    assert here.send_ipc(to_there, *source.place)
    assert end_of(there, receive)
    assert target.read() == b"forth.."
    send = there.send_ipc_async(to_here, *target.place)
    assert here.recv_ipc(to_there, *Bytes(bytes(7)).place)
    assert end_of(there, send)


def test_no_such_connection(
    pair: tuple[p2p.Endpoint, int, p2p.Endpoint, int], caplog: pytest.LogCaptureFixture
) -> None:
    here, memory = pair[0], Bytes(b"abc")
    for unknown in (0, 77):
        assert here.send_ipc(unknown, *memory.place) is False
        assert here.recv_ipc(unknown, *memory.place) is False
        assert here.send_ipc_async(unknown, *memory.place) == (False, 0)
        assert here.recv_ipc_async(unknown, *memory.place) == (False, 0)
    assert caplog.text.count("no such conn_id") == 8


def test_no_such_transfer(
    pair: tuple[p2p.Endpoint, int, p2p.Endpoint, int], caplog: pytest.LogCaptureFixture
) -> None:
    assert pair[0].poll_async(12345) == (False, True)
    assert "no such transfer_id: 12345" in caplog.text


def test_no_memory(pair: tuple[p2p.Endpoint, int, p2p.Endpoint, int]) -> None:
    here, to_there = pair[:2]
    with pytest.raises(ValueError):
        here.send_ipc(to_there, 0, 8)
    with pytest.raises(ValueError):
        here.recv_ipc_async(to_there, -1, 8)
    assert here.recv_ipc_async(to_there, 16, 8) == (False, 0)  # where nothing is mapped


def test_too_long(
    pair: tuple[p2p.Endpoint, int, p2p.Endpoint, int], caplog: pytest.LogCaptureFixture
) -> None:
    here, to_there, there, to_here = pair
    source, target = Bytes(b"too long"), Bytes(b".......")
    receive = there.recv_ipc_async(to_here, *target.place)
    assert here.send_ipc(to_there, *source.place) is False
    assert end_of(there, receive) is False
    assert there.poll_async(receive[1]) == (False, True)
    assert target.read() == b"......."
    assert caplog.text.count("nothing was written") == 2


def test_peer_is_gone(pair: tuple[p2p.Endpoint, int, p2p.Endpoint, int]) -> None:
    here, memory = pair[0], Bytes(b"abc")
    process = start_endpoint(5)
    ok, conn_id = here.connect_local(5)
    assert ok
    receive = here.recv_ipc_async(conn_id, *memory.place)
    process.kill()
    process.communicate(timeout=60)
    assert end_of(here, receive) is False
    assert here.send_ipc(conn_id, *memory.place) is False


def start_endpoint(index: int) -> subprocess.Popen[str]:
    """Another process, which has that index until it is killed or its input ends."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"from uccl import p2p; it = p2p.Endpoint({index}); print(1, flush=True); input()",
        ],
        cwd=P2P,
        env=os.environ | {"PYTHONPATH": PACKAGES},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "1\n"
    return process


def test_an_index_has_one_owner(socket_folder: str) -> None:
    process = start_endpoint(0)
    with pytest.raises(RuntimeError, match=f"GPU index 0 is taken.*{socket_folder}"):
        p2p.Endpoint(0)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    first = p2p.Endpoint(0)
    with pytest.raises(RuntimeError, match="GPU index 0 is taken"):
        p2p.Endpoint(0)
    del first
    p2p.Endpoint(0)


def test_nobody_comes(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = p2p.Endpoint(0)
    assert endpoint.connect_local(1, timeout=0.2) == (False, 0)
    assert endpoint.accept_local(timeout=0.2) == (False, -1, 0)
    assert "[connect_local] remote_gpu_idx=1: " in caplog.text
    assert "[accept_local] " in caplog.text
    assert endpoint.connect_local(0, timeout=0.2) == (False, 0)  # itself


def test_who_comes_is_no_endpoint() -> None:
    endpoint = p2p.Endpoint(0)
    with linkspan.Engine("somebody") as engine:
        engine.connect("uccl-gpu-0")
        ok, who, conn_id = endpoint.accept_local()
        assert ok and who == -1 and conn_id > 0


def test_index() -> None:
    for index in (-1, "0", None):
        with pytest.raises(ValueError, match="local_gpu_idx"):
            p2p.Endpoint(index)  # type: ignore[arg-type]
    assert "index 7" in repr(p2p.Endpoint(7, num_cpus=2))


def test_metadata() -> None:
    metadata = p2p.Endpoint(300).get_metadata()
    assert p2p.Endpoint.parse_metadata(metadata) == ("127.0.0.1", 0, 300)


def test_lines_in_the_log() -> None:
    program = """
import ctypes
from uccl import p2p
one, other = p2p.Endpoint(0), p2p.Endpoint(1)
_, conn_id = one.connect_local(1)
memory = ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)
one.send_ipc_async(conn_id, ctypes.addressof(memory[0]), 8)
other.recv_ipc(other.accept_local()[2], ctypes.addressof(memory[1]), 8)
"""
    done = run("-c", program, UCCL_P2P_LOG_LEVEL="INFO", LINKSPAN_LOG_LEVEL="")
    assert done.returncode == 0, done.stdout
    for line in (
        "[INFO] [send_ipc] conn_id=1 size=8 sender_mem=CPU",
        "[INFO] [recv_ipc] conn_id=1 size=8 receiver_mem=CPU",
        "[INFO] [recv_ipc] Memory negotiation complete: CPU -> CPU",
        "[INFO] [recv_ipc] PULL model transfer completed successfully",
    ):
        assert line in done.stdout.splitlines(), done.stdout
