#!/usr/bin/env python3
"""Two processes: one owns memory on a GPU, the other pulls it into memory of its own.

The exporter allocates, fills and hands out 64 bytes: the CUDA IPC handle of its allocation. The
puller gives them to perform_direct_transfer(), which opens the allocation, copies and closes it
again, and checks each byte that came.

    python vcache/native/examples/remote_to_local_example.py [--src GPU] [--dst GPU] [--size BYTES]

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
    wait_for_end,
)


def exporter(connection, gpu: int, size: int, seed: int) -> None:
    """Owns the memory. It must stay until the puller is done."""
    with Cuda(gpu).memory(gpu, size) as memory:
        memory.write(pattern(size, seed))
        connection.send(memory.ipc_handle())
        wait_for_end(connection)


def puller(connection, library, cuda: Cuda, source_gpu: int, target_gpu: int, size: int) -> bytes:
    """Copies what the exporter has, and answers the bytes that came."""
    handle = receive(connection)
    with cuda.memory(target_gpu, size) as memory:
        memory.write(bytes(size))  # what a copy that never ran would leave
        code = library.perform_direct_transfer(
            source_gpu,
            0,  # source_ptr: the handle says where
            target_gpu,
            memory.address,
            size,
            handle,
            len(handle),
            None,  # no handle for the target: it is our own memory
            0,
            0,  # src_offset_bytes
            0,  # dst_offset_bytes
            None,  # the legacy default stream of the source GPU
        )
        if code != 0:
            words = library.nvlink_transfer_last_error().decode()
            raise ExampleError(FAILURE, f"perform_direct_transfer answered {code}: {words}")
        return memory.read()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--src", type=int, default=0, metavar="GPU", help="the exporter's")
    options.add_argument("--dst", type=int, default=1, metavar="GPU", help="the puller's")
    options.add_argument("--size", type=int, default=1 << 20, metavar="BYTES")
    options.error = bad_arguments
    asked = options.parse_args()
    if min(asked.src, asked.dst) < 0 or asked.size <= 0:
        bad_arguments("GPUs count from 0, and --size is more than 0")

    library = load_library()
    cuda = Cuda(asked.src, asked.dst)
    seed = secrets.randbelow(251)
    with spawned(exporter, asked.src, asked.size, seed) as connection:
        got = puller(connection, library, cuda, asked.src, asked.dst, asked.size)
    if got != pattern(asked.size, seed):
        raise ExampleError(FAILURE, "the bytes that came are not those that were sent")
    print(f"GPU {asked.src} of another process -> GPU {asked.dst}: {asked.size} bytes, verified")
    return SUCCESS


def bad_arguments(text: str) -> None:
    raise ExampleError(FAILURE, text)  # not argparse's 2, which stands for "no CUDA" here


if __name__ == "__main__":
    run_example(main)
