"""One transfer between several pairs of regions."""

from __future__ import annotations

import asyncio
import gc

import numpy as np
import pytest
from conftest import Pair, pattern, run

import linkspan

KIB = 1024
SIZES = [8 * KIB, 12 * KIB, 9 * KIB + 1]


class Sides:
    """Three regions on each side, each pair of another size."""

    def __init__(self, pair: Pair) -> None:
        self.mine = [pattern(size, seed) for seed, size in enumerate(SIZES)]
        self.theirs = [np.zeros(size, np.uint8) for size in SIZES]
        self.local = [pair.here.register_memory(each) for each in self.mine]
        self.regions = [pair.there.register_memory(each) for each in self.theirs]
        pair.there.publish("layers", self.regions)
        self.set = pair.peer.lookup_set("layers")
        self.remote = self.set.regions


@pytest.fixture
def sides(pair: Pair) -> Sides:
    return Sides(pair)


PAGES = linkspan.Pages(KIB, [6, 1], [0, 5])
STRIDES = linkspan.Strides(100, [(3, 1000, 200)])
ROWS = [(5, 1003, 3001)]


def expected(shape, source: np.ndarray, to: np.ndarray, reads: bool) -> np.ndarray:
    """Returns what `to` is after the copy of the shape."""
    if shape is None:
        return source.copy()
    if shape is PAGES:
        rows = [(6 * KIB, 0, KIB), (KIB, 5 * KIB, KIB)]
    elif shape is STRIDES:
        rows = [(i * 1000, i * 200, 100) for i in range(3)]
    else:
        rows = shape
    to = to.copy()
    for local, remote, size in rows:
        begin, end = (remote, local) if reads else (local, remote)
        to[end : end + size] = source[begin : begin + size]
    return to


@pytest.mark.parametrize("kind", [list, tuple, "set"])
@pytest.mark.parametrize(
    "shape, size",
    [(PAGES, 3 * 2 * KIB), (STRIDES, 3 * 300), (ROWS, 3 * 3001), (None, sum(SIZES))],
    ids=["pages", "strides", "rows", "all"],
)
def test_the_same_shape_of_each_pair(pair: Pair, sides: Sides, shape, size, kind) -> None:
    remote = sides.set if kind == "set" else kind(sides.remote)
    local = sides.local if kind == "set" else kind(sides.local)
    after = [expected(shape, *each, reads=False) for each in zip(sides.mine, sides.theirs)]
    transfer = pair.peer.write(local, remote, shape, notification=b"all of it")
    transfer.wait(10)
    assert all((a == b).all() for a, b in zip(sides.theirs, after))
    assert pair.there.notifications(5) == [(pair.back.id, b"all of it")]
    assert transfer.bytes == size

    for i, memory in enumerate(sides.theirs):
        memory[:] = pattern(memory.size, 10 + i)
    after = [expected(shape, *each, reads=True) for each in zip(sides.theirs, sides.mine)]
    pair.peer.read(local, remote, shape).wait(10)
    assert all((a == b).all() for a, b in zip(sides.mine, after))


def test_a_shape_for_each_pair(pair: Pair, sides: Sides) -> None:
    shapes = [PAGES, None, ROWS]
    parts = list(zip(sides.local, sides.remote, shapes))
    after = [
        expected(shape, mine, theirs, reads=False)
        for shape, mine, theirs in zip(shapes, sides.mine, sides.theirs)
    ]
    pair.peer.write(parts).wait(10)
    assert all((a == b).all() for a, b in zip(sides.theirs, after))

    for i, memory in enumerate(sides.theirs):
        memory[:] = pattern(memory.size, 20 + i)
    after = [
        expected(shape, theirs, mine, reads=True)
        for shape, mine, theirs in zip(shapes, sides.mine, sides.theirs)
    ]
    asyncio.run(awaited(pair.peer.read(tuple(parts), deadline=5)))
    assert all((a == b).all() for a, b in zip(sides.mine, after))


ROWS_OF_PAGES = np.array([[6, 1], [11, 0], [3, 7]])  # of KIB, a row for each pair


@pytest.mark.parametrize(
    "make",
    [
        lambda array: array.astype(np.int32),
        lambda array: array.astype(np.uint64),
        lambda array: array.copy().T.copy().T,  # with steps
        lambda array: np.repeat(array, 2, axis=0)[::2].astype(np.uint32),
    ],
    ids=["int32", "uint64", "columns", "every second row"],
)
@pytest.mark.parametrize("kind", ["list", "set", "prepared"])
def test_pages_with_a_row_for_each_pair(pair: Pair, sides: Sides, make, kind) -> None:
    there = ROWS_OF_PAGES[:, ::-1] // 2
    pages = linkspan.Pages(KIB, make(ROWS_OF_PAGES), make(there), remote_base=1)
    assert len(pages) == 6
    after = [
        expected([(a * KIB, 1 + b * KIB, KIB) for a, b in zip(*two)], mine, theirs, reads=False)
        for *two, mine, theirs in zip(ROWS_OF_PAGES, there, sides.mine, sides.theirs)
    ]
    remote = sides.set if kind == "set" else sides.remote
    if kind == "prepared":
        transfer = pair.peer.prepare("write", sides.local, remote, pages).post()
    else:
        transfer = pair.peer.write(sides.local, remote, pages)
    del pages
    transfer.wait(10)
    assert transfer.bytes == 6 * KIB
    assert all((a == b).all() for a, b in zip(sides.theirs, after))


def test_pages_with_rows_of_other_regions_are_refused(pair: Pair, sides: Sides) -> None:
    pages = linkspan.Pages(KIB, ROWS_OF_PAGES, ROWS_OF_PAGES)
    local, remote = sides.local, sides.remote
    for arguments, said in [
        ((local[:2], remote[:2], pages), "lists for 3 regions; there are 2 local and 2 remote"),
        ((local, remote[:2], pages), "there are 3 local and 2 remote"),
        ((local[0], remote[0], pages), "a list for each of 3 regions"),
        (([(local[0], remote[0], pages)],), "pair 0: these Pages have a list for each of 3"),
    ]:
        with pytest.raises(ValueError, match=said):
            pair.peer.write(*arguments)
    beyond = linkspan.Pages(KIB, ROWS_OF_PAGES, ROWS_OF_PAGES[:, [1, 1]] + 2)
    with pytest.raises(linkspan.InvalidArgumentError, match="pair 2: .*page 0"):
        pair.peer.write(local, remote, beyond)
    with pytest.raises(ValueError, match="positions has two dimensions"):
        pair.peer.prepare("write", local, remote, PAGES).post(ROWS_OF_PAGES)
    wrong = ROWS_OF_PAGES.copy()
    wrong[2, 1] = -1
    for array in (wrong, wrong.T.copy().T):
        with pytest.raises(ValueError, match=r"remote_index\[2, 1\] is no page index"):
            linkspan.Pages(KIB, ROWS_OF_PAGES, array)
    assert not any(each.any() for each in sides.theirs)


async def awaited(transfer: linkspan.Transfer) -> None:
    await transfer


@pytest.mark.parametrize("kind", [list, "set"])
def test_prepared_regions(pair: Pair, sides: Sides, kind) -> None:
    remote = sides.set if kind == "set" else sides.remote
    before = [each.copy() for each in sides.theirs]
    prepared = pair.peer.prepare("write", sides.local, remote, PAGES)
    assert prepared.bytes == 3 * 2 * KIB
    after = [expected(PAGES, *each, reads=False) for each in zip(sides.mine, sides.theirs)]
    for _ in range(2):
        transfer = prepared.post(notification=b"all of it")
        transfer.wait(10)
        assert all((a == b).all() for a, b in zip(sides.theirs, after))
        assert pair.there.notifications(5) == [(pair.back.id, b"all of it")]

    for memory, old in zip(sides.theirs, before):
        memory[:] = old
    prepared.post([1]).wait(10)
    rows = [(KIB, 5 * KIB, KIB)]
    some = [expected(rows, *each, reads=False) for each in zip(sides.mine, before)]
    assert all((a == b).all() for a, b in zip(sides.theirs, some))

    for memory, old in zip(sides.theirs, before):
        memory[:] = old
    transfer = prepared.post_pairs(np.array([2, 0]), deadline=5)
    transfer.wait(10)
    assert transfer.bytes == 2 * 2 * KIB
    due = [after[0], before[1], after[2]]
    assert all((a == b).all() for a, b in zip(sides.theirs, due))


def test_prepared_parts(pair: Pair, sides: Sides) -> None:
    shapes = [PAGES, None, ROWS]
    after = [
        expected(shape, mine, theirs, reads=False)
        for shape, mine, theirs in zip(shapes, sides.mine, sides.theirs)
    ]
    prepared = pair.peer.prepare("write", list(zip(sides.local, sides.remote, shapes)))
    prepared.post().wait(10)
    assert all((a == b).all() for a, b in zip(sides.theirs, after))
    back = pair.peer.prepare("read", sides.local, sides.remote)
    for memory in sides.mine:
        memory[:] = 0
    back.post().wait(10)
    assert all((a == b).all() for a, b in zip(sides.mine, sides.theirs))
    invalid = linkspan.InvalidArgumentError
    with pytest.raises(invalid, match="pair 0: a subset of what was prepared without page lists"):
        back.post([0])
    with pytest.raises(invalid, match="index 3 of 3 prepared pairs, as number 1 of the list"):
        prepared.post_pairs([0, 3])
    with pytest.raises(ValueError, match="indices: -1 is no page index"):
        prepared.post_pairs([-1])


def test_prepared_regions_keep_their_memory(pair: Pair) -> None:
    memory = [bytearray(b"linkspan"), bytearray(b"together")]
    targets = [np.zeros(8, np.uint8) for _ in memory]
    remote = [pair.remote(each, f"kept {i}") for i, each in enumerate(targets)]
    local = [pair.here.register_memory(each) for each in memory]
    prepared = pair.peer.prepare("write", local, remote)
    parts = pair.peer.prepare("write", [(*each, None) for each in zip(local, remote)])
    del memory, local
    gc.collect()
    for each in (prepared, parts):
        for target in targets:
            target[:] = 0
        each.post().wait(10)
        assert [target.tobytes() for target in targets] == [b"linkspan", b"together"]


def test_what_is_wrong_is_named(pair: Pair, sides: Sides) -> None:
    local, remote = sides.local, sides.remote
    first = (local[0], remote[0], ROWS)
    invalid = linkspan.InvalidArgumentError
    for arguments, error, said in [
        ((local, remote[:2], ROWS), invalid, "3 local regions and 2 of the peer"),
        ((local[:1], remote), invalid, "1 local regions and 3 of the peer"),
        (([], [], ROWS), invalid, "no pair of regions was given"),
        (([], []), invalid, "no pair of regions was given"),
        (([],), invalid, "no pair of regions was given"),
        ((local, remote, [(0, 10 * KIB, 1)]), invalid, "pair 0: .*remote_offset 10240"),
        ((local, remote[::-1]), ValueError, "pair 0: the local region has 8192 bytes"),
        ((local, remote, 5), TypeError, "rows of"),
        ((local, remote[0], ROWS), TypeError, "as many RemoteRegions"),
        ((local, [remote[0], None, remote[2]], ROWS), TypeError, "as many RemoteRegions"),
        (([None], remote[:1], ROWS), TypeError, "a sequence of Regions"),
        (([first, (local[1], remote[2], None)],), ValueError, "pair 1: the local region has 12288"),
        (([first, (local[1], remote[1], 5)],), TypeError, "pair 1: .*rows of"),
        (([first, (local[1], remote[1], [(12 * KIB, 0, 1)])],), invalid, "pair 1: .*12288"),
        (([first, first[:2]],), TypeError, "pair 1: give a tuple of a Region, a RemoteRegion"),
        (([first, (remote[0], local[0], None)],), TypeError, "pair 1: give a tuple"),
        (([first, None],), TypeError, "pair 1: give a tuple"),
    ]:
        for submit in (pair.peer.write, pair.peer.read):
            with pytest.raises(error, match=said):
                submit(*arguments)
        with pytest.raises(error, match=said):
            pair.peer.prepare("write", *arguments)
    with pytest.raises(ValueError, match='op="push"'):
        pair.peer.prepare("push", local, remote, ROWS)
    with pytest.raises(TypeError, match='unknown option "depth"'):
        pair.peer.write(local, remote, ROWS, depth=1)
    assert not any(each.any() for each in sides.theirs)


def test_index_lists_on_a_gpu_live_until_it_is_done(pair: Pair, gpu) -> None:
    from cuda_memory import HeldStream

    data = [pattern(16 * KIB, seed) for seed in range(2)]
    targets = [gpu(np.zeros_like(each)) for each in data]
    local = [pair.here.register_memory(gpu(each)) for each in data]
    remote = [pair.remote(target, f"layer {i}") for i, target in enumerate(targets)]
    index = [gpu(np.arange(16, dtype=np.int32)) for _ in range(4)]
    lists = {each.address for each in index}
    shapes = [linkspan.Pages(KIB, *index[:2]), linkspan.Pages(KIB, *index[2:])]
    held = HeldStream(gpu.driver, 0)
    try:
        try:
            transfer = pair.peer.write(list(zip(local, remote, shapes)), after=held)
        except linkspan.UnreachableError as error:  # no kernel of the simulated driver's copies
            assert "pair 0: " in str(error) and "kernel" in str(error)
            return
        del shapes, index
        gc.collect()
        assert not lists & set(gpu.freed) and not transfer.done()
        held.release()
        transfer.wait(10)
        gc.collect()
        assert lists <= set(gpu.freed)
        assert [each.read() for each in targets] == [each.tobytes() for each in data]
    finally:
        held.close()


def test_current_streams_of_several_gpus_are_refused() -> None:
    # Host memory that says it is on a GPU, and what linkspan asks of torch.
    ended = run(
        "import sys, types, numpy, linkspan\n"
        "torch = types.ModuleType('torch')\n"
        "torch.cuda = types.SimpleNamespace(is_initialized=lambda: True)\n"
        "torch._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda device: 0)\n"
        "sys.modules['torch'] = torch\n"
        "class On:\n"
        "    def __init__(self, gpu):\n"
        "        self.gpu, self.memory = gpu, numpy.zeros(8, numpy.uint8)\n"
        "        self.__cuda_array_interface__ = self.memory.__array_interface__\n"
        "    def __dlpack__(self): pass\n"
        "    def __dlpack_device__(self): return 2, self.gpu\n"
        "here, there = linkspan.Engine(use_gpu=False), linkspan.Engine(use_gpu=False)\n"
        "peer = here.connect(there.listen())\n"
        "there.publish('set', [there.register_memory(bytearray(8)) for _ in range(3)])\n"
        "remote = peer.lookup_set('set')\n"
        "local = [here.register_memory(On(gpu)) for gpu in (0, 1)]\n"
        "local.insert(1, here.register_memory(bytearray(8)))\n"
        "def refused(*arguments, **options):\n"
        "    try:\n"
        "        peer.write(*arguments, **options)\n"
        "    except ValueError as error:\n"
        "        return 'on several GPUs' in str(error)\n"
        "parts = [(a, b, None) for a, b in zip(local, remote.regions)]\n"
        "assert refused(local, remote) and refused(local, remote, [(0, 0, 1)]) and refused(parts)\n"
        "assert refused(local, remote, after=None, release='current')\n"
        "peer.write(local, remote, after=None).wait(10)\n"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
