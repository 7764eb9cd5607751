"""A process with agents of NIXL over the backend LINKSPAN: it does what its input asks.

For each line [name, [argument, ...]] in base64 of a pickle it writes {"result": ...} or the error,
likewise. A name is a method of Agents below. Transfers wait at most LIMIT_S.
LINKSPAN_NIXL_MEMORY=VRAM: the memories are tensors of torch, those of agent "b" on the last GPU
and all others on the first one.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import hashlib
import importlib.util
import logging
import os
import pickle
import sys
import tempfile
import threading
import time
from typing import Any, BinaryIO

import numpy as np

if importlib.util.find_spec("nixl_cu12"):
    from nixl_cu12._api import nixl_agent, nixl_agent_config
else:
    from nixl_cu13._api import nixl_agent, nixl_agent_config

logging.disable(logging.INFO)
GUARD = 64  # poisoned bytes before and behind each memory
POISON = 0xA5
LIMIT_S = 20
KIND = os.environ.get("LINKSPAN_NIXL_MEMORY", "DRAM")


def pattern(size: int, seed: int) -> np.ndarray:
    """Differs at every position, and between seeds."""
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


class HostMemory:
    """Host memory between guards."""

    def __init__(self, size: int, seed: int | None, gpu: int) -> None:
        self.size, self.gpu = size, gpu
        content = np.full(size + 2 * GUARD, POISON, np.uint8)
        content[GUARD : GUARD + size] = 0 if seed is None else pattern(size, seed)
        self._set(content)

    def _set(self, content: np.ndarray) -> None:
        self._all = content
        self.address = content.ctypes.data + GUARD

    def _get(self) -> np.ndarray:
        return self._all

    def fill(self, seed: int) -> None:
        self._all[GUARD : GUARD + self.size] = pattern(self.size, seed)

    def read(self) -> bytes:
        content = self._get()
        guards = np.concatenate((content[:GUARD], content[-GUARD:]))
        assert (guards == POISON).all(), "a guard was overwritten"
        return content[GUARD : GUARD + self.size].tobytes()


class GpuMemory(HostMemory):
    """A tensor of torch between guards. Calls return when it is written."""

    def _set(self, content: np.ndarray) -> None:
        import torch

        self._all = torch.from_numpy(content).to(f"cuda:{self.gpu}")
        self.address = self._all.data_ptr() + GUARD
        torch.cuda.synchronize(self.gpu)

    def _get(self) -> np.ndarray:
        return self._all.cpu().numpy()

    def fill(self, seed: int) -> None:
        import torch

        content = torch.from_numpy(pattern(self.size, seed))
        self._all[GUARD : GUARD + self.size].copy_(content)
        torch.cuda.synchronize(self.gpu)


def gpu_of(name: str) -> int:
    """Returns the GPU of the agent `name`."""
    if KIND == "DRAM" or name != "b":
        return 0
    import torch

    return torch.cuda.device_count() - 1


class Agents:
    def __init__(self, backend: str, log: BinaryIO) -> None:
        self._backend = backend
        self._log = log
        self._agents: dict[str, Any] = {}
        self._memories: dict[int, HostMemory] = {}
        self._registered: dict[int, Any] = {}
        self._handles: dict[int, Any] = {}

    def open(self, name: str, **parameters: str) -> None:
        agent = nixl_agent(name, nixl_agent_config(backends=[]))
        agent.create_backend(self._backend, parameters)
        self._agents[name] = agent

    def close(self, name: str) -> None:
        del self._agents[name]

    def reset(self) -> None:
        """Ends all agents, for the next test."""
        for handle in self._handles.values():
            with contextlib.suppress(Exception):
                handle.release()
        self._handles.clear()
        self._registered.clear()
        self._agents.clear()
        gc.collect()
        self._memories.clear()

    def said(self) -> str:
        """Returns what was written to stderr since the last call."""
        return self._log.read().decode(errors="replace")

    def reads(self) -> tuple[int, float]:
        """Returns how many reads this process has made, of wake-ups too, and the time."""
        counts = dict(line.split(": ") for line in open("/proc/self/io"))
        return int(counts["syscr"]), time.monotonic()

    def parameters(self, name: str) -> dict[str, str]:
        return self._agents[name].get_plugin_params(self._backend)

    def register(self, name: str, size: int, count: int = 1, seed: int | None = None) -> list[int]:
        memory = GpuMemory if KIND == "VRAM" else HostMemory
        added = [memory(size, seed and seed + i, gpu_of(name)) for i in range(count)]
        registered = self._register(name, [(each.address, size) for each in added])
        for each in added:
            self._memories[each.address] = each
            self._registered[each.address] = registered
        return [each.address for each in added]

    def _register(self, name: str, ranges: list) -> Any:
        agent = self._agents[name]
        listed = [(address, size, gpu_of(name), "") for address, size in ranges]
        return agent.register_memory(
            agent.get_reg_descs(listed, KIND), backends=[self._backend]
        )

    def register_twice(self, name: str, address: int, size: int) -> None:
        self._register(name, [(address, size)])

    def deregister(self, name: str, address: int) -> float:
        began = time.monotonic()
        self._agents[name].deregister_memory(self._registered[address], backends=[self._backend])
        return time.monotonic() - began

    def read(self, address: int) -> bytes:
        return self._memories[address].read()

    def digest(self, address: int) -> str:
        return hashlib.sha256(self.read(address)).hexdigest()

    def fill(self, address: int, seed: int) -> None:
        self._memories[address].fill(seed)

    def metadata(self, name: str) -> bytes:
        return self._agents[name].get_agent_metadata()

    def add(self, name: str, metadata: bytes) -> str:
        added = self._agents[name].add_remote_agent(metadata)
        return added if isinstance(added, str) else added.decode()

    def remove(self, name: str, peer: str) -> None:
        self._agents[name].remove_remote_agent(peer)

    def prepare(self, name: str, op: str, peer: str, here: list, there: list) -> int:
        """here, there: [(address, bytes)]."""
        handle = self.prepare_unlisted(name, op, peer, here, there)
        self._handles[len(self._handles)] = handle
        return len(self._handles) - 1

    def prepare_pages(
        self, name: str, op: str, peer: str, page: int, here: list, there: list, pairs: list
    ) -> int:
        """The same pairs of pages of each two memories, as vLLM does it."""
        agent = self._agents[name]
        pages = 1 + int(np.max(pairs))

        def descriptors(addresses: list[int], owner: str) -> np.ndarray:
            begins = np.array(addresses, np.uint64)[:, None]
            begins = (begins + np.arange(pages, dtype=np.uint64) * np.uint64(page)).ravel()
            rest = [np.full_like(begins, value) for value in (page, gpu_of(owner))]
            return np.stack([begins, *rest], 1)

        sides = [
            agent.prep_xfer_dlist(side, descriptors(at, owner), KIND, backends=[self._backend])
            for side, at, owner in (("NIXL_INIT_AGENT", here, name), (peer, there, peer))
        ]
        indices = [
            (np.arange(len(here))[:, None] * pages + np.array(pairs)[None, :, side])
            .ravel().astype(np.int32)
            for side in (0, 1)
        ]  # fmt: skip
        handle = agent.make_prepped_xfer(
            op, sides[0], indices[0], sides[1], indices[1], b"", backends=[self._backend]
        )
        self._handles[len(self._handles)] = handle
        return len(self._handles) - 1

    def post(self, name: str, handle: int, notification: bytes = b"") -> str:
        return self._agents[name].transfer(self._handles[handle], notification)

    def state(self, name: str, handle: int) -> str:
        return self._agents[name].check_xfer_state(self._handles[handle])

    def wait(self, name: str, handle: int, limit: float = LIMIT_S) -> tuple[str, float]:
        """Returns how it ended, an exception by its name, and after how many seconds."""
        began = time.monotonic()
        while True:
            try:
                state = self.state(name, handle)
            except Exception as error:
                state = type(error).__name__
            passed = time.monotonic() - began
            if state != "PROC" or passed > limit:
                return state, passed

    def release(self, name: str, handle: int) -> tuple[int, float]:
        """Asks until the handle is released; returns how often it was refused, and the seconds."""
        began, refused = time.monotonic(), 0
        while True:
            try:
                self._agents[name].release_xfer_handle(self._handles[handle])
                return refused, time.monotonic() - began
            except Exception:
                refused += 1
                if time.monotonic() - began > LIMIT_S:
                    raise

    def estimate(self, name: str, handle: int) -> tuple:
        return self._agents[name].estimate_xfer_cost(self._handles[handle])

    def notify(self, name: str, peer: str, message: bytes) -> None:
        self._agents[name].send_notif(peer, message)

    def notifications(self, name: str, count: int, limit: float = LIMIT_S) -> dict:
        """Waits for at least `count` of them."""
        until, out = time.monotonic() + limit, {}
        while sum(map(len, out.values())) < count and time.monotonic() < until:
            for peer, messages in self._agents[name].get_new_notifs().items():
                out.setdefault(peer, []).extend(messages)
        return out

    def in_threads(self, name: str, peer: str, here: int, there: int, times: int) -> list[str]:
        """Eight threads, each with an eighth of the memory; returns what went wrong."""
        part, failures = self._memories[here].size // 8, []

        def run(index: int) -> None:
            try:
                size = part // 8
                offsets = [index * part + i * size for i in range(8)]
                sides = [[(at + offset, size) for offset in offsets] for at in (here, there)]
                for turn in range(times):
                    handle = self.prepare_unlisted(name, "WRITE", peer, *sides)
                    state = self._agents[name].transfer(handle, f"{index} {turn}".encode())
                    until = time.monotonic() + LIMIT_S
                    while state == "PROC" and time.monotonic() < until:
                        state = self._agents[name].check_xfer_state(handle)
                    self._agents[name].release_xfer_handle(handle)
                    if state != "DONE":
                        failures.append(state)
            except Exception as error:
                failures.append(repr(error))

        threads = [threading.Thread(target=run, args=(index,)) for index in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return failures

    def prepare_unlisted(self, name: str, op: str, peer: str, here: list, there: list) -> Any:
        agent = self._agents[name]
        local, remote = (
            agent.get_xfer_descs([(a, n, gpu_of(owner)) for a, n in side], KIND)
            for side, owner in ((here, name), (there, peer))
        )
        return agent.initialize_xfer(op, local, remote, peer, backends=[self._backend])

    def fork(self, name: str, peer: str) -> int:
        """Returns the exit code of a child that uses the agent: 7 after an exception."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self._agents[name].send_notif(peer, b"from the child")
            except Exception:
                code = 7
            os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    log = tempfile.NamedTemporaryFile()
    agents = Agents(sys.argv[1], open(log.name, "rb", buffering=0))
    out = os.fdopen(os.dup(1), "wb", 0)
    os.dup2(os.open(log.name, os.O_WRONLY | os.O_APPEND), 2)
    os.dup2(2, 1)  # NIXL's own lines
    for line in sys.stdin.buffer:
        name, arguments, named = pickle.loads(base64.b64decode(line))
        try:
            answer = {"result": getattr(agents, name)(*arguments, **named)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        out.write(base64.b64encode(pickle.dumps(answer)) + b"\n")


if __name__ == "__main__":

    main()
