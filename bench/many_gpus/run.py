#!/usr/bin/env python3
"""All GPUs of a host at once: every pair, one to all, prefill to decode, host memory over several
links; beside the driver's own copies in one process.

run.py [--json FILE] [--quick] [--turns N] [--gpus N]

Each GPU has a process of rank.py with an Engine, and for the last rows several, of which half prefill
and half decode. The ranks begin at one time; a value is all bytes by the time from the first begin to
the last end, the median of the turns, which alternate with the ceiling's. Every row's bytes are
verified after it. Rows `start.*` say what it costs that all have met all. Exit: 0 all is measured, or
there are fewer than two GPUs; 1 not.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys
import time
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "tests" / "support"), str(HERE.parent)]

from child import Absent  # noqa: E402
from cuda_memory import Driver  # noqa: E402
from ranks import child_of  # noqa: E402

LEAD_S = 0.02  # from the order to the begin of all
MIB = 1 << 20
RELAYS = 4  # at most
ENGINES = 8  # that prefill, and as many that decode
BARE_HOW = "cuMemcpyAsync on a stream for each pair, of one process"


class Bench:
    def __init__(self, gpus: int, count: int, slot: int, turns: int) -> None:
        """Starts `count` ranks, one GPU after the other."""
        self.gpus, self.count, self.slot, self.turns = gpus, count, slot, turns
        self.rows: list[dict[str, Any]] = []
        self.seed = 0
        self.bare = child_of("bare", gpus, gpus)
        self.ranks = [child_of(str(i), count, gpus) for i in range(count)]

    def all(self, method: str, *arguments: Any) -> list[Any]:
        for rank in self.ranks:
            rank.order(method, *arguments)
        return [rank.answer(method) for rank in self.ranks]

    def start(self, name: str = "start") -> None:
        self.bare.ask("set_up", self.slot)
        opened = self.all("set_up", self.slot)
        addresses = [address for address, _ in opened]
        met = self.all("meet", addresses)
        for id, unit, values in (
            (f"{name}.open", "ms", [1e3 * seconds for _, seconds in opened]),
            (f"{name}.meet_all", "ms", [1e3 * seconds for seconds, _, _ in met]),
            (f"{name}.memory", "MiB", [kib / 1024 for _, kib, _ in met]),
            (f"{name}.descriptors", "", [files for _, _, files in met]),
        ):
            self.rows.append({"id": id, "value": round(max(values), 3), "unit": unit})
        self.addresses = addresses

    def row(
        self, name: str, method: str, targets: dict[int, list[int]], size: int
    ) -> None:
        """Lets each rank of `targets` write `size` bytes to each of its targets, all at once."""
        self.seed += 1000
        self.all("fill", self.seed)
        pairs = [(source, target) for source, all_of in targets.items() for target in all_of]
        times, ceilings = [], []
        of_gpus = [(source % self.gpus, target % self.gpus) for source, target in pairs]
        for turn in range(self.turns + 1):
            ceiling = self.bare.ask("copy", of_gpus, size)
            begin = time.monotonic() + LEAD_S
            for source, all_of in targets.items():
                self.ranks[source].order(method, begin, all_of, size)
            ran = [self.ranks[source].answer(method) for source in targets]
            if turn > 0:  # the first one maps and warms up
                times.append(max(end for _, end in ran) - min(at for at, _ in ran))
                ceilings.append(ceiling)
        writers = [[s for s, all_of in targets.items() if i in all_of] for i in range(self.count)]
        for rank, of in zip(self.ranks, writers, strict=True):
            rank.order("wrong", self.seed, of, size)
        wrong = [rank.answer("wrong") for rank in self.ranks]
        if any(wrong):
            raise Absent(f"{name}: wrong bytes by rank: {wrong}")
        source, target = pairs[0]
        self.tell(name, len(pairs) * size, times, ceilings, BARE_HOW,
                  self.ranks[source].ask("path", target, size))  # fmt: skip

    def tell(
        self, name: str, size: int, times: list[float], ceilings: list[float], how: str, path: str
    ) -> None:
        took, bare = statistics.median(times), statistics.median(ceilings)
        self.rows.append(
            {
                "id": name, "value": round(size / took / 1e9, 1), "unit": "GB/s",
                "ceiling": round(size / bare / 1e9, 1), "ceiling_how": how,
                "ratio": round(bare / took, 3), "runs": len(times), "verified": True,
                "max_us": round(1e6 * max(times), 1), "path": path,
            }  # fmt: skip
        )
        print(f"{name:28} {size / took / 1e9:8.1f} GB/s  {bare / took:6.3f} of bare  {path}")

    def from_host(self, relays: int) -> None:
        """Rank 0 writes pinned memory to the last GPU, over the links of so many others as well."""
        size, last, first = self.slot, self.ranks[-1], self.ranks[0]
        self.seed += 1000
        last.ask("fill", self.seed)
        first.ask("borrow", relays, self.addresses[-1], size, self.seed)
        times, ceilings = [], []
        for turn in range(self.turns + 1):
            ceiling = self.bare.ask("copy", [(-1, self.count - 1)], size)
            at, end = first.ask("write_from_host", time.monotonic() + LEAD_S, size)
            if turn > 0:
                times.append(end - at)
                ceilings.append(ceiling)
        if wrong := last.ask("wrong", self.seed, [0], size):
            raise Absent(f"host to a GPU by {relays} relays: {wrong} wrong bytes")
        first.ask("give_back")
        self.tell(f"host_to_gpu.relays{relays}", size, times, ceilings,
                  "cuMemcpyAsync over the GPU's own link", f"{relays} relays")  # fmt: skip

    def run(self) -> None:
        self.start()
        everyone = range(self.count)
        large = f"{self.slot // MIB}MiB" if self.slot >= MIB else f"{self.slot // 1024}KiB"
        others = {i: [j for j in everyone if j != i] for i in everyone}
        self.row(f"all_pairs.{large}", "write", others, self.slot)
        self.row(f"ring.{large}", "write", {i: [(i + 1) % self.count] for i in everyone}, self.slot)
        self.row(f"one_to_all.{large}", "write_to_all", {0: others[0]}, self.slot)
        self.prefill_to_decode("prefill_decode.pages", 0)
        for relays in range(min(RELAYS, self.count - 1) + 1):
            self.from_host(relays)

    def prefill_to_decode(self, name: str, shift: int) -> None:
        """The first half of the ranks write pages to the second half, each to one that is `shift`
        further."""
        half = self.count // 2
        decode = {i: [half + (i + shift) % half] for i in range(half)}
        self.row(name, "write_pages", decode, min(self.slot, 32 * MIB))

    def run_engines(self) -> None:
        """Several ranks on each GPU. The shift brings both ranks of a pair to different GPUs where
        half of the ranks are a multiple of the GPUs."""
        half = self.count // 2
        self.start(f"start.{self.count}_engines")
        self.prefill_to_decode(f"prefill_decode.{half}x{half}.pages", 1)

    def end(self) -> None:
        for each in (*self.ranks, self.bare):
            each.end(well=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="little memory and one turn")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--gpus", type=int, help="so many of those there are")
    options = parser.parse_args()
    try:
        there = Driver().gpus
    except (OSError, RuntimeError):
        there = 0
    count = min(there, options.gpus or there)
    if count < 2:
        print(f"nothing to measure: {count} GPUs, needs two")
        return 0
    quick, turns = options.quick, 1 if options.quick else options.turns
    os.environ.setdefault("LINKSPAN_LOG_LEVEL", "ERROR")
    rows: list[dict[str, Any]] = []
    try:
        for ranks, slot, run in (
            (count, 96 * 1024 if quick else 256 * MIB, Bench.run),
            (2 * (2 if quick else ENGINES), 96 * 1024 if quick else 32 * MIB, Bench.run_engines),
        ):
            bench = Bench(count, ranks, slot, turns)
            try:
                run(bench)
            finally:
                rows += bench.rows
                bench.end()
    except Absent as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    finally:
        if options.json:
            options.json.write_text(json.dumps({"gpus": count, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
