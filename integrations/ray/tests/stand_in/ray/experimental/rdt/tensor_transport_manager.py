from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, List, Optional


@dataclass
class CommunicatorMetadata:
    pass


@dataclass
class TensorTransportMetadata:
    tensor_meta: List[Any]
    tensor_device: Optional[str] = None


@dataclass
class FetchRequest:
    obj_id: str
    tensors: List[Any]


class TensorTransportManager(ABC):
    @abstractmethod
    def tensor_transport_backend(self): ...

    @staticmethod
    @abstractmethod
    def is_one_sided(): ...

    @staticmethod
    @abstractmethod
    def can_abort_transport(): ...

    @abstractmethod
    def actor_has_tensor_transport(self, actor): ...

    @abstractmethod
    def extract_tensor_transport_metadata(self, obj_id, rdt_object): ...

    @abstractmethod
    def get_communicator_metadata(self, src_actor, dst_actor, backend=None): ...

    @abstractmethod
    def recv_multiple_tensors(
        self, obj_id, tensor_transport_metadata, communicator_metadata, target_buffers=None
    ): ...

    def fetch_multiple_tensors(
        self, obj_id, tensor_transport_metadata, communicator_metadata, target_buffers=None
    ): ...

    def wait_fetch_complete(self, fetch_request, timeout=-1): ...

    @abstractmethod
    def send_multiple_tensors(
        self, tensors, tensor_transport_metadata, communicator_metadata
    ): ...

    @abstractmethod
    def garbage_collect(self, obj_id, tensor_transport_meta, tensors): ...

    @abstractmethod
    def abort_transport(self, obj_id, communicator_metadata): ...
