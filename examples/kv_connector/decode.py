"""A decode process: its caches, its connector, and the calls that it takes from stdin."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import time
from typing import Any

import numpy as np
from connector import KVConnector
from layout import Layout

try:
    import torch

    GPUS = torch.cuda.device_count()
except ImportError:
    GPUS = 0
SECONDS = 30.0  # of any single wait
TOKENS, HEADS, HEAD_BYTES = 16, 8, 128
WIPED = 0xEE


def make_caches(layers: int, pages: int, heads: int, gpu: int) -> list[Any]:
    shape = (pages, 2 * TOKENS, heads, HEAD_BYTES)
    if GPUS:
        where = {"dtype": torch.uint8, "device": f"cuda:{gpu % GPUS}"}
        return [torch.full(shape, WIPED, **where) for _ in range(layers)]
    return [np.full(shape, WIPED, np.uint8) for _ in range(layers)]


def computed(request: int, layer: int, pages: int) -> np.ndarray:
    """Returns a layer of a request: each eight bytes of it occur nowhere else."""
    words = np.arange(pages * 2 * TOKENS * HEADS * HEAD_BYTES // 8, dtype=np.uint64)
    words += np.uint64(request << 48 | layer << 32)
    shape = (pages, 2 * TOKENS, HEADS, HEAD_BYTES)
    return (words * np.uint64(0x9E3779B97F4A7C15)).view(np.uint8).reshape(shape)


class Decode:
    def __init__(self, name: str, heads: range, size: tuple[int, int], secret: Any) -> None:
        self.name, self.heads = name, heads
        self.caches = make_caches(*size, len(heads), 1)
        self.expected = [np.full(tuple(each.shape), WIPED, np.uint8) for each in self.caches]
        layout = Layout(TOKENS, len(heads), heads.start, HEAD_BYTES)
        self.connector = KVConnector(name, layout, self.caches, secret)
        self.outcomes: dict[str, str] = {}

    def metadata(self, address: str) -> bytes:
        return self.connector.metadata(address)

    def expect(self, request: str, pages: list[int]) -> None:
        self.connector.start_receive(request, "prefill", len(pages))

    def outcome(self, request: str) -> str:
        until = time.monotonic() + SECONDS
        while request not in self.outcomes:
            if time.monotonic() > until:
                raise TimeoutError(f"{self.name}: {request} does not come")
            _, received, failed = self.connector.get_finished(0.1)
            self.outcomes |= {each: str(error) for each, error in failed.items()}
            self.outcomes |= dict.fromkeys(received, "received")
        return self.outcomes.pop(request)

    def abort(self, request: str, pages: list[int]) -> None:
        """Aborts it, and uses its pages again at once."""
        self.connector.abort(request)
        self.wipe(pages)

    def wipe(self, pages: list[int]) -> None:
        for layer in reversed(range(len(self.caches))):  # what may still come is the last ones
            self.caches[layer][pages] = self.expected[layer][pages] = WIPED
        if GPUS:
            torch.cuda.synchronize()  # the prefill side follows no stream of ours

    def check(self, pages: list[int], request: int) -> None:
        """Checks that these pages hold the request, and all others what they held before."""
        heads = slice(self.heads.start, self.heads.stop)
        for layer, expected in enumerate(self.expected):
            expected[pages] = computed(request, layer, len(pages))[:, :, heads]
        self.check_nothing_else()

    def check_nothing_else(self) -> None:
        for layer, (cache, expected) in enumerate(zip(self.caches, self.expected)):
            if wrong := np.count_nonzero((cache.cpu().numpy() if GPUS else cache) != expected):
                raise ValueError(f"{self.name}: {wrong} bytes of layer {layer} are wrong")

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    with contextlib.suppress(EOFError):  # the prefill side has ended
        decode = Decode(*pickle.load(sys.stdin.buffer))
        while True:
            what, *arguments = pickle.load(sys.stdin.buffer)
            pickle.dump(getattr(decode, what)(*arguments), sys.stdout.buffer)
            sys.stdout.buffer.flush()
