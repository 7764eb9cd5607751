#!/usr/bin/env python3
"""What Python adds to the library: python_overhead.py [--json FILE] [--quick]

Two Engines of one process, with tensors on two GPUs, or one, or memory of the CPU. A prepared
transfer of 8 bytes is posted and waited for by Python and, in turns, by C++ within the extension
module: the same objects, the same thread. Every row verifies what was moved.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from typing import Any, Callable

import linkspan

PAGES, PAGE_BYTES = 8192, 4096
IDLE_S = 3.0


def memories() -> tuple[Any, Any, Callable[[Any], bytes], str]:
    """(source, target, bytes of one of them, what they are); the source has a pattern."""
    size = PAGES * PAGE_BYTES
    try:
        import torch

        if torch.cuda.is_available():
            last = torch.cuda.device_count() - 1
            source = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda:0")
            target = torch.zeros(size, dtype=torch.uint8, device=f"cuda:{last}")
            torch.cuda.synchronize()
            return source, target, lambda t: t.cpu().numpy().tobytes(), f"cuda:0 to cuda:{last}"
    except ImportError:
        pass
    return bytearray(i * 31 >> 3 & 255 for i in range(size)), bytearray(size), bytes, "CPU to CPU"


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


def index_arrays() -> list[tuple[str, Any]]:
    try:
        import torch

        return [(f"torch.{name}", torch.randperm(PAGES).to(getattr(torch, name)))
                for name in ("int32", "int64")]
    except ImportError:
        import numpy

        return [(f"numpy.{name}", numpy.random.permutation(PAGES).astype(name))
                for name in ("int32", "int64")]


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
            rows[-1].update(bar=bar, **{"pass": rows[-1].get("above", value) <= bar})
        print(json.dumps(rows[-1]))

    source, target, content, what = memories()
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
                ceiling_how=f"the same post and wait by C++, {what}",
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

        begin, used = time.monotonic(), time.process_time()
        time.sleep(IDLE_S / (6 if args.quick else 1))
        share = 100 * (time.process_time() - used) / (time.monotonic() - begin)
        row("idle_engines", share, "% of a core", 1.0, how="two Engines that are peers", runs=1)
    if args.json:
        value = {"what": "what Python adds to the library", "command": "bench/python_overhead.py",
                 "rows": rows}
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
