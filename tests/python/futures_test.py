"""Calls that return at once: their results by wait(), await and CompletionQueue."""

from __future__ import annotations

import asyncio
import gc
import pathlib
import select
import weakref

import numpy as np
import pytest
from conftest import Pair, pattern

import linkspan


def test_await_connect_lookup_and_deregister(pair: Pair) -> None:
    async def go() -> None:
        peer = await pair.here.connect_async(pair.there.address)
        assert peer.name == "there" and peer.id != pair.peer.id
        region = pair.there.allocate_shared(4096)
        pair.there.publish("kv", region)
        remotes = await asyncio.gather(*(wrap(peer.lookup_async("kv")) for _ in range(100)))
        assert all(remote.bytes == 4096 for remote in remotes)
        pair.there.publish("set", [pair.there.allocate_shared(64), pair.there.allocate_shared(128)])
        both = await peer.lookup_set_async("set")
        assert [each.bytes for each in both.regions] == [64, 128]
        again = await peer.lookup_set_async("set", known=both)
        assert again.version == both.version
        ends = pair.there.deregister_async(region, 60)
        with pytest.raises(linkspan.NotFoundError):
            await peer.lookup_async("kv")
        assert not ends.done()
        remotes.clear()
        gc.collect()
        assert await ends is None

    async def wrap(future: linkspan.Future) -> linkspan.RemoteRegion:
        return await future

    asyncio.run(go())


def test_a_loop_goes_on_while_nobody_listens(pair: Pair, tmp_path: pathlib.Path) -> None:
    async def go() -> None:
        met = [pair.here.connect_async(f"unix:{tmp_path}/{i}", 60) for i in range(20)]
        pair.there.publish("kv", pair.there.allocate_shared(64))
        assert (await pair.peer.lookup_async("kv")).bytes == 64
        assert not any(each.done() for each in met)

    asyncio.run(go())


def test_a_canceled_task_cancels_its_call(pair: Pair, tmp_path: pathlib.Path) -> None:
    async def go() -> None:
        future = pair.here.connect_async(f"unix:{tmp_path}/nobody", 60)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(wrap(future), 0.05)
        assert future.done()
        with pytest.raises(linkspan.CanceledError, match="the call was canceled"):
            await future

    async def wrap(future: linkspan.Future) -> linkspan.Peer:
        return await future

    asyncio.run(go())


def test_wait_and_its_errors(pair: Pair, tmp_path: pathlib.Path) -> None:
    future = pair.here.connect_async(f"unix:{tmp_path}/nobody", 60)
    with pytest.raises(TimeoutError, match="the call goes on") as pending:
        future.wait(0.01)
    assert not isinstance(pending.value, linkspan.Error)
    assert not future.done() and repr(future) == "<Future: pending>"
    assert future.cancel() and future.done() and repr(future) == "<Future: canceled>"
    with pytest.raises(linkspan.UnreachableError):
        pair.here.connect_async(f"unix:{tmp_path}/nobody", 0.5).wait(10)
    with pytest.raises(linkspan.PermissionDeniedError):
        pair.here.connect_async(pair.there.address, expect="another").wait(10)
    with pytest.raises(linkspan.NotFoundError) as missing:
        pair.peer.lookup_async("nothing").wait(10)
    assert missing.value.peer == pair.peer.id
    with pytest.raises(ValueError, match="timeout=-1"):
        pair.here.connect_async("x", -1)
    met = pair.here.connect_async(pair.there.address)
    assert met.wait(10).id == met.wait(0).id


def test_a_completion_queue_takes_both(pair: Pair) -> None:
    queue = linkspan.CompletionQueue()
    met = pair.here.connect_async(pair.there.address)
    queue.add(met, 7)
    with pytest.raises(linkspan.InvalidArgumentError, match="was added to a completion queue"):
        queue.add(met, 8)
    assert select.select([queue], [], [], 10)[0]
    assert queue.take() == [7]
    queue.add(met.wait(0).send(1, b"text"), 9)
    pair.there.accept().recv(1, bytearray(4)).wait(10)
    assert select.select([queue], [], [], 10)[0]
    assert queue.take() == [9]


def test_memory_lives_until_it_is_deregistered(pair: Pair) -> None:
    memory = np.array(pattern(64))
    watch = weakref.ref(memory)
    region = pair.here.register_memory(memory)
    del memory
    ends = pair.here.invalidate_async(region)
    del region
    ends.wait(10)
    del ends
    gc.collect()
    assert watch() is None


def test_calls_end_with_their_engine(pair: Pair, tmp_path: pathlib.Path) -> None:
    engine = linkspan.Engine("short")
    future = engine.connect_async(f"unix:{tmp_path}/nobody", 60)
    engine.close()
    assert future.done()
    with pytest.raises(linkspan.CanceledError, match="the Engine is closed"):
        future.wait()
    with pytest.raises(linkspan.CanceledError, match="the Engine is closed"):
        engine.connect_async(pair.there.address).wait(0)
