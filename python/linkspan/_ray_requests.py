"""What Ray carries for its transport: an object's metadata, to other processes, and a fetch.

Threads: the metadata is immutable once published; a request as linkspan.ray says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ray.experimental.rdt.tensor_transport_manager import FetchRequest, TensorTransportMetadata

from ._core import Region, Transfer

if TYPE_CHECKING:
    from .ray import LinkspanTransport


@dataclass
class LinkspanTransportMetadata(TensorTransportMetadata):
    """Adds where the tensors are: descriptors of sets, in order, without tensors of 0 bytes."""

    descriptors: list[bytes] = field(default_factory=list)

    __eq__ = object.__eq__
    __hash__ = object.__hash__


@dataclass
class LinkspanFetchRequest(FetchRequest):
    """A read in flight. Dropping it cancels the read; its memory lives until the read is quiet."""

    transfer: Transfer | None = None  # None: nothing moves
    transport: LinkspanTransport | None = None
    regions: list[Region] = field(default_factory=list)
    aborted: bool = False

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __del__(self) -> None:
        if self.transport is not None:
            self.transport._end(self)
