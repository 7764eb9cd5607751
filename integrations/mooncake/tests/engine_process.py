"""A TransferEngine in a process of its own, which does what each line of its input asks.

engine_process.py HOST    writes its session, then for each line [name, [argument, ...]] in JSON the
line {"result": ...}, and ends with its input. A name is a method of TransferEngine, or of Memories.
"""

from __future__ import annotations

import base64
import json
import pathlib
import sys

import numpy as np

from mooncake.engine import TransferEngine, TransferNotify

GUARD = 64  # poisoned bytes before and behind each memory
POISON = 0xA5


def pattern(size: int, seed: int) -> np.ndarray:
    """Differs at every position, and between seeds."""
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


class Memory:
    """Host memory between guards."""

    def __init__(self, size: int, seed: int | None = None) -> None:
        self._all = np.full(size + 2 * GUARD, POISON, np.uint8)
        self.data = self._all[GUARD : GUARD + size]
        self.data[:] = 0 if seed is None else pattern(size, seed)
        self.address, self.bytes = self.data.ctypes.data, size

    def read(self) -> bytes:
        guards = np.concatenate((self._all[:GUARD], self._all[-GUARD:]))
        assert (guards == POISON).all(), "a guard was overwritten"
        return self.data.tobytes()


class Memories:
    def __init__(self, engine: TransferEngine) -> None:
        self._engine = engine
        self._all: list = []

    def allocate(self, size: int, seed: int | None = None, registered: bool = True) -> int:
        return self._keep(Memory(size, seed), registered)

    def allocate_gpu(self, size: int, seed: int) -> int:
        sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "support"))
        import cuda_memory

        content = pattern(size, seed).tobytes()
        return self._keep(cuda_memory.Gpu(cuda_memory.Driver(), 0, content), True)

    def read(self, address: int) -> str:
        (memory,) = [each for each in self._all if each.address == address]
        return base64.b64encode(memory.read()).decode()

    def notifies(self) -> list[list[str]]:
        return [[each.name, each.msg] for each in self._engine.get_notifies()]

    def write_and_notify(self, session: str, here: int, there: int, size: int, name: str) -> int:
        notify = TransferNotify(name, "message")
        return self._engine.transfer_sync(session, here, there, size, 1, notify)

    def _keep(self, memory, registered: bool) -> int:
        self._all.append(memory)
        if registered:
            assert self._engine.register_memory(memory.address, memory.bytes) == 0
        return memory.address


def main() -> None:
    engine = TransferEngine()
    host = sys.argv[1]
    assert engine.initialize(host, "P2PHANDSHAKE", "rdma", "") == 0
    print(json.dumps({"result": f"{host.split(':')[0]}:{engine.get_rpc_port()}"}), flush=True)
    memories = Memories(engine)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        of = memories if hasattr(memories, name) else engine
        print(json.dumps({"result": getattr(of, name)(*arguments)}), flush=True)


if __name__ == "__main__":
    main()
