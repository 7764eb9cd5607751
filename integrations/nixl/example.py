"""Two processes: one writes pages of its KV cache into the other's through NIXL, over linkspan.

    export PYTHONPATH=out/release/python
    NIXL_PLUGIN_DIR=$(python3 -m linkspan nixl --folder) python3 integrations/nixl/example.py

Needs NIXL (pip install nixl). Only the name of the backend says that it is linkspan.
"""

import importlib
import importlib.util
import multiprocessing
import time
from multiprocessing.connection import Connection

import numpy as np

PAGES, PAGE, LIMIT_S = 64, 4096, 20
PACKAGE = next((p for p in ("nixl_cu13", "nixl_cu12") if importlib.util.find_spec(p)), "nixl")
nixl = importlib.import_module(f"{PACKAGE}._api")


def open_agent(name: str, cache: np.ndarray) -> "nixl.nixl_agent":
    agent = nixl.nixl_agent(name, nixl.nixl_agent_config(backends=["LINKSPAN"]))
    agent.register_memory(agent.get_reg_descs([(cache.ctypes.data, cache.nbytes, 0, "")], "DRAM"))
    return agent


def pages_at(address: int, pages: np.ndarray) -> list[tuple[int, int, int]]:
    return [(address + int(page) * PAGE, PAGE, 0) for page in pages]


def decode(pipe: Connection) -> None:
    cache = np.zeros((PAGES, PAGE), np.uint8)
    agent = open_agent("decode", cache)
    pipe.send((agent.get_agent_metadata(), cache.ctypes.data))
    prefill_metadata, pages, expected = pipe.recv()
    agent.add_remote_agent(prefill_metadata)
    until = time.monotonic() + LIMIT_S
    while not (arrived := agent.get_new_notifs()) and time.monotonic() < until:
        pass
    assert (cache[pages] == expected).all()
    pipe.send(f"{arrived['prefill'][0].decode()}: {len(pages)} pages have arrived")


def main() -> None:
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=decode, args=(other,), daemon=True)
    process.start()
    cache = np.random.default_rng().integers(0, 256, (PAGES, PAGE), np.uint8)
    agent = open_agent("prefill", cache)

    metadata, peer_cache = pipe.recv()
    agent.add_remote_agent(metadata)
    here, there = np.array([3, 1, 4, 15, 9, 2, 6, 5]), np.arange(10, 18)
    pipe.send((agent.get_agent_metadata(), there, cache[here]))
    handle = agent.initialize_xfer(
        "WRITE",
        agent.get_xfer_descs(pages_at(cache.ctypes.data, here), "DRAM"),
        agent.get_xfer_descs(pages_at(peer_cache, there), "DRAM"),
        "decode",
        b"request 7",
    )
    state, until = agent.transfer(handle), time.monotonic() + LIMIT_S
    while state == "PROC" and time.monotonic() < until:
        state = agent.check_xfer_state(handle)
    assert state == "DONE", state
    print(pipe.recv())
    agent.release_xfer_handle(handle)
    process.join(10)


if __name__ == "__main__":
    main()
