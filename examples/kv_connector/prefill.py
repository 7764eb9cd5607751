"""The prefill side, and its hold on the decode processes."""

from __future__ import annotations

import atexit
import multiprocessing
import time
from typing import Any

import linkspan
import numpy as np
from connector import KVConnector
from decode import GPUS, HEAD_BYTES, HEADS, SECONDS, TOKENS, computed, make_caches, serve
from layout import Layout

if GPUS:
    import torch


class Rank:
    """A decode process. An error in a call ends it, and by EOFError us."""

    def __init__(self, name: str, heads: range, size: tuple[int, int], folder: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, name, heads, size, f"unix:{folder}/{name}")
        self.process = context.Process(target=serve, args=arguments, daemon=True)
        self.process.start()
        atexit.register(self.process.kill)  # however we end
        theirs.close()

    def ask(self, *call: Any) -> None:
        self.pipe.send(call)

    def answer(self) -> Any:
        if not self.pipe.poll(SECONDS):
            raise TimeoutError("a decode process does not answer")
        return self.pipe.recv()

    def __call__(self, *call: Any) -> Any:
        self.ask(*call)
        return self.answer()


class Prefill:
    def __init__(self, ranks: dict[str, range], size: tuple[int, int], folder: str) -> None:
        self.heads, self.size, self.folder = ranks, size, folder
        self.requests, self.moved = 0, 0
        self.caches = make_caches(*size, HEADS, 0)
        layout = Layout(TOKENS, HEADS, 0, HEAD_BYTES)
        self.connector = KVConnector("prefill", f"unix:{folder}/prefill", layout, self.caches)
        self.ranks: dict[str, Rank] = {}
        for name in ranks:
            self.start(name)

    def start(self, name: str) -> None:
        self.ranks[name] = Rank(name, self.heads[name], self.size, self.folder)
        self.connector.add_remote(name, self.ranks[name]("metadata"))

    def choose(self, side: int) -> list[int]:
        """Half of the pages, in runs of four as allocators have them, the runs in no order."""
        runs = np.random.default_rng([self.requests, side]).permutation(self.size[1] // 4)
        return (runs[: len(runs) // 2, None] * 4 + np.arange(4)).ravel().tolist()

    def compute(self, layer: int, mine: list[int], chunk: np.ndarray) -> None:
        new = computed(self.requests, layer, len(mine))[chunk]
        cache, pages = self.caches[layer], np.take(mine, chunk).tolist()
        cache[pages] = torch.from_numpy(new).to(cache.device) if GPUS else new

    def serve(self, ranks: list[str], mine: list[int] | None = None, its: Any = None) -> str:
        """A request in two chunks, each layer sent as soon as it is computed. How it went."""
        self.requests += 1
        name, mine, its = f"request {self.requests}", mine or self.choose(0), its or self.choose(1)
        for each in ranks:
            self.ranks[each]("expect", name, its)
        begin = time.perf_counter()
        self.connector.start_send(name, ranks, mine, its)
        for chunk in np.array_split(np.arange(len(mine)), 2):
            for layer in range(self.size[0]):
                self.compute(layer, mine, chunk)
                self.connector.send_layer(name, layer, chunk)
        if error := self.outcome(name):
            raise error
        moved = len(mine) * self.size[0] * self.connector.layout.page
        rate = moved / (time.perf_counter() - begin)
        for each in ranks:
            self.ranks[each]("outcome", name)
            self.ranks[each]("check", its, self.requests)
        self.moved += moved
        way = self.connector.remotes[ranks[0]]
        path = way.peer.explain("write", self.connector.layers[0], way.layers[0], bytes=moved).path
        return f"{moved} bytes, {rate / 1e9:.2f} GB/s while they are computed, by {path}, verified"

    def begin(self, rank: str, layers: int) -> tuple[str, list[int], list[int]]:
        """A request of which so many layers are on their way."""
        self.requests += 1
        name, mine, its = f"request {self.requests}", self.choose(0), self.choose(1)
        self.ranks[rank]("expect", name, its)
        self.connector.start_send(name, [rank], mine, its)
        everything = np.arange(len(mine))
        for layer in range(layers):
            self.compute(layer, mine, everything)
        if GPUS:
            torch.cuda._sleep(100_000_000)  # a forward pass that is not through yet
        for layer in range(layers):
            self.connector.send_layer(name, layer, everything)
        return name, mine, its

    def outcome(self, name: str) -> linkspan.Error | None:
        """None: it was sent."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            sent, _, failed = self.connector.get_finished(0.001)
            if name in sent or name in failed:
                return failed.get(name)
        raise TimeoutError(f"{name} does not end")
