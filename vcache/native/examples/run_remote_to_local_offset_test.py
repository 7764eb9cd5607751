#!/usr/bin/env python3
"""Pulls a piece out of the middle of another process's GPU memory, and checks every byte.

The exporter's allocation is mapped whole; src_offset_bytes says where in it the piece begins, and
dst_offset_bytes where in ours it goes. What lies around it in our memory must stay as it was.

    python vcache/native/examples/run_remote_to_local_offset_test.py \
        --src 0 --dst 1 --total 1048576 --offset 65536 --len 1024

Exit codes: 0 success, 1 failure or wrong data, 2 no suitable CUDA environment, 3 the native
library is missing.
"""

import argparse
import secrets

from example_support import (
    FAILURE,
    SUCCESS,
    Cuda,
    ExampleError,
    load_library,
    pattern,
    receive,
    run_example,
    spawned,
)
from remote_to_local_example import bad_arguments, exporter

GUARD = b"\xa5" * 256  # before and behind the piece


def pull(connection, library, cuda: Cuda, asked: argparse.Namespace) -> bytes:
    """Our memory after the transfer: guard, piece, guard."""
    handle = receive(connection)
    with cuda.memory(asked.dst, asked.len + 2 * len(GUARD)) as memory:
        memory.write(GUARD + bytes(asked.len) + GUARD)
        code = library.perform_direct_transfer(
            asked.src,
            0,  # source_ptr: the handle says where
            asked.dst,
            memory.address,
            asked.len,
            handle,
            len(handle),
            None,  # no handle for the target: it is our own memory
            0,
            asked.offset,
            len(GUARD),
            None,  # the legacy default stream of the source GPU
        )
        if code != 0:
            words = library.nvlink_transfer_last_error().decode()
            raise ExampleError(FAILURE, f"perform_direct_transfer answered {code}: {words}")
        return memory.read()


def check(got: bytes, piece: bytes) -> None:
    wanted = GUARD + piece + GUARD
    wrong = [place for place, pair in enumerate(zip(got, wanted)) if pair[0] != pair[1]]
    if wrong:
        place = wrong[0] - len(GUARD)
        raise ExampleError(
            FAILURE,
            f"{len(wrong)} wrong bytes, the first at {place} of {len(piece)}:"
            f" {got[wrong[0]]:#04x} instead of {wanted[wrong[0]]:#04x}",
        )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--src", type=int, default=0, metavar="GPU", help="the exporter's")
    options.add_argument("--dst", type=int, default=1, metavar="GPU", help="ours")
    options.add_argument("--total", type=int, default=1048576, metavar="BYTES", help="exported")
    options.add_argument("--offset", type=int, default=65536, metavar="BYTES", help="of the piece")
    options.add_argument("--len", type=int, default=1024, metavar="BYTES", help="of the piece")
    options.error = bad_arguments
    asked = options.parse_args()
    if min(asked.src, asked.dst, asked.offset) < 0 or min(asked.total, asked.len) <= 0:
        bad_arguments("GPUs and --offset count from 0, --total and --len from 1")

    library = load_library()
    cuda = Cuda(asked.src, asked.dst)
    seed = secrets.randbelow(251)
    with spawned(exporter, asked.src, asked.total, seed) as connection:
        got = pull(connection, library, cuda, asked)
    check(got, pattern(asked.total, seed)[asked.offset : asked.offset + asked.len])
    print(
        f"GPU {asked.src} of another process -> GPU {asked.dst}: {asked.len} bytes"
        f" from {asked.offset} of {asked.total}, verified"
    )
    return SUCCESS


if __name__ == "__main__":
    run_example(main)
