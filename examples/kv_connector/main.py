"""A prefill process and three decode processes: one rank with all heads, two with half of them.

    python3 examples/kv_connector/main.py [--quick] [--tcp HOST [--by "ssh HOST"]]

Requests are sent layer by layer in two chunks, or whole. One is aborted by the prefill side and one
by the decode side, and their pages are used again at once. A rank is killed during a request and
restarts under its name. All bytes are compared, also those that nothing may touch.
"""

from __future__ import annotations

import argparse
import secrets
import shlex
import sys
import tempfile
import time
from typing import Callable

import linkspan
from decode import HEADS, SECONDS
from prefill import Prefill

HALF = HEADS // 2
RANKS = {"decode": range(HEADS), "decode.0": range(HALF), "decode.1": range(HALF, HEADS)}


def equal_heads(prefill: Prefill) -> str:
    return prefill.serve(["decode"])


def unequal_heads(prefill: Prefill) -> str:
    return prefill.serve(["decode.0", "decode.1"])


def whole_request(prefill: Prefill) -> str:
    return prefill.serve([*RANKS], whole=True)


def abort_by_prefill(prefill: Prefill) -> str:
    """Gives its pages to the next request, in reverse, and half of the receiver's."""
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
    """Wipes the pages on the decode side at once; the prefill side computes something else."""
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
    name, _, _ = prefill.begin("decode", layers // 2)
    old = prefill.connector.remotes["decode"]
    prefill.ranks["decode"].ask("die")
    prefill.ranks["decode"].process.wait(SECONDS)
    for layer in range(layers // 2, layers):
        prefill.connector.send(name, slice(layer, layer + 1))
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
CASES = [equal_heads, unequal_heads, whole_request, abort_by_prefill, abort_by_decode, restart]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="some seconds on any machine")
    parser.add_argument("--tcp", metavar="HOST", help="by TCP, with a secret; where decode listens")
    parser.add_argument("--by", default="", help="the command that starts decode, as 'ssh HOST'")
    options = parser.parse_args()
    size = (8, 128) if options.quick else (32, 512)  # layers, and pages of each
    with tempfile.TemporaryDirectory() as folder:
        address = f"tcp:{options.tcp}:0" if options.tcp else f"unix:{folder}/{{}}"
        secret = secrets.token_bytes(32) if options.tcp else None
        prefill = Prefill(RANKS, size, address, secret, shlex.split(options.by))
        for case in CASES:
            print(f"{case.__name__}: {case(prefill)}", flush=True)
        print(f"{prefill.moved} bytes in {prefill.requests} requests, verified")
    return 0


if __name__ == "__main__":
    sys.exit(main())
