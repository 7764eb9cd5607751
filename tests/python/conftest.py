"""Two Engines of one process for most tests, and memory of this machine's kinds.

With a driver, the simulated one or a real one (LINKSPAN_CUDA_LIBRARY), GPU memory is there too.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import resource
import subprocess
import sys
import weakref
from typing import Any, Callable, Iterator

import numpy as np
import pytest

import linkspan

REPOSITORY = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "support"))
# Thousands of messages in flight take a descriptor each, and a shell begins with 1,024.
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))


def pattern(size: int, seed: int = 1) -> np.ndarray:
    """Differs at every position, and between seeds."""
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def run(code: str, timeout: float = 60) -> subprocess.CompletedProcess:
    """Runs a program in another interpreter."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True, text=True, timeout=timeout,
    )


@dataclasses.dataclass
class Pair:
    here: linkspan.Engine
    there: linkspan.Engine
    peer: linkspan.Peer  # of `here`: there
    back: linkspan.Peer  # of `there`: here

    def remote(self, memory: object, name: str = "memory") -> linkspan.RemoteRegion:
        """Registered over there, imported here."""
        self.there.publish(name, self.there.register_memory(memory))
        return self.peer.lookup(name)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with linkspan.Engine("here") as here, linkspan.Engine("there") as there:
        peer = here.connect(there.listen())
        yield Pair(here, there, peer, there.accept())


@pytest.fixture
def gpu() -> Iterator[Callable[[np.ndarray], Any]]:
    """Makes an array on the first GPU, as CuPy's as far as linkspan looks."""
    if os.environ.get("LINKSPAN_CUDA_LIBRARY", "").startswith("/non"):
        pytest.skip("needs a GPU")
    import cuda_memory

    driver = cuda_memory.Driver()

    class Array(cuda_memory.Gpu):
        def __init__(self, data: np.ndarray) -> None:
            super().__init__(driver, 0, data.tobytes())
            weakref.finalize(self, freed.append, self.address)
            self.__cuda_array_interface__ = {
                "shape": data.shape,
                "typestr": data.dtype.str,
                "data": (self.address, False),
                "version": 3,
            }

    freed: list[int] = []
    Array.driver, Array.freed = driver, freed
    yield Array
