"""linkspan.ray where a read is aborted, outlives its patience, or loses its peer."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

from actors import COMMUNICATOR, MIB, Child, pattern, socket_folder, start, transport  # noqa: F401

import linkspan
import linkspan.ray
import numpy as np
import pytest
from linkspan.ray import LinkspanTransport
from ray.exceptions import RayDirectTransportError

SIZE = 64 * MIB  # more than sockets hold


@pytest.fixture
def held(
    start: Callable[..., Child], transport: LinkspanTransport, monkeypatch: pytest.MonkeyPatch
) -> tuple[Child, linkspan.ray.LinkspanFetchRequest]:
    """A read by TCP that cannot end: its peer was stopped before it began."""
    monkeypatch.setenv("LINKSPAN_SECRET", "a secret of 16 bytes or more")
    child = start()
    metadata = child.ask("make", "object", [SIZE], 1)
    for address in linkspan.Descriptor.from_bytes(metadata.descriptors[0]).address.split(","):
        if address.startswith("unix:"):
            os.remove(address.removeprefix("unix:").partition("#")[0])
    find = transport._find

    def stopped(*arguments):
        result = find(*arguments)
        child.stop()
        return result

    monkeypatch.setattr(transport, "_find", stopped)
    request = transport.fetch_multiple_tensors("object", metadata, COMMUNICATOR)
    monkeypatch.setattr(transport, "_find", find)
    child.metadata = metadata
    return child, request


def test_abort_ends_a_read_in_flight(held, transport: LinkspanTransport) -> None:
    child, request = held
    with pytest.raises(TimeoutError, match="object object has not arrived within 0 s"):
        transport.wait_fetch_complete(request, 0)
    ended = []

    def wait() -> None:
        try:
            transport.wait_fetch_complete(request)
        except RayDirectTransportError as error:
            ended.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    transport.abort_transport("object", COMMUNICATOR)
    child.go_on()  # what still writes is over there: it has to hear of it
    began = time.monotonic()
    waiting.join(20)
    assert time.monotonic() - began < 1
    assert ended == ["the read of object object was aborted"]
    # Nothing writes there any more, and neither side was harmed.
    request.tensors[0][:] = 7
    (again,) = transport.recv_multiple_tensors("object", child.metadata, COMMUNICATOR)
    assert (again == pattern(SIZE, 1)).all() and (request.tensors[0] == 7).all()
    assert not transport._aborted


def test_abort_of_another_object_changes_nothing(held, transport: LinkspanTransport) -> None:
    child, request = held
    transport.abort_transport("other", COMMUNICATOR)
    child.go_on()
    (array,) = transport.wait_fetch_complete(request, 20)
    assert (array == pattern(SIZE, 1)).all()


def test_abort_before_the_read_fails_it_once(
    start: Callable[..., Child], transport: LinkspanTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = start().ask("make", "object", [100], 1)
    transport.abort_transport("object", COMMUNICATOR)
    with pytest.raises(RayDirectTransportError, match="object object was aborted before its read"):
        transport.recv_multiple_tensors("object", metadata, COMMUNICATOR)
    transport.recv_multiple_tensors("object", metadata, COMMUNICATOR)
    # It is not remembered longer than Ray waits.
    monkeypatch.setenv("RAY_rdt_fetch_fail_timeout_milliseconds", "0")
    transport.abort_transport("object", COMMUNICATOR)
    transport.abort_transport("other", COMMUNICATOR)
    assert list(transport._aborted) == ["other"]


def test_a_killed_peer_fails_its_reads_within_a_second(
    held, transport: LinkspanTransport
) -> None:
    child, request = held
    began = time.monotonic()
    child.process.kill()
    with pytest.raises(RayDirectTransportError, match="Where its actor died"):
        transport.wait_fetch_complete(request, 20)
    assert time.monotonic() - began < 1
    with pytest.raises(RayDirectTransportError, match="object object was not read"):
        transport.recv_multiple_tensors("object", child.metadata, COMMUNICATOR)


def test_a_peer_that_is_known_to_be_gone_is_not_waited_for(
    start: Callable[..., Child], transport: LinkspanTransport
) -> None:
    metadata = start().ask("make", "object", [100], 1)
    address = linkspan.Descriptor.from_bytes(metadata.descriptors[0]).address
    transport._peers[address] = SimpleNamespace(state="gone", id=1)
    with pytest.raises(RayDirectTransportError, match="ray a1b2 .* has ended"):
        transport.recv_multiple_tensors("object", metadata, COMMUNICATOR)


def test_a_read_ends_at_rays_limit(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, transport: LinkspanTransport
) -> None:
    monkeypatch.setenv("RAY_rdt_fetch_fail_timeout_milliseconds", "300")
    _, fetch = request.getfixturevalue("held")
    with pytest.raises(RayDirectTransportError, match="object object was not read"):
        transport.wait_fetch_complete(fetch)


def test_a_request_that_is_dropped_ends_its_read(held, transport: LinkspanTransport) -> None:
    child, request = held
    transfer = request.transfer
    del request, held
    # pytest keeps the fixture's value: what __del__ does is called by hand.
    for fetch in list(transport._fetches):
        fetch.__del__()
    child.go_on()
    with contextlib.suppress(linkspan.CanceledError):  # or it had arrived
        transfer.wait(20)
    transport._sweep(20)
    assert not transport._leaving and not transport._engine._regions


def test_memory_that_a_stopped_reader_imports_is_kept(
    start: Callable[..., Child], transport: LinkspanTransport, caplog: pytest.LogCaptureFixture
) -> None:
    child = start()
    source = np.zeros(MIB, np.uint8)
    metadata = transport.extract_tensor_transport_metadata("object", [source])
    child.ask("receive", "object", metadata)
    child.stop()
    began = time.monotonic()
    transport.garbage_collect("object", metadata, [source])
    assert time.monotonic() - began < 5 and transport._leaving
    assert "1 tensors of objects that Ray has collected are kept" in caplog.text
    child.go_on()
    transport._sweep(20)
    assert not transport._leaving and not transport._engine._regions
