"""What the tests of the plugin share: processes with agents of a fetched NIXL.

The package linkspan is the one that this process imports, and the plugin is the one in it.
LINKSPAN_INTEGRATIONS names a folder with other releases of NIXL. With LINKSPAN_NIXL_MEMORY=VRAM
the memory is on GPUs, by torch, and NIXL is the one on PYTHONPATH.
"""

from __future__ import annotations

import base64
import os
import pathlib
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import linkspan
import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[1]
PLUGINS = pathlib.Path(linkspan.__file__).parent / "nixl"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
WHEELS = pathlib.Path(os.environ.get("LINKSPAN_INTEGRATIONS") or CACHE / "linkspan/integrations")
NEWEST, OLDEST = "nixl-cu12", "nixl-cu12-oldest"

sys.path[:0] = [str(FOLDER / "tests"), str(FOLDER.parents[1] / "tests" / "support")]

from child_process import ChildProcess  # noqa: E402


class Failed(Exception):
    pass


class Process(ChildProcess):
    """An agent_process.py; ask() calls a method there."""

    def __init__(
        self, wheel: str = NEWEST, backend: str = "LINKSPAN", plugins: object = PLUGINS, **more: str
    ) -> None:
        if os.environ.get("LINKSPAN_NIXL_MEMORY") == "VRAM":
            if wheel == OLDEST:
                pytest.skip("needs NIXL 1.0.1, and has the one on PYTHONPATH")
            path = (os.environ["PYTHONPATH"],)
        else:
            site = WHEELS / wheel
            if not (site / "nixl_cu12").is_dir():
                pytest.skip("needs NIXL, which ./dev test fetches")
            path = (str(site), str(FOLDER / "tests" / "stand_in"))
        more.setdefault("NIXL_LOG_LEVEL", "ERROR")
        super().__init__(
            FOLDER / "tests" / "agent_process.py", backend,
            path=path, NIXL_PLUGIN_DIR=str(plugins), **more,
        )  # fmt: skip

    def ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        self.write_line(base64.b64encode(pickle.dumps((method, arguments, named))))
        answer = pickle.loads(base64.b64decode(self.read_line()))
        if "error" in answer:
            raise Failed(answer["error"])
        return answer["result"]


class IdleProcesses:
    """Processes that tests share, one after the other; each test has agents of its own."""

    def __init__(self, socket_folder: str) -> None:
        self._socket_folder = socket_folder
        self._idle: dict[Any, list[Process]] = {}

    def take(self, *arguments: Any, **named: Any) -> tuple[Any, Process]:
        named.setdefault("LINKSPAN_SOCKET_DIR", self._socket_folder)
        key = arguments, tuple(named.items())
        idle = self._idle.setdefault(key, [])
        return key, idle.pop() if idle else Process(*arguments, **named)

    def put(self, key: Any, process: Process) -> None:
        if process.process.poll() is not None:  # a test killed it
            return
        process.go_on()
        process.ask("reset")
        process.ask("said")
        self._idle[key].append(process)

    def end(self) -> None:
        for process in sum(self._idle.values(), []):
            process.end()


@pytest.fixture(scope="module")
def idle_processes() -> Iterator[IdleProcesses]:
    with tempfile.TemporaryDirectory(prefix="linkspan-test-") as folder:
        processes = IdleProcesses(folder)
        yield processes
        processes.end()


@pytest.fixture
def start(idle_processes: IdleProcesses) -> Iterator[Callable[..., Process]]:
    """Gives a function that starts a process, or takes one that is idle."""
    used: list[tuple[Any, Process]] = []

    def take(*arguments: Any, **named: Any) -> Process:
        used.append(idle_processes.take(*arguments, **named))
        return used[-1][1]

    yield take
    for key, process in used:
        idle_processes.put(key, process)


class Pair:
    """Agents "a" and "b" that know each other, with a memory each. `network` keeps them from a
    Unix socket, `rdma` gives them simulated RDMA devices."""

    def __init__(
        self, start: Callable[..., Process], size: int = 1 << 20, count: int = 1,
        wheel: str = NEWEST, network: bool = False, rdma: bool = False, **parameters: str,
    ) -> None:  # fmt: skip
        more = {"LINKSPAN_SOCKET_DIR": "/proc/linkspan"} if network else {}
        if rdma:
            library = pathlib.Path(linkspan.__file__).parents[2] / "libfake_verbs.so"
            if not library.exists():
                pytest.skip("needs the simulated RDMA devices of a build folder")
            more.update(LINKSPAN_VERBS_DEVICES="auto", LINKSPAN_VERBS_LIBRARY=str(library))
        self.a, self.b = start(wheel, **more), start(wheel, **more)
        self.size = size
        self.a.ask("open", "a", **parameters)
        self.b.ask("open", "b", **parameters)
        self.here = self.a.ask("register", "a", size, count, 100)
        self.there = self.b.ask("register", "b", size, count)
        assert self.a.ask("add", "a", self.b.ask("metadata", "b")) == "b"
        assert self.b.ask("add", "b", self.a.ask("metadata", "a")) == "a"

    def write(self, op: str = "WRITE") -> int:
        """Prepares a transfer of the whole first memory."""
        sides = [(self.here[0], self.size)], [(self.there[0], self.size)]
        return self.a.ask("prepare", "a", op, "b", *sides)

    def write_all(self) -> int:
        """Prepares a transfer of all memories."""
        memories = self.here, self.there
        return self.a.ask("prepare_pages", "a", "WRITE", "b", self.size, *memories, [(0, 0)])

    def check(self) -> None:
        """A transfer arrives, with its notification."""
        handle = self.write()
        self.a.ask("post", "a", handle, b"checked")
        assert self.a.ask("wait", "a", handle)[0] == "DONE"
        assert self.b.ask("notifications", "b", 1) == {"a": [b"checked"]}
        assert self.b.ask("digest", self.there[0]) == self.a.ask("digest", self.here[0])
        self.a.ask("release", "a", handle)
