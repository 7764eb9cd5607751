"""Ray's direct transport of tensors between actors, over linkspan.

    import linkspan.ray, ray, torch

    linkspan.ray.register()  # before the decorators that name it
    @ray.remote(num_gpus=1, enable_tensor_transport=True)
    class Trainer:
        @ray.method(tensor_transport="linkspan")
        def weights(self): return torch.ones(1000, device="cuda")

integrations/ray/README.md says who may connect. Importing this imports ray.
Threads: every method from any thread; Ray calls them from three.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Any, Sequence

import ray
from ray.exceptions import RayDirectTransportError
from ray.experimental.rdt.tensor_transport_manager import (
    CommunicatorMetadata,
    FetchRequest,
    TensorTransportManager,
    TensorTransportMetadata,
)

from . import _tensors, util
from ._core import Descriptor, Future, Peer, Region, RemoteRegion
from ._engine import Engine
from ._errors import DisconnectedError, Error
from ._ray_requests import LinkspanFetchRequest, LinkspanTransportMetadata

__all__ = ["LinkspanTransport", "register"]

_LOG = logging.getLogger(__name__)
_NAME = "LINKSPAN"
_SET = 1024  # regions of a published set
_CALLS = 256  # of invalidate_async() at once
_CONNECT_S = 5.0
_RELEASE_S = 1.0  # how long garbage_collect() waits for peers that still copy
_ASK_S = 300.0  # an actor may import torch first


def register(data_type: type | None = None) -> None:
    """Registers the transport "LINKSPAN" for tensors of torch, or for this type, numpy.ndarray.
    ValueError: it is registered already."""
    from ray.experimental.rdt import register_tensor_transport

    if data_type is None:
        import torch

        data_type = torch.Tensor
    register_tensor_transport(_NAME, ["cuda", "cpu"], LinkspanTransport, data_type)


@dataclass
class _Published:
    """An object of this process that others may read."""

    metadata: LinkspanTransportMetadata
    tensors: list[Any]
    regions: list[Region]


class LinkspanTransport(TensorTransportManager):
    """Opens an Engine at its first use; a process that only coordinates has none."""

    def __init__(self) -> None:
        self._publishing = threading.RLock()  # of the Engine and what it publishes; before _lock
        self._engine: Engine | None = None
        self._published: dict[str, _Published] = {}
        self._peers: dict[str, Peer] = {}  # by Descriptor.address
        self._lock = threading.RLock()  # of the rest; held briefly
        self._fetches: weakref.WeakSet[LinkspanFetchRequest] = weakref.WeakSet()
        self._aborted: dict[str, float] = {}  # object, and when the abort expires
        self._leaving: list[tuple[Region, Future | None]] = []  # not quiet yet

    def tensor_transport_backend(self) -> str:
        return _NAME

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        def __ray_actor_has_tensor_transport__(self: Any) -> bool:
            from linkspan.ray import _opens

            return _opens()

        call = actor.__ray_call__.options(concurrency_group="_ray_system")
        return ray.get(call.remote(__ray_actor_has_tensor_transport__), timeout=_ASK_S)

    def extract_tensor_transport_metadata(
        self, obj_id: str, rdt_object: Sequence[Any]
    ) -> LinkspanTransportMetadata:
        """Publishes the tensors until garbage_collect(). A second call returns the same.
        ValueError: they are of several device types, or one is not contiguous."""
        with self._publishing:
            if obj_id in self._published:
                return self._published[obj_id].metadata
        tensors = list(rdt_object)
        device = _tensors.common_device(obj_id, tensors)
        _tensors.check_contiguous(obj_id, tensors)
        _tensors.synchronize(tensors)  # other processes read by streams of their own
        metadata = LinkspanTransportMetadata(
            tensor_meta=[(each.shape, each.dtype) for each in tensors], tensor_device=device
        )
        regions: list[Region] = []
        with self._publishing:
            if obj_id in self._published:  # by another thread, since
                return self._published[obj_id].metadata
            engine = self._opened()
            self._sweep(0.0)
            try:
                for tensor in _tensors.not_empty(tensors):
                    regions.append(engine.register_memory(tensor, peers_write=False))
                for first in range(0, len(regions), _SET):
                    name = f"ray {obj_id} {first}"
                    engine.publish(name, regions[first : first + _SET])
                    metadata.descriptors.append(engine.describe(name).to_bytes())
            except Exception:
                self._invalidate([(each, None) for each in regions], 0.0)
                raise
            self._published[obj_id] = _Published(metadata, tensors, regions)
        return metadata

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    def fetch_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: Sequence[Any] | None = None,
    ) -> LinkspanFetchRequest:
        """Starts the read of an object into target_buffers, else into new memory.
        ValueError: the buffers do not fit. RayDirectTransportError: there is no way to the tensors,
        or the object was aborted."""
        meta = tensor_transport_metadata
        if target_buffers:
            tensors = list(target_buffers)
            _tensors.check_buffers(obj_id, tensors, meta.tensor_meta)
        else:
            tensors = [_tensors.empty(*each, meta.tensor_device) for each in meta.tensor_meta]
        request = LinkspanFetchRequest(obj_id=obj_id, tensors=tensors)
        self._sweep(0.0)
        with self._publishing:
            here = self._published.get(obj_id)
        if here is not None:  # no Engine is its own peer
            _tensors.copy(here.tensors, tensors)
            return request
        if not meta.descriptors:
            return request
        try:
            engine = self._opened()
            peer, remote = self._find(engine, meta.descriptors)
            request.transport = self
            for tensor in _tensors.not_empty(tensors):
                request.regions.append(engine.register_memory(tensor, peers_read=False))
            with self._lock:  # an abort comes before the start, or finds the request
                if self._aborted.pop(obj_id, 0.0) > time.monotonic():
                    raise RayDirectTransportError(f"object {obj_id} was aborted before its read")
                parts = [(here, there, None) for here, there in zip(request.regions, remote)]
                request.transfer = peer.read(parts, deadline=_deadline())
                self._fetches.add(request)
        except (Error, OSError) as error:
            raise _failure(obj_id, error) from error
        return request

    def wait_fetch_complete(self, fetch_request: FetchRequest, timeout: float = -1) -> list[Any]:
        """Returns the tensors. A negative timeout waits until the read's own deadline, which is
        RAY_rdt_fetch_fail_timeout_milliseconds. TimeoutError: the read continues.
        RayDirectTransportError: it failed or was aborted, and touches its memory no more."""
        assert isinstance(fetch_request, LinkspanFetchRequest)
        obj_id, transfer = fetch_request.obj_id, fetch_request.transfer
        if transfer is None:
            return fetch_request.tensors
        failure: Error | None = None
        try:
            transfer.wait(None if timeout < 0 else timeout)
        except Error as error:
            failure = error
        except TimeoutError:
            raise TimeoutError(
                f"object {obj_id} has not arrived within {timeout} s: wait again, or drop the"
                " request, which cancels it"
            ) from None
        self._end(fetch_request, _RELEASE_S)
        if fetch_request.aborted:
            raise RayDirectTransportError(f"the read of object {obj_id} was aborted")
        if failure is not None:
            raise _failure(obj_id, failure) from failure
        return fetch_request.tensors

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: Sequence[Any] | None = None,
    ) -> list[Any]:
        return self.wait_fetch_complete(
            self.fetch_multiple_tensors(
                obj_id, tensor_transport_metadata, communicator_metadata, target_buffers
            )
        )

    def send_multiple_tensors(
        self,
        tensors: Sequence[Any],
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
    ) -> None:
        raise NotImplementedError(
            "LINKSPAN is one-sided: the receiver reads; call recv_multiple_tensors there"
        )

    def garbage_collect(
        self, obj_id: str, tensor_transport_meta: TensorTransportMetadata, tensors: Sequence[Any]
    ) -> None:
        """Ends all access of others to the object and drops it. What a stopped peer still copies
        after a second is kept, and dropped with a later object."""
        with self._publishing:
            published = self._published.pop(obj_id, None)
        if published is not None:
            with self._lock:
                self._leaving += [(each, None) for each in published.regions]
        self._sweep(_RELEASE_S)
        if self._leaving:
            _LOG.warning(
                "%d tensors of objects that Ray has collected are kept: a peer still copies them",
                len(self._leaving),
            )

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        """Cancels the reads of this object here; their waits raise. Where none is in flight, the
        next one fails, within Ray's deadline from now."""
        with self._lock:
            now = time.monotonic()
            self._aborted = {each: end for each, end in self._aborted.items() if end > now}
            fetches = [each for each in self._fetches if each.obj_id == obj_id]
            running = [each for each in fetches if not each.transfer.done()]
            if not running:
                self._aborted[obj_id] = now + _deadline()
        for request in running:
            request.aborted = True
            request.transfer.cancel()

    def _opened(self) -> Engine:
        with self._publishing:
            if self._engine is None:
                actor = ray.get_runtime_context().get_actor_id()
                engine = Engine(f"ray {actor or 'driver'} {os.getpid()}")
                engine.listen()
                if util.tcp_is_configured():
                    host = ray.util.get_node_ip_address()
                    engine.listen(f"tcp:[{host}]:0" if ":" in host else f"tcp:{host}:0")
                self._engine = engine
            return self._engine

    def _find(self, engine: Engine, descriptors: list[bytes]) -> tuple[Peer, list[RemoteRegion]]:
        """Connects, and imports the object's regions. DisconnectedError: its process has ended."""
        remote: list[RemoteRegion] = []
        for each in descriptors:
            descriptor = Descriptor.from_bytes(each)
            peer = self._peers.get(descriptor.address)
            if peer is not None and peer.state == "gone":  # lookup() would wait for another there
                raise DisconnectedError(f"{descriptor.engine} has ended", "peer", peer.id)
            peer, regions = engine.lookup(descriptor, _CONNECT_S)
            self._peers[descriptor.address] = peer
            remote += regions.regions
        return peer, remote

    def _end(self, request: LinkspanFetchRequest, timeout: float = 0.0) -> None:
        """Cancels what is in flight and lets go of its memory, later if that is not quiet within
        `timeout` seconds. __del__ calls it, on any thread."""
        regions, request.regions = request.regions, []
        if request.transfer is not None:
            request.transfer.cancel()
        self._invalidate([(each, None) for each in regions], timeout)

    def _sweep(self, timeout: float) -> None:
        """Tries again to let go of what was not quiet, all of it within `timeout` seconds."""
        with self._lock:
            leaving, self._leaving = self._leaving, []
        self._invalidate(leaving, timeout)

    def _invalidate(self, leaving: list[tuple[Region, Future | None]], timeout: float) -> None:
        """Ends their use by others, and frees those that are quiet within `timeout` seconds. The
        Engine keeps the memory of the others."""
        until = time.monotonic() + timeout
        for first in range(0, len(leaving), _CALLS):
            calls = [
                (region, call or self._engine.invalidate_async(region))
                for region, call in leaving[first : first + _CALLS]
            ]
            for region, call in calls:
                try:
                    call.wait(max(0.0, until - time.monotonic()))
                except (Error, TimeoutError) as error:  # that of Python: the call goes on
                    with self._lock:
                        self._leaving.append((region, None if isinstance(error, Error) else call))


def _opens() -> bool:
    from ray.experimental.rdt.util import get_tensor_transport_manager

    try:
        get_tensor_transport_manager(_NAME)._opened()
    except (Error, OSError, ValueError):
        _LOG.exception("LINKSPAN is not available in this actor")
        return False
    return True


def _deadline() -> float:
    """Returns Ray's limit of a fetch, in seconds."""
    text = os.environ.get("RAY_rdt_fetch_fail_timeout_milliseconds", "60000")
    try:
        return int(text) / 1000
    except ValueError:
        raise ValueError(
            f"RAY_rdt_fetch_fail_timeout_milliseconds={text!r}: give whole milliseconds"
        ) from None


def _failure(obj_id: str, error: Exception) -> RayDirectTransportError:
    return RayDirectTransportError(
        f"object {obj_id} was not read by LINKSPAN: {error}. Where its actor died or was restarted,"
        " make the object again; an actor on another host needs LINKSPAN_SECRET_FILE on both"
    )
