"""KV blocks from a GPU to host memory of another process and back, again and again.

    python3 examples/python/offload.py [--mib 256] [--rounds 8] [--quick]

Which block goes where is prepared once. Groups of blocks are then posted by their positions, each
group by a coroutine, so that some come back while others go out. What is out is wiped in the cache,
as if others used it. The memory of the store is shared, and pinned for the GPU; where torch finds
none the cache is CPU memory too. After each round the store compares every byte that it holds, and
the worker every byte that has come back.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import tempfile
import time
from typing import Any

import linkspan
import numpy as np
from linkspan import util
from scenery import GPUS, SECONDS, bar, pattern, run

if GPUS:
    import torch

BLOCK = 64 << 10
GROUPS, AT_ONCE = 16, 4


def slots(size: int) -> tuple[np.ndarray, np.ndarray]:
    """All blocks of the cache, in no order, and for each its slot in the store."""
    random = np.random.default_rng(1)
    return random.permutation(size // BLOCK), random.permutation(size // BLOCK)


def check(holds: np.ndarray, expected: np.ndarray, who: str) -> None:
    if wrong := np.count_nonzero(holds != expected):
        raise ValueError(f"{wrong} bytes of the {who} are wrong")


def message(engine: linkspan.Engine) -> bytes:
    """The only one that is under way."""
    if not (came := engine.notifications(SECONDS)):
        raise TimeoutError("the other side says nothing")
    return came[0].message


async def out_and_back(cache: Any, out: linkspan.Prepared, back: linkspan.Prepared) -> None:
    blocks = cache.reshape(-1, BLOCK)
    mine, _ = slots(len(blocks) * BLOCK)
    free = asyncio.Semaphore(AT_ONCE)

    async def move(group: np.ndarray) -> None:
        async with free:
            await out.post(group, deadline=SECONDS)
            blocks[mine[group].tolist()] = 0
            await back.post(group, deadline=SECONDS)  # after the current stream, so after the wipe

    await asyncio.gather(*map(move, np.array_split(np.arange(len(blocks)), GROUPS)))


def worker(path: str, size: int, rounds: int) -> None:
    with linkspan.Engine("worker") as engine:
        cache = torch.zeros(size, dtype=torch.uint8).cuda() if GPUS else np.zeros(size, np.uint8)
        ours = engine.register_memory(cache)
        store = util.rendezvous(engine, 1, 2, path=path, timeout=SECONDS)[0]
        its = store.lookup("store", SECONDS)
        pages = linkspan.Pages(BLOCK, *slots(size))
        out = store.prepare("write", ours, its, pages)
        back = store.prepare("read", ours, its, pages)
        some = (size // GROUPS, len(pages) // GROUPS)
        ways = [store.explain(op, ours, its, *some).path for op in ("write", "read")]
        took = 0.0
        for number in range(rounds):
            bar(number, rounds)
            new = pattern(size, number)
            cache[:] = torch.from_numpy(new) if GPUS else new
            begin = time.perf_counter()
            asyncio.run(out_and_back(cache, out, back))
            took += time.perf_counter() - begin
            store.notify(b"round %d" % number)
            end = message(engine).decode()
            check(cache.cpu().numpy() if GPUS else cache, new, "cache")
        bar(rounds, rounds)
        moved = 2 * rounds * size
        print(f"{moved} bytes, {moved / took / 1e9:.2f} GB/s by {' and '.join(ways)}, {end}")


def store(path: str, size: int, rounds: int) -> None:
    with linkspan.Engine("store") as engine:
        region = engine.allocate_shared(size, pin=GPUS > 0)
        engine.publish("store", region)
        worker = util.rendezvous(engine, 0, 2, path=path, timeout=SECONDS)[1]
        mine, its = slots(size)
        for number in range(rounds):
            if message(engine) != b"round %d" % number:
                raise ValueError(f"this is not round {number}")
            expected = np.empty((size // BLOCK, BLOCK), np.uint8)
            expected[its] = pattern(size, number).reshape(-1, BLOCK)[mine]
            check(np.frombuffer(region.memory, np.uint8), expected.reshape(-1), "store")
            worker.notify(b"verified")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256, help="of cache, all of which moves")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="some seconds on any machine")
    options = parser.parse_args()
    size, rounds = (32 << 20, 4) if options.quick else (options.mib << 20, options.rounds)
    spawn = multiprocessing.get_context("spawn").Process
    with tempfile.TemporaryDirectory() as folder:
        args = (f"{folder}/peer", size, rounds)
        return run([spawn(target=each, args=args) for each in (worker, store)])


if __name__ == "__main__":
    sys.exit(main())
