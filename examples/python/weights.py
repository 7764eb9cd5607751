"""Weights from a trainer to two workers: whole versions of 10,000 tensors of odd sizes.

    python3 examples/python/weights.py [--mib 256] [--versions 8] [--quick]

The tensors are packed into four buffers, because a set has at most 1024 regions, and read as one
list of blocks for each. The trainer fills buffers that no reader knows, publishes them in the place
of the last version and waits for nobody: that one it takes back when it needs the memory again.
Workers verify that what they have read is wholly one version, whichever they have missed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time

import linkspan
import numpy as np
from linkspan import util
from scenery import GPUS, SECONDS, bar, memory, pattern, run

if GPUS:
    import torch

TENSORS, BUFFERS, WORKERS = 10_000, 4, 2


def layout(mib: int) -> list[np.ndarray]:
    """For each buffer its tensors, as rows of (place at a worker, place in the buffer, bytes)."""
    sizes = np.random.default_rng(1).integers(0, (mib << 20) // TENSORS, TENSORS) * 2 + 1
    room = (sizes + 255) // 256 * 256  # a worker has each on a border of 256 bytes
    places = np.cumsum(room) - room
    split = zip(np.split(places, BUFFERS), np.split(sizes, BUFFERS))
    return [np.stack([here, np.cumsum(size) - size, size], axis=1) for here, size in split]


def trainer(path: str, mib: int, versions: int) -> None:
    with linkspan.Engine("trainer") as engine:
        workers = util.rendezvous(engine, 0, 1 + WORKERS, path=path, timeout=SECONDS)[1:]
        both = [[memory(int(each[:, 2].sum()), 0) for each in layout(mib)] for _ in range(2)]
        published: list[list[linkspan.Region]] = [[], []]
        for version in range(1, versions + 1):
            turn = version % 2  # the other buffers are the last version, and stay readable
            for old in published[turn]:
                engine.deregister(old, SECONDS)  # ends when its readers have let go of it
            for number, buffer in enumerate(both[turn]):
                new = pattern(len(buffer), version * BUFFERS + number)
                buffer[:] = torch.from_numpy(new) if GPUS else new  # is there when this returns
            published[turn] = [
                engine.register_memory(each, peers_write=False) for each in both[turn]
            ]
            engine.publish("weights", published[turn])
            time.sleep(0.1)  # in which the next step is computed
            bar(version, versions)
        for each in workers:
            each.recv(0, bytearray(7)).wait(SECONDS)


def worker(rank: int, path: str, mib: int, versions: int) -> None:
    with linkspan.Engine(f"worker {rank}") as engine:
        tensors = layout(mib)
        peer = util.rendezvous(engine, rank, 1 + WORKERS, path=path, timeout=SECONDS)[0]
        weights = memory(int(tensors[-1][-1, 0] + tensors[-1][-1, 2]), rank)
        into = engine.register_memory(weights)
        version, whole, took = 0, 0, 0.0
        while version < versions:
            peer.await_version("weights", version, SECONDS)
            begin = time.perf_counter()
            try:
                version, way = read(peer, into, tensors)
            except linkspan.UnreachableError:
                continue  # the trainer has taken it back meanwhile: there is a newer one
            took += time.perf_counter() - begin
            verify(weights.cpu().numpy() if GPUS else weights, version, tensors)
            whole += 1
        moved = whole * int(np.concatenate(tensors)[:, 2].sum())
        said = f"worker {rank}: {moved} bytes, {moved / took / 1e9:.2f} GB/s by {way}"
        sys.stdout.write(f"{said}, {whole} of {versions} versions verified\n")  # in one piece
        peer.send(0, b"through").wait(SECONDS)


def read(peer: linkspan.Peer, into: linkspan.Region, tensors: list[np.ndarray]) -> tuple[int, str]:
    """The current version and the way that it took. Its end lets go of the set."""
    weights = peer.lookup_set("weights", SECONDS)
    for region, blocks in zip(weights.regions, tensors):
        peer.read(into, region, blocks).wait(SECONDS)
    return weights.version, peer.explain("read", into, region, len(blocks), region.bytes).path


def verify(weights: np.ndarray, version: int, tensors: list[np.ndarray]) -> None:
    expected = np.zeros_like(weights)  # as between the tensors
    for number, blocks in enumerate(tensors):
        source = pattern(blocks[:, 2].sum(), version * BUFFERS + number)
        for here, there, size in blocks.tolist():
            expected[here : here + size] = source[there : there + size]
    if wrong := np.count_nonzero(weights != expected):
        raise ValueError(f"{wrong} bytes are not of version {version}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256, help="of weights, about")
    parser.add_argument("--versions", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="some seconds on any machine")
    options = parser.parse_args()
    mib, versions = (16, 8) if options.quick else (options.mib, options.versions)
    spawn = multiprocessing.get_context("spawn").Process
    with tempfile.TemporaryDirectory() as folder:
        args = (f"{folder}/peer", mib, versions)
        workers = [spawn(target=worker, args=(i + 1, *args)) for i in range(WORKERS)]
        return run([spawn(target=trainer, args=args), *workers])


if __name__ == "__main__":
    sys.exit(main())
