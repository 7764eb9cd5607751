"""What can be registered, what of it is meant, and how long it lives."""

from __future__ import annotations

import array
import ctypes
import gc
import importlib.util
import math
import mmap
import weakref
from typing import Any

import numpy as np
import pytest
from conftest import Pair, pattern

import linkspan
from linkspan import util


class Weak(bytearray):
    """A bytearray that weakref can watch."""


def test_all_kinds_of_host_memory(pair: Pair) -> None:
    data = pattern(4096)
    floats = data.view(np.float32).copy()
    raw = (ctypes.c_char * 4096).from_buffer_copy(data)
    pages = mmap.mmap(-1, 4096)
    pages[:] = data.tobytes()
    for name, memory in {
        "numpy": data.copy(),
        "two dimensions": floats.reshape(32, 32),
        "columns first": np.asfortranarray(data.reshape(64, 64)),
        "bytearray": bytearray(data),
        "memoryview": memoryview(bytearray(data)),
        "array": array.array("B", data.tobytes()),
        "ctypes": raw,
        "mmap": pages,
        "address": (ctypes.addressof(raw), 4096),
    }.items():
        region = pair.here.register_memory(memory)
        assert region.bytes == 4096 and region.kind == "host", name
        target = np.zeros(4096, np.uint8)
        pair.peer.write(region, pair.remote(target, name)).wait(10)
        expected = np.asfortranarray(data.reshape(64, 64)) if name == "columns first" else data
        assert target.tobytes() == expected.tobytes("A"), name


class Interface:
    """An array that the buffer protocol does not know, as libraries beside numpy have them."""

    def __init__(self, data: np.ndarray, typestr: str, read_only: bool = False) -> None:
        self.data = data
        self.__array_interface__ = {
            "shape": (data.nbytes // int(typestr[2:]),),
            "typestr": typestr,
            "data": (data.ctypes.data, read_only),
            "version": 3,
        }


def arrays_without_a_buffer() -> dict[str, Any]:
    arrays: dict[str, Any] = {
        name: np.zeros(32, name) for name in ("datetime64[ns]", "timedelta64[s]", "M8[D]")
    }
    arrays["two dimensions"] = np.zeros((4, 8), "datetime64[ns]")
    arrays["structure"] = np.zeros(8, [("at", "datetime64[us]"), ("name", "U3"), ("of", "i1")])
    arrays["interface"] = Interface(np.zeros(64, np.uint8), "<V2")
    if importlib.util.find_spec("ml_dtypes"):
        import ml_dtypes

        for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "float4_e2m1fn"):
            arrays[name] = np.zeros(32, getattr(ml_dtypes, name))
    return arrays


@pytest.mark.parametrize("name", arrays_without_a_buffer())
def test_bytes_are_bytes(pair: Pair, name: str) -> None:
    target = arrays_without_a_buffer()[name]
    array = target.data if isinstance(target, Interface) else target
    data = pattern(array.nbytes)
    remote = pair.remote(target, name)
    assert remote.bytes == array.nbytes
    pair.peer.write(pair.here.register_memory(data.copy()), remote).wait(10)
    assert array.tobytes() == data.tobytes()
    got = pair.back.recv(1, target)
    pair.peer.send(1, data[::-1].copy()).wait(10)
    got.wait(10)
    assert array.tobytes() == data[::-1].tobytes()


def test_read_only_arrays_are_refused_without_a_buffer(pair: Pair) -> None:
    times = np.zeros(4, "datetime64[ns]")
    times.flags.writeable = False
    for memory in (times, Interface(np.zeros(8, np.uint8), "<V2", read_only=True)):
        with pytest.raises(ValueError, match="read-only"):
            pair.here.register_memory(memory)
        assert pair.here.register_memory(memory, peers_write=False).bytes in (8, 32)


@pytest.mark.parametrize(
    "memory",
    [
        np.array([{}, "a"], object),
        np.zeros(2, [("count", "i4"), ("who", object)]),
        np.zeros(2, [("in", [("who", object)], (3,))]),
        np.ma.masked_array(np.array([{}, "a"], object)),
        memoryview(np.array([{}, "a"], object)),
        (ctypes.py_object * 2)(),
    ],
    ids=["objects", "field", "nested", "masked", "memoryview", "ctypes"],
)
def test_python_objects_are_refused(pair: Pair, memory: object) -> None:
    for call in (
        lambda: pair.here.register_memory(memory),
        lambda: pair.peer.send(1, memory),
        lambda: pair.peer.recv(1, memory),
        lambda: util.packed(pair.here.register_memory(bytearray(64)), memory),
    ):
        with pytest.raises(ValueError, match="holds Python objects"):
            call()


def test_a_field_may_be_called_as_an_object_is(pair: Pair) -> None:
    assert pair.here.register_memory(np.zeros(2, [("O", "i4"), ("xOx", "i4")])).bytes == 16


@pytest.mark.parametrize(
    "memory, error, said",
    [
        (3, TypeError, "int is no memory"),
        ("text", TypeError, "str is no memory"),
        (b"constant", ValueError, "read-only"),
        ((0, 10), ValueError, "no \\(address, bytes\\)"),
        ((-5, 10), ValueError, "no \\(address, bytes\\)"),
        (np.zeros((8, 8), np.uint8)[:, :4], ValueError, "not contiguous"),
        (np.zeros(0, np.uint8), ValueError, "0 bytes|no memory"),
    ],
)
def test_refuses(pair: Pair, memory: object, error: type, said: str) -> None:
    with pytest.raises(error, match=said):
        pair.here.register_memory(memory)


def test_read_only_memory_may_be_read(pair: Pair) -> None:
    region = pair.there.register_memory(b"constant", peers_write=False)
    pair.there.publish("constant", region)
    target = bytearray(8)
    pair.peer.read(pair.here.register_memory(target), pair.peer.lookup("constant")).wait(10)
    assert target == b"constant"
    with pytest.raises(linkspan.PermissionDeniedError):
        eight = pair.here.register_memory(bytearray(8))
        pair.peer.write(eight, pair.peer.lookup("constant")).wait(10)


def test_read_only_memory_is_written_by_nobody(pair: Pair) -> None:
    array = np.zeros(8, np.uint8)
    array.flags.writeable = False
    remote = pair.remote(bytearray(8))
    for number, memory in enumerate((b"constant", array, memoryview(b"constant"))):
        region = pair.here.register_memory(memory, peers_write=False)
        assert region.memory.readonly and region.memory == memory
        good = pair.here.register_memory(bytearray(8))
        for call in (
            lambda: pair.peer.read(region, remote),
            lambda: pair.peer.prepare("read", region, remote),
        ):
            with pytest.raises(ValueError, match="8 bytes .* read-only .* register memory"):
                call()
        for call in (
            lambda: pair.peer.read([good, region], [remote, remote]),
            lambda: pair.peer.read([good, region], [remote, remote], [(0, 0, 1)]),
            lambda: pair.peer.read([(good, remote, None), (region, remote, None)]),
            lambda: pair.peer.prepare("read", [good, region], [remote, remote]),
            lambda: pair.peer.prepare("read", [(good, remote, None), (region, remote, None)]),
        ):
            with pytest.raises(ValueError, match="pair 1: .* read-only"):
                call()
        with pytest.raises(ValueError, match="read-only .* received into"):
            pair.back.recv(number, memory)
        pair.peer.write(region, remote).wait(10)
        pair.peer.prepare("write", region, remote).post().wait(10)


class Lazy:
    """Makes its array when it is asked, so that only the capsule owns the memory."""

    def __init__(self, writeable: bool = True) -> None:
        self.writeable = writeable

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: Any) -> Any:
        array = np.full(60000, 7, np.uint8)
        array.flags.writeable = self.writeable
        self.exported = weakref.ref(array)
        return array.__dlpack__(**options)


def test_the_capsule_of_dlpack_owns_the_memory(pair: Pair) -> None:
    lazy = Lazy()
    region = pair.there.register_memory(lazy)
    assert region.bytes == 60000 and region.memory == bytes([7]) * 60000
    exported = lazy.exported
    del lazy
    gc.collect()
    assert exported() is not None
    pair.there.deregister(region)
    assert exported() is None
    got = pair.back.recv(1, lazy := Lazy())
    pair.peer.send(1, bytes([8]) * 60000).wait(10)
    got.wait(10)
    gc.collect()
    assert lazy.exported() is None


def test_registered_memory_lives_until_it_is_deregistered(pair: Pair) -> None:
    memory = Weak(pattern(100).tobytes())
    watch = weakref.ref(memory)
    region = pair.here.register_memory(memory)
    with pytest.raises(BufferError):
        memory.append(1)  # it cannot move away
    address = region.address
    del memory, region
    gc.collect()
    assert watch() is not None
    assert ctypes.string_at(address, 100) == pattern(100).tobytes()
    pair.here.deregister(pair.here.register_memory(bytearray(8)))
    pair.here.close()
    gc.collect()
    assert watch() is None


def test_deregister_says_who_uses_it(pair: Pair) -> None:
    region = pair.there.register_memory(bytearray(100))
    pair.there.publish("memory", region)
    remote = pair.peer.lookup("memory")
    with pytest.raises(linkspan.BusyError, match="here"):
        pair.there.deregister(region, timeout=0.05)
    del remote
    pair.there.deregister(region)
    with pytest.raises(linkspan.NotFoundError):
        pair.there.publish("memory", region)


def test_shared_memory_is_a_memoryview(pair: Pair) -> None:
    region = pair.there.allocate_shared(4096)
    view = region.memory
    pair.there.publish("shared", region)
    del region
    remote = pair.peer.lookup("shared")
    assert remote.kind == "shared" and len(remote) == 4096
    pair.peer.write(pair.here.register_memory(bytearray(pattern(4096))), remote).wait(10)
    assert bytes(view) == pattern(4096).tobytes()
    view[3] = 1
    assert np.frombuffer(view, np.uint8)[3] == 1


@pytest.mark.parametrize(
    "slices",
    [
        np.s_[:],
        np.s_[2:5],
        np.s_[:, 3:5],
        np.s_[:, :, 2:7],
        np.s_[1:4, 3:5, 2:7],
        np.s_[::2, ::3],
        np.s_[::2, :, ::3],
        np.s_[:, 0, 0],
        np.s_[2, 1, 3:4],
        np.s_[3:3],
    ],
)
def test_views_are_packed(pair: Pair, slices: object) -> None:
    tensor = pattern(6 * 8 * 10 * 4).view(np.uint32).reshape(6, 8, 10).copy()
    view = tensor[slices]
    region = pair.here.register_memory(tensor)
    target = np.full(view.nbytes + 32, 7, np.uint8)
    remote = pair.remote(target)
    shape = util.packed(region, view, remote_base=16)
    pair.peer.write(region, remote, shape).wait(10)
    assert target[16:-16].tobytes() == view.tobytes()
    assert set(target[:16]) | set(target[-16:]) == {7}
    wanted = view.tobytes()
    tensor[...] = 0
    pair.peer.read(region, remote, shape).wait(10)
    assert tensor[slices].tobytes() == wanted
    assert np.count_nonzero(tensor) <= view.size


def test_packed_refuses(pair: Pair) -> None:
    tensor = np.zeros((4, 4, 4, 4, 4), np.uint8)
    region = pair.here.register_memory(tensor)
    with pytest.raises(ValueError, match="5 levels"):
        util.packed(region, tensor[::2, ::2, ::2, ::2, ::2])
    with pytest.raises(ValueError, match="steps forward"):
        util.packed(region, tensor[::-1])
    with pytest.raises(ValueError, match="outside"):
        util.packed(region, np.zeros(4, np.uint8))


def test_gpu_memory(pair: Pair, gpu) -> None:
    data = pattern(1 << 20)
    source, target = gpu(data), gpu(np.zeros_like(data))
    region = pair.here.register_memory(source)
    assert region.kind == "device" and region.gpu.startswith("GPU-") and len(region.gpu) == 40
    with pytest.raises(TypeError, match="on a GPU"):
        region.memory
    remote = pair.remote(target)
    pair.peer.write(region, remote).wait(10)
    assert target.read() == data.tobytes()
    lists = gpu(np.arange(16, dtype=np.int32)), gpu(np.arange(16, dtype=np.int32)[::-1].copy())
    pages = linkspan.Pages(1 << 16, *lists)
    assert pages.indices_on_gpu and len(pages) == 16
    try:
        transfer = pair.peer.write(region, remote, pages)
    except linkspan.UnreachableError as error:  # no kernel of the simulated driver's copies
        assert "kernel" in str(error)
    else:
        transfer.wait(10)
        assert target.read() == data.reshape(16, -1)[::-1].tobytes()


def test_gpu_indices_are_refused_clearly(pair: Pair, gpu) -> None:
    wide = gpu(np.arange(16, dtype=np.int64))
    narrow = gpu(np.arange(16, dtype=np.int32))
    with pytest.raises(ValueError, match="torch.int32"):
        linkspan.Pages(4096, wide, wide)
    with pytest.raises(ValueError, match="on a GPU and one is not"):
        linkspan.Pages(4096, narrow, [1, 2])


def test_levels_cover_all_bytes() -> None:
    from linkspan._memory import view

    rng = np.random.default_rng(3)
    for _ in range(200):
        tensor = np.zeros(rng.integers(1, 6, size=4), np.uint16)
        of = tensor[tuple(slice(int(rng.integers(0, 2)), None, int(rng.integers(1, 3))) for _ in range(4))]
        found = view(of)
        levels = found.levels()
        assert found.bytes == of.nbytes
        if of.size:
            assert of.nbytes % math.prod(count for count, _ in levels) == 0
        assert found.contiguous == (of.size == 0 or of.flags.c_contiguous)
