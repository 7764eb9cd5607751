"""Two processes: one writes pages of its KV cache into the other's, by absolute addresses.

    PYTHONPATH=integrations/mooncake:out/release/python python3 integrations/mooncake/example.py
"""

import multiprocessing
from multiprocessing.connection import Connection

import numpy as np

from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode

PAGES, PAGE = 64, 4096


def open_engine() -> tuple[TransferEngine, str]:
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
    return engine, f"127.0.0.1:{engine.get_rpc_port()}"


def decode(pipe: Connection) -> None:
    engine, session = open_engine()
    cache = np.zeros((PAGES, PAGE), np.uint8)
    assert engine.register_memory(cache.ctypes.data, cache.nbytes) == 0
    pipe.send((session, cache.ctypes.data))
    pages, expected = pipe.recv()
    (notify,) = engine.get_notifies()
    assert (cache[pages] == expected).all()
    pipe.send(f"{notify.name}: {len(pages)} pages have arrived")


def main() -> None:
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=decode, args=(other,))
    process.start()
    engine, _ = open_engine()
    cache = np.random.default_rng().integers(0, 256, (PAGES, PAGE), np.uint8)
    assert engine.register_memory(cache.ctypes.data, cache.nbytes) == 0

    session, peer_cache = pipe.recv()
    here, there = np.array([3, 1, 4, 15, 9, 2, 6, 5]), np.arange(10, 18)
    code = engine.batch_transfer_sync(
        session,
        cache.ctypes.data + here * PAGE,
        peer_cache + there * PAGE,
        [PAGE] * len(here),
        TransferOpcode.Write,
        TransferNotify("request 7", "sent"),
    )
    assert code == 0
    pipe.send((there, cache[here]))
    print(pipe.recv())
    process.join(10)


if __name__ == "__main__":
    main()
