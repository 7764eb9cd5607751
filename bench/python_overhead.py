#!/usr/bin/env python3
"""What Python adds to the library: python_overhead.py [--json FILE] [--quick]

Two Engines of one process, with tensors on two GPUs, or one, or memory of the CPU. A prepared
transfer of 8 bytes is posted and waited for by Python and, in turns, by C++ within the extension
module: the same objects, the same thread. Pages by lists of indices, of one region and of 122, are
written by Python in turns with as many pages whose list was prepared, posted by C++. Every row
verifies what was moved.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import subprocess
import sys
import time
from typing import Any, Callable, Iterator

import linkspan

PAGES, PAGE_BYTES = 8192, 4096
REGIONS, REGION_PAGES, REGION_ROOM = 122, 67, 84  # pages of a region that move, and that it has
IDLE_S, SETTLE_S, IDLE_PEERS = 3.0, 1.0, 64


class HostMemories:
    """Makes, fills and reads memory of the CPU. What it holds is random."""

    what = "CPU to CPU"

    def make(self, size: int, target: bool = False) -> Any:
        return bytearray(random.randbytes(size))

    def fill(self, memory: Any) -> None:
        memory[:] = random.randbytes(len(memory))

    def content(self, memory: Any) -> bytes:
        return bytes(memory)


class GpuMemories:
    """The same of two GPUs, or of one: sources on the first, targets on the last."""

    def __init__(self, torch: Any) -> None:
        self.torch, self.last = torch, torch.cuda.device_count() - 1
        self.what = f"cuda:0 to cuda:{self.last}"

    def make(self, size: int, target: bool = False) -> Any:
        device = f"cuda:{self.last if target else 0}"
        memory = self.torch.empty(size, dtype=self.torch.uint8, device=device)
        self.fill(memory)
        return memory

    def fill(self, memory: Any) -> None:
        memory.random_(0, 256)
        self.torch.cuda.synchronize(memory.device)

    def content(self, memory: Any) -> bytes:
        return memory.cpu().numpy().tobytes()


Memories = HostMemories | GpuMemories


def memories() -> Memories:
    try:
        import torch

        if torch.cuda.is_available():
            return GpuMemories(torch)
    except ImportError:
        pass
    return HostMemories()


def p50(times: list[float]) -> float:
    return statistics.median(times)


def python_posts(prepared: linkspan.Prepared, runs: int, **options: Any) -> list[float]:
    times = []
    for _ in range(runs):
        begin = time.perf_counter_ns()
        prepared.post(**options).wait(10)
        times.append(time.perf_counter_ns() - begin)
    return times


def awaited_posts(prepared: linkspan.Prepared, runs: int) -> list[float]:
    async def go() -> list[float]:
        times = []
        for _ in range(runs):
            begin = time.perf_counter_ns()
            await prepared.post(after=None)
            times.append(time.perf_counter_ns() - begin)
        return times

    return asyncio.run(go())


def index_arrays(pages: int = PAGES) -> list[tuple[str, Any]]:
    try:
        import torch

        return [(f"torch.{name}", torch.randperm(pages).to(getattr(torch, name)))
                for name in ("int32", "int64")]
    except ImportError:
        import numpy

        return [(f"numpy.{name}", numpy.random.permutation(pages).astype(name))
                for name in ("int32", "int64")]


def shuffled(count: int, room: int) -> tuple[Any, Any]:
    """Returns two lists of `count` of `room` pages, each in an order of its own."""
    return index_arrays(room)[0][1][:count], index_arrays(room)[0][1][:count]


class PagesByPython:
    """Writes the same pages between each source and its target, from two lists of indices."""

    def __init__(
        self,
        memory: Memories,
        sources: list[Any],
        targets: list[Any],
        count: int,
        write: Callable[[linkspan.Pages], linkspan.Transfer],
    ) -> None:
        self.memory, self.sources, self.targets, self.write = memory, sources, targets, write
        self.here, self.there = shuffled(count, len(sources[0]) // PAGE_BYTES)
        self.pages = count * len(sources)

    def times(self, runs: int) -> list[float]:
        """Makes the Pages too, as a program does whose lists change."""
        times = []
        for _ in range(runs):
            begin = time.perf_counter_ns()
            self.write(linkspan.Pages(PAGE_BYTES, self.here, self.there)).wait(10)
            times.append(time.perf_counter_ns() - begin)
        return times

    def verify(self) -> None:
        """Moves fresh data once: each page has to be in place, and no other may change."""
        expected = []
        for source, target in zip(self.sources, self.targets):
            self.memory.fill(source)
            self.memory.fill(target)
            sent, pages = self.memory.content(source), bytearray(self.memory.content(target))
            for here, there in zip(self.here.tolist(), self.there.tolist()):
                at = there * PAGE_BYTES
                pages[at : at + PAGE_BYTES] = sent[here * PAGE_BYTES : (here + 1) * PAGE_BYTES]
            expected.append(bytes(pages))
        self.times(1)
        assert [self.memory.content(target) for target in self.targets] == expected


@contextlib.contextmanager
def other_process_of_peers(address: str) -> Iterator[None]:
    program = (
        "import linkspan, sys\n"
        "engines = [linkspan.Engine() for _ in range(int(sys.argv[2]))]\n"
        "peers = [each.connect(sys.argv[1]) for each in engines]\n"
        "print('connected', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, address, str(IDLE_PEERS)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "connected\n"
        yield
        process.stdin.close()


def idle_share(seconds: float) -> float:
    """Returns how much of a core this process takes, in percent, while nothing moves."""
    time.sleep(SETTLE_S)
    begin, used = time.monotonic(), time.process_time()
    time.sleep(seconds)
    return 100 * (time.process_time() - used) / (time.monotonic() - begin)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    runs, turns = (50, 3) if args.quick else (400, 10)
    rows: list[dict[str, Any]] = []

    def row(id: str, value: float, unit: str, bar: float | None = None, **more: Any) -> None:
        rows.append({"id": id, "value": round(value, 3), "unit": unit, **more, "verified": True})
        if bar is not None:
            met = more["ratio"] >= bar if unit == "GB/s" else more.get("above", value) <= bar
            rows[-1].update(bar=bar, **{"pass": met})
        print(json.dumps(rows[-1]))

    memory = memories()
    size, content = PAGES * PAGE_BYTES, memory.content
    source, target = memory.make(size), memory.make(size, target=True)
    with linkspan.Engine("here") as here, linkspan.Engine("there") as there:
        there.publish("target", there.register_memory(target))
        peer = here.connect(there.listen())
        region, remote = here.register_memory(source), peer.lookup("target")
        small = peer.prepare("write", region, remote, [(8, 16, 8)])
        cpp, python, ordered, waited = [], [], [], []
        for _ in range(turns + 1):
            cpp.append(small._measure(runs))
            python.append(python_posts(small, runs, after=None))
            ordered.append(python_posts(small, runs))
            waited.append(awaited_posts(small, runs))
        assert content(target)[16:24] == content(source)[8:16]
        of_cpp = p50(sum(cpp[1:], []))
        for id, times, bar in (
            ("post_prepared.p50", python, 2.0),
            ("post_prepared.after_current_stream.p50", ordered, None),
            ("await_prepared.p50", waited, None),
        ):
            value = p50(sum(times[1:], []))
            row(id, value / 1e3, "us", bar, ceiling=round(of_cpp / 1e3, 3),
                ceiling_how=f"the same post and wait by C++, {memory.what}",
                ratio=round(value / of_cpp, 3), above=round((value - of_cpp) / 1e3, 3),
                runs=runs * turns)

        for name, index in index_arrays():
            times = []
            for _ in range(runs):
                begin = time.perf_counter_ns()
                pages = linkspan.Pages(PAGE_BYTES, index, index)
                times.append(time.perf_counter_ns() - begin)
            peer.write(region, remote, pages).wait(10)
            assert content(target) == content(source)
            id = "pages_8192_from_tensor" + ("" if "32" in name else ".int64")
            row(id, p50(times) / 1e3, "us", 100.0, how=f"two lists of {name}", runs=runs)

        room = REGION_ROOM * PAGE_BYTES
        sources = [memory.make(room) for _ in range(REGIONS)]
        targets = [memory.make(room, target=True) for _ in range(REGIONS)]
        there.publish("layers", [there.register_memory(each) for each in targets])
        regions = [here.register_memory(each) for each in sources]
        layers = peer.lookup_set("layers")
        for id, bar, pages in (
            ("pages.8192x4KiB.python", 0.90,
             PagesByPython(memory, [source], [target], PAGES,
                           lambda shape: peer.write(region, remote, shape, after=None))),
            ("pages.122x67.sets.python", 0.80,
             PagesByPython(memory, sources, targets, REGION_PAGES,
                           lambda shape: peer.write(regions, layers, shape, after=None))),
        ):
            pages.verify()
            ready = peer.prepare("write", region, remote,
                                 linkspan.Pages(PAGE_BYTES, *shuffled(pages.pages, PAGES)))
            cpp, python = [], []
            for _ in range(turns + 1):
                python.append(pages.times(runs // 20))
                cpp.append(ready._measure(runs // 20))
            pages.verify()
            of_cpp, value = p50(sum(cpp[1:], [])), p50(sum(python[1:], []))
            bytes_moved = pages.pages * PAGE_BYTES
            row(id, bytes_moved / value, "GB/s", bar, ceiling=round(bytes_moved / of_cpp, 3),
                ceiling_how=f"{pages.pages} pages of one region by a prepared list, posted and "
                            f"awaited by C++, {memory.what}",
                ratio=round(of_cpp / value, 3), runs=turns * (runs // 20))

        idle_s = IDLE_S / (6 if args.quick else 1)
        with other_process_of_peers(there.address):
            row("idle_engine.64_peers", idle_share(idle_s), "% of a core", 0.3,
                how=f"an Engine with {IDLE_PEERS} peers of another process and one of this, which "
                    "is idle too", runs=1)
        more = [linkspan.Engine() for _ in range(IDLE_PEERS - 1)]
        peers = [each.connect(there.address) for each in more]
        row("idle_engines", idle_share(idle_s), "% of a core",
            how=f"an Engine with {len(peers) + 1} peers, and these", runs=1)
    if args.json:
        value = {"what": "what Python adds to the library", "command": "bench/python_overhead.py",
                 "rows": rows}
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
