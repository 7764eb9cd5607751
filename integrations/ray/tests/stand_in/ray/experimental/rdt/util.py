from typing import List

from .tensor_transport_manager import TensorTransportManager

registered: dict = {}
managers: dict = {}


def register_tensor_transport(
    transport_name: str,
    devices: List[str],
    transport_manager_class: type,
    data_type: type,
) -> None:
    if transport_name in registered:
        raise ValueError(f"Transport {transport_name} already registered.")
    assert issubclass(transport_manager_class, TensorTransportManager)
    registered[transport_name] = (transport_manager_class, devices, data_type)


def get_tensor_transport_manager(transport_name: str) -> TensorTransportManager:
    if transport_name not in managers:
        managers[transport_name] = registered[transport_name][0]()
    return managers[transport_name]
