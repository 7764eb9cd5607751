"""A prefill process and three decode processes: one rank with all heads, two with half of them.

    python3 examples/kv_connector/main.py [--quick]

Requests come in two chunks, layer by layer. One is aborted by the prefill side and one by the
decode side, and their pages are used again at once; a rank is killed under a request and comes back
under its name. All bytes are compared, those that nothing may touch too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from typing import Callable

import linkspan
import numpy as np
from decode import HEADS, SECONDS
from prefill import Prefill

HALF = HEADS // 2
RANKS = {"decode": range(HEADS), "decode.0": range(HALF), "decode.1": range(HALF, HEADS)}


def equal_heads(prefill: Prefill) -> str:
    return prefill.serve(["decode"])


def unequal_heads(prefill: Prefill) -> str:
    return prefill.serve(["decode.0", "decode.1"])


def abort_by_prefill(prefill: Prefill) -> str:
    """The next request takes its pages, the other way round, and only half of the receiver's."""
    decode, caught = prefill.ranks["decode"], 0
    for _ in range(100):  # until it is not complete before
        name, mine, its = prefill.begin("decode", prefill.size[0])
        caught = prefill.connector.abort(name)
        decode("wipe", its)
        if caught:
            break
    half = len(its) // 2
    how = prefill.serve(["decode"], mine[::-1][:half], its[:half])
    time.sleep(0.1)  # whatever is late comes now
    decode("check_nothing_else")
    if not caught or "aborted" not in decode("outcome", name):
        raise RuntimeError(f"{name}: nothing was in flight, or nobody heard of its end")
    return f"{caught} layers caught in flight; their pages used again: {how}"


def abort_by_decode(prefill: Prefill) -> str:
    """The decode side wipes its pages at once, and the prefill side computes something else."""
    decode = prefill.ranks["decode"]
    name, mine, its = prefill.begin("decode", prefill.size[0] - 1)
    decode.ask("abort", name, its)
    error = prefill.outcome(name)
    decode.answer()
    prefill.serve(["decode.0", "decode.1"], mine)
    time.sleep(0.1)  # whatever is late comes now
    decode("check_nothing_else")
    return f"{error}; no byte came after it: verified"


def restart(prefill: Prefill) -> str:
    layers = prefill.size[0]
    name, mine, _ = prefill.begin("decode", layers // 2)
    old = prefill.connector.remotes["decode"]
    prefill.ranks["decode"].process.kill()
    prefill.ranks["decode"].process.join(SECONDS)
    for layer in range(layers // 2, layers):
        prefill.connector.send_layer(name, layer, np.arange(len(mine)))
    error = prefill.outcome(name)
    if not isinstance(error, linkspan.DisconnectedError):
        raise RuntimeError(f"{name} ended with {error!r}")
    prefill.serve(["decode.0", "decode.1"])  # nobody else has noticed
    prefill.start("decode")
    how = prefill.serve(["decode"])
    try:
        old.peer.write(prefill.connector.layers[0], old.layers[0])
    except linkspan.DisconnectedError as error_now:
        return f"{error}; of its old life: {error_now}; of its new one: {how}"
    raise RuntimeError("what was of the old life still works")


CASES: list[Callable[[Prefill], str]]
CASES = [equal_heads, unequal_heads, abort_by_prefill, abort_by_decode, restart]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="some seconds on any machine")
    size = (8, 256) if parser.parse_args().quick else (32, 512)  # layers, and pages of each
    with tempfile.TemporaryDirectory() as folder:
        prefill = Prefill(RANKS, size, folder)
        for case in CASES:
            print(f"{case.__name__}: {case(prefill)}", flush=True)
        print(f"{prefill.moved} bytes in {prefill.requests} requests, verified")
    return 0


if __name__ == "__main__":
    sys.exit(main())
