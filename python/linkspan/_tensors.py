"""What Ray's transport does with tensors of torch and arrays of numpy.

Threads: any thread.
"""

from __future__ import annotations

import sys
from typing import Any, Sequence

from . import _memory


def common_device(obj_id: str, tensors: Sequence[Any]) -> str | None:
    types = sorted({_device_type(each) for each in tensors})
    if len(types) > 1:
        raise ValueError(
            f"the tensors of object {obj_id} are on {' and '.join(types)}: return those of one"
            " device type"
        )
    return types[0] if types else None


def _device_type(tensor: Any) -> str:
    """Returns "cuda" or "cpu", where numpy before 2 has no device."""
    device = getattr(tensor, "device", "cpu")
    return getattr(device, "type", str(device))


def synchronize(tensors: Sequence[Any]) -> None:
    for device in {each.device for each in tensors if _device_type(each) == "cuda"}:
        sys.modules["torch"].cuda.synchronize(device)


def not_empty(tensors: Sequence[Any]) -> list[Any]:
    return [each for each in tensors if _memory.view(each).bytes]


def empty(shape: Any, dtype: Any, device: str | None) -> Any:
    torch = sys.modules.get("torch")  # unpickling its dtype has loaded it
    if torch is not None and isinstance(dtype, torch.dtype):
        return torch.empty(shape, dtype=dtype, device=device)
    import numpy

    return numpy.empty(shape, dtype)


def check_contiguous(obj_id: str, tensors: Sequence[Any]) -> None:
    for index, tensor in enumerate(tensors):
        if not _memory.view(tensor).contiguous:
            raise ValueError(
                f"tensor {index} of object {obj_id} is not contiguous: give .contiguous()"
            )


def check_buffers(obj_id: str, buffers: Sequence[Any], meta: Sequence[Any]) -> None:
    if len(buffers) != len(meta):
        raise ValueError(f"{len(buffers)} target buffers for the {len(meta)} of object {obj_id}")
    for index, (buffer, (shape, dtype)) in enumerate(zip(buffers, meta)):
        if tuple(buffer.shape) != tuple(shape) or buffer.dtype != dtype:
            raise ValueError(
                f"target buffer {index} of object {obj_id} is {tuple(buffer.shape)} of"
                f" {buffer.dtype}: give {tuple(shape)} of {dtype}"
            )
    check_contiguous(obj_id, buffers)


def copy(sources: Sequence[Any], targets: Sequence[Any]) -> None:
    for source, target in zip(sources, targets):
        if hasattr(target, "copy_"):
            target.copy_(source)
        else:
            target[...] = source
    synchronize(targets)
