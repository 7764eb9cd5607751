"""A process with Ray's transport, as an actor has it: it does what each line of its input asks.

For each line [name, [argument, ...]] in base64 of a pickle it writes {"result": ...} or the error,
likewise. A name is a method below, or of linkspan.ray.LinkspanTransport.
"""

from __future__ import annotations

import base64
import pickle
import sys
import weakref
from typing import Any

import linkspan.ray
import numpy as np
from ray.experimental.rdt.tensor_transport_manager import CommunicatorMetadata


def pattern(size: int, seed: int) -> np.ndarray:
    """Differs at every position, and between seeds."""
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


class Actor:
    def __init__(self) -> None:
        self.transport = linkspan.ray.LinkspanTransport()
        self.objects: dict[str, list[np.ndarray]] = {}
        self.freed: list[int] = []

    def make(self, obj_id: str, sizes: list[int], seed: int) -> Any:
        arrays = [pattern(size, seed + index) for index, size in enumerate(sizes)]
        for array in arrays:
            weakref.finalize(array, self.freed.append, array.size)
        self.objects[obj_id] = arrays
        return self.transport.extract_tensor_transport_metadata(obj_id, arrays)

    def collect(self, obj_id: str) -> list[int]:
        """Frees the object as Ray does; returns the sizes that were freed."""
        self.transport.garbage_collect(obj_id, None, self.objects[obj_id])
        del self.objects[obj_id]
        return self.freed

    def receive(self, obj_id: str, metadata: Any) -> list[np.ndarray]:
        return self.transport.recv_multiple_tensors(obj_id, metadata, CommunicatorMetadata())

    def left(self) -> int:
        return len(self.transport._leaving)


def main() -> None:
    actor = Actor()
    for line in sys.stdin.buffer:
        name, arguments = pickle.loads(base64.b64decode(line))
        try:
            answer = {"result": getattr(actor, name)(*arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.buffer.write(base64.b64encode(pickle.dumps(answer)) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
