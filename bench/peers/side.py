"""One of the two processes of a library: side.py NAME ROLE FD GPU [FOLDER OF WHEELS]

GPU is its ordinal, or -1: none.

run.py starts an initiator and a target for each library, and gives both the same orders over the
pipe FD: (method, arguments). The answer is ("ok", value) or ("failed", text).
"""

from __future__ import annotations

import abc
import importlib
import multiprocessing.connection
import sys
import time
from collections.abc import Callable
from typing import Any

LIMIT_S = 30.0  # of one transfer

Move = Callable[[int], list[int]]  # moves so many times, and returns the nanoseconds of each


class Failed(Exception):
    """Says why the library does not do what the row asks for."""


class Side(abc.ABC):
    """What a library has to do for the rows. A row ends with drop() and release()."""

    needs_progress = False  # of the target, while the initiator works
    how = ""  # the calls that are timed, once mover() or player() has chosen them

    def __init__(self, role: str) -> None:
        self.role = role

    @abc.abstractmethod
    def version(self) -> str: ...

    def allocate(self, kind: str, size: int, gpu: int) -> Any:
        import memory

        return memory.allocate(kind, size, gpu)

    @abc.abstractmethod
    def offer(self, memories: list[Any]) -> Any:
        """Registers the memories, and returns what the other process needs to find them."""

    @abc.abstractmethod
    def accept(self, offer: Any) -> None:
        """Takes the other process's offer: the target's first, which may be connected to then."""

    @abc.abstractmethod
    def mover(self, row: Any, memories: list[Any]) -> Move:
        """Initiator: makes the row's transfer, from its start until the library says done."""

    def progress(self) -> None:
        """Target: does what is due of the library."""

    def player(self, row: Any, memories: list[Any]) -> Move:
        """Makes the row's ping-pong: the initiator begins, the target answers. Times are halves of
        round trips, and the target's are not looked at."""
        raise Failed("has no notification or message that follows a write")

    def drop(self) -> None:
        """Lets go of the other side's memory, before either side's release()."""

    def release(self) -> None:
        """Takes back what offer() registered."""


def timed(once: Callable[[], None], all_runs: bool = False) -> Move:
    """Stops after a second, unless the other side counts on all runs."""

    def move(runs: int) -> list[int]:
        times, clock, stop = [], time.perf_counter_ns, time.monotonic() + 1
        for _ in range(runs):
            begin = clock()
            once()
            times.append(clock() - begin)
            if time.monotonic() > stop and not all_runs:
                break
        return times

    return move


def until(done: Callable[[], Any], what: str, limit: float = LIMIT_S) -> Any:
    """Polls without a pause, as each of the libraries is measured at its best."""
    stop = time.monotonic() + limit
    while not (value := done()):
        if time.monotonic() > stop:
            raise Failed(f"{what} not done after {limit:.0f} s")
    return value


def rally(role: str, post: Callable[[], None], hear: Callable[[], None]) -> Move:
    """Makes a ping-pong of what sends and what waits for the other side's."""
    if role == "initiator":

        def once() -> None:
            post()
            hear()

        halves = timed(once, all_runs=True)
        return lambda runs: [each // 2 for each in halves(runs)]

    def answer(runs: int) -> list[int]:
        for _ in range(runs):
            hear()
            post()
        return []

    return answer


class Process:
    """Follows the orders of run.py."""

    def __init__(self, side: Side, gpu: int, orders: multiprocessing.connection.Connection) -> None:
        self.side, self.gpu, self.orders = side, gpu, orders
        self.initiator = side.role == "initiator"
        self.row: Any = None
        self.memories: list[Any] = []
        self.move: Move | None = None

    def serve(self) -> None:
        while True:
            method, *arguments = self.orders.recv()
            try:
                answer = ("ok", getattr(self, method)(*arguments))
            except Exception as error:  # noqa: BLE001 whatever the library raises is the row's reason
                answer = ("failed", f"{type(error).__name__}: {error}"[:400])
            self.orders.send(answer)
            if method == "end":
                return

    def version(self) -> tuple[str, str]:
        return self.side.version(), self.side.how

    def set_up(self, row: Any) -> Any:
        self.row = row
        kind = row.local if self.initiator else row.remote
        self.memories = [
            self.side.allocate(kind, row.region_bytes, self.gpu) for _ in range(row.regions)
        ]
        return self.side.offer(self.memories)

    def accept(self, offer: Any) -> None:
        self.side.accept(offer)

    def make(self) -> None:
        if self.row.ping_pong:
            self.move = self.side.player(self.row, self.memories)
        elif self.initiator:
            self.move = self.side.mover(self.row, self.memories)

    def fill(self, seed: int | None) -> None:
        """With data, or None: with what must not be there afterwards."""
        import memory

        for region, each in enumerate(self.memories):
            memory.poison(each) if seed is None else memory.fill(each, seed + region)

    def wrong_bytes(self, seed: int) -> int:
        import memory

        return memory.wrong_bytes(self.row, self.memories, seed, self.row.op == "write")

    def run(self, runs: int) -> list[int]:
        assert self.move is not None
        return self.move(runs)

    def progress(self) -> None:
        """Until the next order comes."""
        while self.side.needs_progress and not self.orders.poll(0):
            self.side.progress()

    def drop(self) -> None:
        self.move = None
        self.side.drop()

    def clear(self) -> None:
        self.side.release()
        self.memories = []

    def end(self) -> None:
        pass


def use_gpu(gpu: int) -> None:
    """Makes its context this thread's before the library starts, which may look for one."""
    import torch

    torch.cuda.set_device(gpu)
    torch.zeros(1, device=f"cuda:{gpu}")
    torch.cuda.synchronize()


def main() -> None:
    name, role, fd, gpu, *wheels = sys.argv[1:]
    sys.path.extend(wheels)  # behind the machine's own numpy and torch
    orders = multiprocessing.connection.Connection(int(fd))
    try:
        if int(gpu) >= 0:
            use_gpu(int(gpu))
        side = importlib.import_module(f"{name}_side").create(role)
    except Exception as error:  # noqa: BLE001 the same
        orders.recv()
        orders.send(("failed", f"{type(error).__name__}: {error}"[:400]))
        return
    Process(side, int(gpu), orders).serve()


if __name__ == "__main__":
    sys.modules["side"] = sys.modules["__main__"]  # one Side, one Failed
    main()
