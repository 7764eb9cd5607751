"""The prefill side, which starts the decode processes."""

from __future__ import annotations

import atexit
import pathlib
import pickle
import select
import subprocess
import sys
import time
from typing import Any

import linkspan
import numpy as np
from connector import KVConnector
from decode import GPUS, HEAD_BYTES, HEADS, SECONDS, TOKENS, computed, make_caches
from layout import Layout

if GPUS:
    import torch


class Rank:
    """A decode process. An error in a call ends it, and then this process by EOFError."""

    def __init__(self, start: list[str], *arguments: Any) -> None:
        program = [*start, sys.executable, str(pathlib.Path(__file__).with_name("decode.py"))]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(program, stdin=pipe, stdout=pipe)
        atexit.register(self.process.kill)  # however this process ends
        self.ask(*arguments)

    def ask(self, *call: Any) -> None:
        pickle.dump(call, self.process.stdin)
        self.process.stdin.flush()

    def answer(self) -> Any:
        if not select.select([self.process.stdout], [], [], SECONDS)[0]:
            raise TimeoutError("a decode process does not answer")
        return pickle.load(self.process.stdout)

    def __call__(self, *call: Any) -> Any:
        self.ask(*call)
        return self.answer()


class Prefill:
    def __init__(
        self, ranks: dict[str, range], size: tuple[int, int], address: str, secret: Any, by: list
    ) -> None:
        """Starts the decode processes by the command `by`, here without one. They listen at the
        address, in which {} becomes the name of each."""
        self.heads, self.size, self.address, self.secret, self.by = ranks, size, address, secret, by
        self.requests, self.moved, self.ranks = 0, 0, {}
        self.caches = make_caches(*size, HEADS, 0)
        layout = Layout(TOKENS, HEADS, 0, HEAD_BYTES)
        self.connector = KVConnector("prefill", layout, self.caches, secret)
        for name in ranks:
            self.start(name)

    def start(self, name: str) -> None:
        rank = self.ranks[name] = Rank(self.by, name, self.heads[name], self.size, self.secret)
        self.connector.add_remote(name, rank("metadata", self.address.format(name)))

    def choose(self, side: int) -> list[int]:
        """Returns half of the pages, in runs of four as allocators have them, in no order."""
        runs = np.random.default_rng([self.requests, side]).permutation(self.size[1] // 4)
        return (runs[: len(runs) // 2, None] * 4 + np.arange(4)).ravel().tolist()

    def compute(self, layer: int, mine: list[int], chunk: np.ndarray) -> None:
        new = computed(self.requests, layer, len(mine))[chunk]
        cache, pages = self.caches[layer], np.take(mine, chunk).tolist()
        cache[pages] = torch.from_numpy(new).to(cache.device) if GPUS else new

    def serve(
        self, ranks: list[str], mine: Any = None, its: Any = None, whole: bool = False
    ) -> str:
        """Serves a request: whole, or in two chunks, each layer sent once it is computed. Returns
        how it went."""
        self.requests += 1
        name, mine, its = f"request {self.requests}", mine or self.choose(0), its or self.choose(1)
        for each in ranks:
            self.ranks[each]("expect", name, its)
        begin = time.perf_counter()
        sends = self.connector.start_send(name, ranks, mine, its)
        for chunk in np.array_split(np.arange(len(mine)), 1 if whole else 2):
            for layer in range(self.size[0]):
                self.compute(layer, mine, chunk)
                if not whole:
                    self.connector.send(name, slice(layer, layer + 1), chunk)
        if whole:
            self.connector.send(name)
        if error := self.outcome(name):
            raise error
        transfers = [each for send in sends for each in send.transfers]
        moved = sum(each.bytes for each in transfers)
        rate = moved / (time.perf_counter() - begin)
        for each in ranks:
            self.ranks[each]("outcome", name)
            self.ranks[each]("check", its, self.requests)
        self.moved += moved
        to, layer = sends[0].to, self.connector.layers[0]
        path = to.peer.explain("write", layer, to.layers[0]).path
        return f"{moved} bytes in {len(transfers)} transfers, {rate / 1e9:.2f} GB/s with the" \
            f" computing, by {path}, verified"

    def begin(self, rank: str, layers: int) -> tuple[str, list[int], list[int]]:
        """Begins a request, and sends its first layers one by one."""
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
            self.connector.send(name, slice(layer, layer + 1))
        return name, mine, its

    def outcome(self, name: str) -> linkspan.Error | None:
        """Waits for the end of a request. None: it was sent."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            sent, _, failed = self.connector.get_finished(0.001)
            if name in sent or name in failed:
                return failed.get(name)
        raise TimeoutError(f"{name} does not end")
