"""One of two ranks that train a model by data: train_step.py RANK GPU STEPS

Speaks to run.py as rank.py does. Rank 0's id is the address at which torch's processes meet. The
first step is checked: both ranks have the weights that one process has after the data of both. Then
the steps are timed: microseconds and CPU seconds of one.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

import torch
from rank import say
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, BATCH = 2048, 4, 64  # 67 MB of gradients
LEARNING_RATE = 0.1


def model() -> torch.nn.Module:
    """The same on both ranks."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    return torch.nn.Sequential(*layers).cuda()


def data_of(rank: int) -> torch.Tensor:
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(10 + rank)).cuda()


def step(trained: torch.nn.Module, data: torch.Tensor) -> None:
    trained.zero_grad()
    trained(data).square().mean().backward()
    with torch.no_grad():
        for each in trained.parameters():
            each -= LEARNING_RATE * each.grad


def check_first_step(trained: torch.nn.Module, rank: int) -> None:
    step(trained, data_of(rank))
    alone = model()
    step(alone, torch.cat([data_of(0), data_of(1)]))
    for mine, wanted in zip(trained.parameters(), alone.parameters()):
        most = wanted.grad.abs().max()
        if most == 0 or (mine.grad - wanted.grad).abs().max() > 1e-3 * most:
            raise RuntimeError("the gradients of a step are not those of one process")


def meet(rank: int) -> None:
    if rank == 0:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        say({"id": port})
    else:
        port = json.loads(sys.stdin.readline())["id"]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("nccl", rank=rank, world_size=2)


def main() -> None:
    rank, gpu, steps = (int(each) for each in sys.argv[1:])
    torch.cuda.set_device(gpu)
    torch.backends.cuda.matmul.allow_tf32 = False
    meet(rank)
    trained = DistributedDataParallel(model(), device_ids=[gpu])
    check_first_step(trained, rank)
    say({"version": ".".join(map(str, torch.cuda.nccl.version()))})
    data = data_of(rank)
    torch.cuda.synchronize()
    cpu, begin = time.process_time(), time.perf_counter()
    for _ in range(steps):
        step(trained, data)
    torch.cuda.synchronize()
    us = (time.perf_counter() - begin) * 1e6 / steps
    gradients = sum(4 * each.numel() for each in trained.parameters())
    cpu_s = (time.process_time() - cpu) / steps
    say({"operation": "train_step", "bytes": gradients, "us": us, "cpu_s": cpu_s, "runs": steps})
    torch.distributed.destroy_process_group()
    say({"end": True})


if __name__ == "__main__":
    main()
