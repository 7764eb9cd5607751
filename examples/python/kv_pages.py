"""Thousands of scattered KV pages from a prefill process to a decode process.

    python3 examples/python/kv_pages.py [--mib 256] [--rounds 12] [--quick]

The decode side says which of its pages are to be filled, the prefill side writes them all in one
transfer, and a notification that comes behind the data says so. Pages of 4, 16 and 64 KiB take
turns. Between two GPUs where torch finds them (or within one), else between the CPU memories of
the two processes. After each round every byte of the decode side's cache is compared.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from typing import Any

import linkspan
import numpy as np
from linkspan import util
from scenery import GPUS, SECONDS, bar, memory, pattern, run

if GPUS:
    import torch

MOST = 16000  # pages of a round: a notification of 64 KiB holds their indices


def fill(cache: Any, new: np.ndarray) -> None:
    cache[:] = torch.from_numpy(new) if GPUS else new  # is there when this returns


def content(cache: Any) -> np.ndarray:
    return cache.cpu().numpy() if GPUS else cache


def choose(size: int, number: int, side: str) -> tuple[int, np.ndarray]:
    """The size of this round's pages, and which ones: half of the cache, in no order."""
    page = (4 << 10, 16 << 10, 64 << 10)[number % 3]
    count = min(MOST, size // page // 2)
    random = np.random.default_rng([number, side == "prefill"])
    return page, random.permutation(size // page)[:count].astype(np.uint32)


def message(engine: linkspan.Engine) -> bytes:
    """The only one that is under way."""
    if not (came := engine.notifications(SECONDS)):
        raise TimeoutError("the other side says nothing")
    return came[0].message


def prefill(path: str, size: int, rounds: int) -> None:
    with linkspan.Engine("prefill") as engine:
        cache = memory(size, 0)
        ours = engine.register_memory(cache)
        decode = util.rendezvous(engine, 1, 2, path=path, timeout=SECONDS)[0]
        theirs = decode.lookup("kv", SECONDS)
        moved, took = 0, 0.0
        for number in range(rounds):
            bar(number, rounds)
            fill(cache, pattern(size, number))
            page, mine = choose(size, number, "prefill")
            wanted = np.frombuffer(message(engine), np.uint32)
            begin = time.perf_counter()
            pages = linkspan.Pages(page, mine, wanted)
            sent = decode.write(ours, theirs, pages, notification=b"round %d" % number)
            sent.wait(SECONDS)
            took += time.perf_counter() - begin
            moved += sent.bytes
            way = decode.explain("write", ours, theirs, len(pages), sent.bytes).path
        end = message(engine).decode()
        bar(rounds, rounds)
        print(f"{moved} bytes in pages, {moved / took / 1e9:.2f} GB/s by {way}, {end}")


def decode(path: str, size: int, rounds: int) -> None:
    with linkspan.Engine("decode") as engine:
        cache = memory(size, 1)
        expected = pattern(size, rounds)
        fill(cache, expected)
        engine.publish("kv", engine.register_memory(cache))
        prefill = util.rendezvous(engine, 0, 2, path=path, timeout=SECONDS)[1]
        for number in range(rounds):
            page, wanted = choose(size, number, "decode")
            prefill.notify(wanted.tobytes())
            if (came := message(engine)) != b"round %d" % number:
                raise ValueError(f"{came!r} instead of round {number}")
            _, sent = choose(size, number, "prefill")
            expected.reshape(-1, page)[wanted] = pattern(size, number).reshape(-1, page)[sent]
            wrong = np.flatnonzero(content(cache) != expected)
            if len(wrong):
                raise ValueError(f"round {number}: {len(wrong)} wrong bytes, from {wrong[0]} on")
        prefill.notify(b"verified")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256, help="of cache on each side")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--quick", action="store_true", help="some seconds on any machine")
    options = parser.parse_args()
    size, rounds = (32 << 20, 6) if options.quick else (options.mib << 20, options.rounds)
    spawn = multiprocessing.get_context("spawn").Process
    with tempfile.TemporaryDirectory() as folder:
        args = (f"{folder}/peer", size, rounds)
        return run([spawn(target=each, args=args) for each in (prefill, decode)])


if __name__ == "__main__":
    sys.exit(main())
