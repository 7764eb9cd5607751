"""Ends in any order within a process: objects dropped in flight, threads, tasks, signals."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import weakref

import numpy as np
import pytest
from conftest import Pair, pattern

import linkspan


class Weak(bytearray):
    """A bytearray that weakref can watch."""


def test_received_memory_lives_until_it_is_there(pair: Pair) -> None:
    memory = Weak(16)
    watch = weakref.ref(memory)
    pair.back.recv(1, memory)  # nobody holds the Transfer
    del memory
    gc.collect()
    assert watch() is not None
    pair.peer.send(1, b"0123456789abcdef").wait(10)
    deadline = time.monotonic() + 10
    while watch() is not None and time.monotonic() < deadline:  # the next message lets it go
        pair.back.recv(2, bytearray(1))
        pair.peer.send(2, b"x").wait(10)
        gc.collect()
    assert watch() is None


def test_thousands_in_flight(pair: Pair) -> None:
    inboxes = [bytearray(4) for _ in range(5000)]
    received = [pair.back.recv(tag, inbox) for tag, inbox in enumerate(inboxes)]
    for tag in range(5000):
        pair.peer.send(tag, tag.to_bytes(4, "little"))
    for tag, transfer in enumerate(received):
        transfer.wait(20)
        assert int.from_bytes(inboxes[tag], "little") == tag


def test_memory_of_a_region_that_ended(pair: Pair) -> None:
    region = pair.here.allocate_shared(4096)
    view = region.memory
    pair.here.deregister(region)
    pair.here.close()
    del region
    gc.collect()
    view[:5] = b"still"
    assert bytes(view[:6]) == b"still\0"


def test_waiting_lets_memory_go(pair: Pair) -> None:
    memory = Weak(16)
    watch = weakref.ref(memory)
    transfer = pair.back.recv(1, memory)
    del memory
    pair.peer.send(1, b"0123").wait(10)
    transfer.wait(10)
    gc.collect()
    assert watch() is None


def test_tensors_dropped_in_flight(pair: Pair, gpu) -> None:
    from cuda_memory import HeldStream

    data = pattern(1 << 20)
    source, target = gpu(data), gpu(np.zeros_like(data))
    region, remote = pair.here.register_memory(source), pair.remote(target)
    held = HeldStream(gpu.driver, 0)  # not before: registration waits for what the GPU does
    try:
        transfer = pair.peer.write(region, remote, after=held)
        del source, region
        gc.collect()
        assert not gpu.freed and not transfer.done()
        held.release()
        transfer.wait(10)
        assert target.read() == data.tobytes()
    finally:
        held.close()


def test_engine_closed_in_flight() -> None:
    with linkspan.Engine() as there:
        here = linkspan.Engine()
        peer = here.connect(there.listen())
        name = peer.name
        transfer = peer.recv(1, memory := bytearray(8))
        here.close()
        assert transfer.done() and transfer.status == "canceled"
        assert memory == bytes(8)
        with pytest.raises(linkspan.CanceledError):
            transfer.wait()
        with pytest.raises(linkspan.Error):
            peer.send(1, b"late")
        assert peer.state == "gone" and peer.name == name
        here.close()


def test_peer_closed_in_flight(pair: Pair) -> None:
    with linkspan.Engine() as third:
        beside = pair.here.connect(third.listen())
        transfer = pair.peer.recv(1, memory := bytearray(8))
        pair.peer.close()
        assert transfer.done() and transfer.status == "canceled"
        with pytest.raises(linkspan.CanceledError):
            transfer.wait()
        assert memory == bytes(8)
        assert pair.peer.state == "gone" and beside.state == "up"
        with pytest.raises(linkspan.DisconnectedError):
            pair.peer.send(1, b"late")
        with pytest.raises(linkspan.DisconnectedError):
            pair.back.send(1, b"late").wait(10)
        pair.peer.close(timeout=0)
        with pytest.raises(ValueError):
            pair.peer.close(timeout=-1)
        again = pair.here.connect(pair.there.address)
        back = pair.there.accept()
        message = bytearray(5)
        received = back.recv(1, message)
        again.send(1, b"hello").wait(10)
        received.wait(10)
        assert message == b"hello"


def test_engine_dropped_in_flight() -> None:
    with linkspan.Engine() as there:
        here = linkspan.Engine()
        peer = here.connect(there.listen())
        transfer = peer.recv(1, bytearray(8))
        del here
        gc.collect()
        assert transfer.status == "canceled"


def test_keyboard_interrupt_ends_a_wait(pair: Pair) -> None:
    for wait in (
        lambda: pair.back.recv(1, bytearray(8), deadline=60).wait(),
        lambda: pair.here.accept(60),
        lambda: pair.here.notifications(60),
        lambda: pair.peer.await_version("none", timeout=60),
        lambda: pair.here.connect("nobody", timeout=60),
    ):
        killer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        begin = time.monotonic()
        killer.start()
        with pytest.raises(KeyboardInterrupt):
            wait()
        killer.join()
        assert time.monotonic() - begin < 10


def test_other_threads_run_while_one_waits(pair: Pair) -> None:
    waiter = threading.Thread(target=lambda: pair.back.recv(1, bytearray(1)).wait(20))
    waiter.start()
    begin, rounds = time.monotonic(), 0
    while time.monotonic() - begin < 0.3:
        rounds += 1
    assert rounds > 1000
    pair.peer.send(1, b"x").wait(10)
    waiter.join(10)
    assert not waiter.is_alive()


def test_eight_threads(pair: Pair) -> None:
    size, rounds = 4096, 100
    source, target = pattern(8 * size), np.zeros(8 * size, np.uint8)
    region, remote = pair.here.register_memory(source), pair.remote(target)
    wrong: list[object] = []

    def work(number: int) -> None:
        try:
            mine = slice(number * size, (number + 1) * size)
            for turn in range(rounds):
                target[mine] = 0
                block = [(number * size, number * size, size)]
                if turn % 3 == 2:
                    asyncio.run(as_task(pair.peer.write(region, remote, block)))
                else:
                    pair.peer.write(region, remote, block).wait(20)
                if not (target[mine] == source[mine]).all():
                    wrong.append((number, turn))
        except Exception as error:
            wrong.append(error)

    async def as_task(transfer: linkspan.Transfer) -> None:
        await transfer

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_asyncio_with_1000_transfers(pair: Pair) -> None:
    size = 96
    source, target = pattern(1000 * size), np.zeros(1000 * size, np.uint8)
    region, remote = pair.here.register_memory(source), pair.remote(target)
    before = threading.active_count()

    async def one(number: int) -> None:
        await pair.peer.write(region, remote, [(number * size, number * size, size)])
        assert (target[number * size : (number + 1) * size] == source[number * size :][:size]).all()

    async def everything() -> None:
        messages = [pair.back.recv(tag, bytearray(8)) for tag in range(1000)]

        async def sends() -> None:
            await asyncio.sleep(0)
            for tag in range(1000):
                pair.peer.send(tag, b"12345678")

        await asyncio.gather(*(one(number) for number in range(1000)), *map(wrap, messages), sends())
        assert threading.active_count() == before  # none for a wait

    async def wrap(transfer: linkspan.Transfer) -> None:
        await transfer

    asyncio.run(everything())
    assert (target == source).all()


def test_await_twice_and_after_the_end(pair: Pair) -> None:
    async def go() -> None:
        transfer = pair.back.recv(1, bytearray(4))
        both = asyncio.gather(wrap(transfer), wrap(transfer))
        await asyncio.sleep(0.05)
        pair.peer.send(1, b"four")
        await both
        await transfer

    async def wrap(transfer: linkspan.Transfer) -> None:
        await transfer

    asyncio.run(go())


def test_a_canceled_task_cancels_its_transfer(pair: Pair) -> None:
    async def go() -> None:
        transfer = pair.back.recv(1, bytearray(4), deadline=60)

        async def wrap() -> None:
            await transfer

        task = asyncio.create_task(wrap())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert transfer.done() and transfer.status == "canceled"
        with pytest.raises(linkspan.CanceledError):
            await transfer
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(wrap_of(pair.back.recv(2, bytearray(4))), 0.05)

    async def wrap_of(transfer: linkspan.Transfer) -> None:
        await transfer

    asyncio.run(go())


def test_a_task_that_waits_for_a_held_stream(pair: Pair, gpu) -> None:
    from cuda_memory import HeldStream

    data = pattern(4096)
    region, remote = pair.here.register_memory(gpu(data)), pair.remote(gpu(data))
    held = HeldStream(gpu.driver, 0)

    async def go() -> None:
        transfer = pair.peer.write(region, remote, after=held)

        async def wrap() -> None:
            await transfer

        task, other = asyncio.create_task(wrap()), asyncio.create_task(wrap())
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.sleep(0.05)
        assert not task.done()  # its memory may still be touched
        task.cancel()  # the second cancel ends the wait of this task alone
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not transfer.done() and not other.done()
        last = asyncio.create_task(wrap())
        await asyncio.sleep(0.05)
        assert not last.done()
        held.release()
        ends = await asyncio.gather(other, last, return_exceptions=True)
        assert transfer.done()
        assert all(each is None or isinstance(each, linkspan.CanceledError) for each in ends)

    try:
        asyncio.run(go())
    finally:
        held.close()


def test_loops_that_ended_leave_no_descriptor(pair: Pair) -> None:
    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    async def go() -> None:
        kept.append(pair.back.recv(1, bytearray(1)))
        asyncio.get_running_loop().call_later(0.01, pair.peer.send, 1, b"x")
        await kept[-1]

    kept: list[linkspan.Transfer] = []
    asyncio.run(go())
    before = descriptors()
    for _ in range(5):
        asyncio.run(go())
    assert descriptors() == before


@pytest.mark.parametrize("given_to", ["a queue", "a closed loop"])
def test_what_was_given_away_cannot_be_awaited_but_waited_for(pair: Pair, given_to: str) -> None:
    buffer = bytearray(1)
    transfer = pair.back.recv(1, buffer)

    async def wrap() -> None:
        await transfer

    async def begin() -> asyncio.Task[None]:
        task = asyncio.create_task(wrap())
        await asyncio.sleep(0.01)
        return task

    queue, loop = linkspan.CompletionQueue(), asyncio.new_event_loop()
    if given_to == "a queue":
        queue.add(transfer, 1)
    else:
        task = loop.run_until_complete(begin())  # noqa: F841, it still waits
    loop.close()
    text = "was given to a CompletionQueue or to another event loop, perhaps a closed one: call wait"
    with pytest.raises(RuntimeError, match=text):
        asyncio.run(wrap())
    pair.peer.send(1, b"x").wait(5)
    transfer.wait(5)
    assert buffer == b"x"


@pytest.mark.parametrize("end", ["deregister", "invalidate", "async", "dropped", "close"])
def test_memory_is_free_when_its_registration_has_ended(pair: Pair, end: str) -> None:
    memory = Weak(64)
    watch = weakref.ref(memory)
    region = pair.here.register_memory(memory)
    view = region.memory
    if end == "async":
        pair.here.deregister_async(region).wait(10)
    elif end == "dropped":
        deadline = time.monotonic() + 10
        pair.here.invalidate_async(region)
        while region in pair.here._regions and time.monotonic() < deadline:
            pair.here.deregister_async(pair.here.register_memory(bytearray(1)))
    elif end == "close":
        pair.here.close()
    else:
        getattr(pair.here, end)(region)
    with pytest.raises(ValueError, match="deregistered"):
        region.memory
    with pytest.raises(BufferError):
        memory.append(1)  # the view has it
    view[0] = 7
    assert memory[0] == 7
    del view
    memory.append(1)
    del memory
    assert watch() is None and region.bytes == 64


def test_memory_that_knows_its_region_or_engine_is_collected() -> None:
    class Memory(bytearray):
        region = engine = None

    memory = Memory(64)
    watch = weakref.ref(memory)
    memory.engine = linkspan.Engine(use_gpu=False)
    memory.region = memory.engine.register_memory(memory)
    memory.engine.deregister_async(memory.engine.register_memory(memory))
    del memory
    gc.collect()
    assert watch() is None


def test_a_transfer_that_is_done_keeps_no_memory(pair: Pair) -> None:
    memory = Weak(4)
    transfer = pair.back.recv(1, memory)
    with pytest.raises(BufferError):
        memory.append(1)
    pair.peer.send(1, b"four").wait(10)
    deadline = time.monotonic() + 10
    while not transfer.done() and time.monotonic() < deadline:
        time.sleep(0.001)
    memory.append(1)
    assert memory == b"four\1" and transfer.status == "ok"
