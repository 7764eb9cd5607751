"""linkspan.ray between two processes, method by method."""

from __future__ import annotations

import gc
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import NamedTuple

from actors import COMMUNICATOR, MIB, Child, pattern, socket_folder, start, transport  # noqa: F401

import linkspan
import numpy as np
import pytest
import ray.experimental.rdt.util as registry
from linkspan import _tensors
from linkspan.ray import LinkspanTransport, register
from ray.exceptions import RayDirectTransportError


def test_register_names_the_transport_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "registered", {})
    register(np.ndarray)
    assert registry.registered == {"LINKSPAN": (LinkspanTransport, ["cuda", "cpu"], np.ndarray)}
    with pytest.raises(ValueError, match="LINKSPAN already registered"):
        register(np.ndarray)


def test_what_it_says_of_itself(transport: LinkspanTransport) -> None:
    assert transport.tensor_transport_backend() == "LINKSPAN"
    assert LinkspanTransport.is_one_sided() and LinkspanTransport.can_abort_transport()
    assert pickle.loads(pickle.dumps(LinkspanTransport)) is LinkspanTransport
    assert transport.get_communicator_metadata(None, None, "LINKSPAN") == COMMUNICATOR
    assert transport._engine is None  # a process that only coordinates opens none
    with pytest.raises(NotImplementedError, match="recv_multiple_tensors"):
        transport.send_multiple_tensors([], None, COMMUNICATOR)


class Handle:
    """An actor's handle whose calls run here."""

    def __init__(self) -> None:
        self.__ray_call__ = self
        self.group = ""

    def options(self, *, concurrency_group: str) -> Handle:
        self.group = concurrency_group
        return self

    def remote(self, function: Callable) -> Callable:
        return lambda: function(self)


def test_an_actor_has_it_if_an_engine_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "managers", {})
    monkeypatch.setattr(
        registry, "registered", {"LINKSPAN": (LinkspanTransport, ["cpu"], np.ndarray)}
    )
    handle = Handle()
    monkeypatch.setenv("LINKSPAN_SECURITY", "nonsense")
    assert not LinkspanTransport().actor_has_tensor_transport(handle)
    monkeypatch.delenv("LINKSPAN_SECURITY")
    assert LinkspanTransport().actor_has_tensor_transport(handle)
    assert handle.group == "_ray_system"
    registry.managers["LINKSPAN"]._engine.close()


@pytest.mark.parametrize("secret", ["", "a secret of 16 bytes or more"])
def test_tensors_arrive_whole(
    start: Callable[..., Child], transport: LinkspanTransport, monkeypatch: pytest.MonkeyPatch,
    secret: str,
) -> None:  # fmt: skip
    if secret:
        monkeypatch.setenv("LINKSPAN_SECRET", secret)
    child = start()
    sizes = [1, 0, 4097, 3 * MIB + 1]
    metadata = child.ask("make", "object", sizes, 5)
    descriptor = linkspan.Descriptor.from_bytes(metadata.descriptors[0])
    assert ("tcp:" in descriptor.address) == bool(secret)
    assert metadata.tensor_device == "cpu" and metadata.tensor_meta[2] == ((4097,), np.uint8)
    assert hash(metadata) and metadata in {metadata}
    received = transport.recv_multiple_tensors("object", metadata, COMMUNICATOR)
    for index, (array, size) in enumerate(zip(received, sizes)):
        assert (array == pattern(size, 5 + index)).all() and array.shape == (size,)
    # Nothing of it stays registered, and the other way round it is the same.
    assert not transport._leaving and not transport._engine._regions
    mine = transport.extract_tensor_transport_metadata("mine", [received[3].reshape(-1, 1)])
    (back,) = child.ask("receive", "mine", mine)
    assert (back == received[3].reshape(-1, 1)).all()


def test_an_object_of_more_tensors_than_a_set(
    start: Callable[..., Child], transport: LinkspanTransport
) -> None:
    child, count = start(), 1500
    metadata = child.ask("make", "many", [8] * count, 1)
    assert len(metadata.descriptors) == 2
    received = transport.recv_multiple_tensors("many", metadata, COMMUNICATOR)
    assert all((array == pattern(8, 1 + i)).all() for i, array in enumerate(received))
    assert not transport._leaving and not transport._engine._regions
    assert len(child.ask("collect", "many")) == count and child.ask("left") == 0


def test_objects_without_bytes(start: Callable[..., Child], transport: LinkspanTransport) -> None:
    child = start()
    for sizes in ([], [0, 0]):
        metadata = child.ask("make", str(sizes), sizes, 0)
        received = transport.recv_multiple_tensors(str(sizes), metadata, COMMUNICATOR)
        assert [array.size for array in received] == sizes
    assert not transport._leaving


def test_fetch_returns_before_the_tensors(
    start: Callable[..., Child], transport: LinkspanTransport
) -> None:
    metadata = start().ask("make", "object", [MIB], 3)
    requests = [
        transport.fetch_multiple_tensors("object", metadata, COMMUNICATOR) for _ in range(4)
    ]
    for request in requests:
        (array,) = transport.wait_fetch_complete(request, 20)
        assert (array == pattern(MIB, 3)).all()
        assert transport.wait_fetch_complete(request, 0)[0] is array


def test_thousands_of_fetches_leave_nothing(
    start: Callable[..., Child], transport: LinkspanTransport
) -> None:
    metadata = start().ask("make", "object", [8], 3)
    requests = [
        transport.fetch_multiple_tensors("object", metadata, COMMUNICATOR) for _ in range(2400)
    ]
    for request in requests[::3]:
        transport.wait_fetch_complete(request, 20)
    requests.clear()  # the others are dropped
    del request
    transport._sweep(20)
    assert not transport._leaving and not transport._engine._regions


def test_target_buffers_are_filled(
    start: Callable[..., Child], transport: LinkspanTransport
) -> None:
    metadata = start().ask("make", "object", [100, 200], 4)
    buffers = [np.zeros(100, np.uint8), np.zeros(200, np.uint8)]
    received = transport.recv_multiple_tensors("object", metadata, COMMUNICATOR, buffers)
    assert received[0] is buffers[0] and (buffers[1] == pattern(200, 5)).all()


@pytest.mark.parametrize(
    "buffers, text",
    [
        ([np.zeros(100, np.uint8)], "1 target buffers for the 2 of object object"),
        ([np.zeros(100, np.uint8), np.zeros(7, np.uint8)], r"buffer 1 .* \(7,\) .* \(200,\)"),
        ([np.zeros(100, np.int8), np.zeros(200, np.uint8)], "buffer 0 .* int8: give .* uint8"),
        ([np.zeros(200, np.uint8)[::2], np.zeros(200, np.uint8)], "tensor 0 .* not contiguous"),
    ],
)
def test_target_buffers_that_do_not_fit(
    start: Callable[..., Child], transport: LinkspanTransport, buffers: list, text: str
) -> None:
    metadata = start().ask("make", "object", [100, 200], 4)
    with pytest.raises(ValueError, match=text):
        transport.recv_multiple_tensors("object", metadata, COMMUNICATOR, buffers)


def test_an_object_of_this_process_is_copied(transport: LinkspanTransport) -> None:
    source = pattern(1000, 6)
    metadata = transport.extract_tensor_transport_metadata("own", [source])
    (received,) = transport.recv_multiple_tensors("own", metadata, COMMUNICATOR)
    assert received is not source and (received == source).all()


def test_a_task_that_is_tried_again_gives_the_same_metadata(transport: LinkspanTransport) -> None:
    source = pattern(1000, 6)
    metadata = transport.extract_tensor_transport_metadata("own", [source])
    assert transport.extract_tensor_transport_metadata("own", [source]) is metadata


def test_two_threads_that_publish_an_object_do_so_once(
    transport: LinkspanTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, both = pattern(1000, 6), threading.Barrier(2)
    monkeypatch.setattr(_tensors, "synchronize", lambda tensors: both.wait(5))

    def publish(_: int) -> object:
        return transport.extract_tensor_transport_metadata("own", [source])

    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(publish, range(2))
    assert one is other
    transport.garbage_collect("own", one, [source])
    assert not transport._engine._regions


class OnGpu(np.ndarray):
    device = "cuda"


@pytest.mark.parametrize(
    "tensors, text",
    [
        ([np.zeros((8, 8))[:, ::2]], "tensor 0 of object bad is not contiguous"),
        ([np.zeros(8), np.zeros(8).view(OnGpu)], "object bad are on cpu and cuda"),
        ([np.zeros(8), np.array([object()])], "holds Python objects"),
    ],
)
def test_tensors_that_cannot_be_sent(
    transport: LinkspanTransport, tensors: list, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        transport.extract_tensor_transport_metadata("bad", tensors)
    assert "bad" not in transport._published


def test_each_gpu_is_synchronised_before_others_read(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    torch = SimpleNamespace(cuda=SimpleNamespace(synchronize=seen.append))
    monkeypatch.setitem(sys.modules, "torch", torch)
    devices = [Device("cuda", 0), Device("cuda", 1), Device("cuda", 0), Device("cpu", -1)]
    _tensors.synchronize([SimpleNamespace(device=each) for each in devices])
    assert sorted(seen) == [("cuda", 0), ("cuda", 1)]


class Device(NamedTuple):
    type: str
    index: int


def test_garbage_collect_frees_the_memory(
    start: Callable[..., Child], transport: LinkspanTransport
) -> None:
    child = start()
    metadata = child.ask("make", "object", [MIB, 100], 7)
    transport.recv_multiple_tensors("object", metadata, COMMUNICATOR)
    assert sorted(child.ask("collect", "object")) == [100, MIB]
    assert child.ask("left") == 0
    with pytest.raises(RayDirectTransportError, match="object object .* make the object again"):
        transport.recv_multiple_tensors("object", metadata, COMMUNICATOR)
    transport.garbage_collect("unknown", metadata, [])


def test_received_memory_is_the_users_alone(
    start: Callable[..., Child], transport: LinkspanTransport
) -> None:
    metadata = start().ask("make", "object", [MIB], 8)
    request = transport.fetch_multiple_tensors("object", metadata, COMMUNICATOR)
    freed = weakref.ref(transport.wait_fetch_complete(request, 20)[0])
    del request
    gc.collect()
    assert freed() is None


def test_metadata_that_is_damaged(
    start: Callable[..., Child], transport: LinkspanTransport
) -> None:
    metadata = start().ask("make", "object", [100], 8)
    metadata.descriptors[0] = metadata.descriptors[0][:20]
    with pytest.raises(RayDirectTransportError, match="object object was not read"):
        transport.recv_multiple_tensors("object", metadata, COMMUNICATOR)


def test_a_limit_that_is_no_number(
    start: Callable[..., Child], transport: LinkspanTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_rdt_fetch_fail_timeout_milliseconds", "soon")
    metadata = start().ask("make", "object", [100], 8)
    with pytest.raises(ValueError, match="milliseconds='soon': give whole milliseconds"):
        transport.recv_multiple_tensors("object", metadata, COMMUNICATOR)
