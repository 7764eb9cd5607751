"""What an object's memory is: where it begins, how long it is, on which GPU.

Threads: any thread.
"""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple, Optional

from . import _dlpack

HANDLE_BYTES = 64
_KINDS = (
    "an int, a torch tensor, an object with __cuda_array_interface__ or __dlpack__, or None with"
    " a handle"
)


class Memory(NamedTuple):
    pointer: int = 0
    bytes: Optional[int] = None  # None: the object does not say
    gpu: Optional[int] = None  # None: the object does not say
    stream: int = 0  # in which the object's contents are made; 0: it does not say
    keep: Any = None  # what holds the memory until the copy is over
    tensor: Any = None  # if it is torch's


def describe(value: Any, side: str, stream: int = 0) -> Memory:
    """side: "source" or "target". stream: which the caller gave. TypeError, ValueError: refused."""
    if value is None:
        return Memory()
    torch = sys.modules.get("torch")  # without it loaded no object is one of its tensors
    if isinstance(value, getattr(torch, "Tensor", ())):
        return _tensor(torch, value, side)
    if (interface := getattr(value, "__cuda_array_interface__", None)) is not None:
        return _array_interface(interface, value, side)
    if _dlpack.is_capsule(value):
        return _of_dlpack(_dlpack.Tensor(value, side), None, side)
    if hasattr(value, "__dlpack__"):
        return _of_dlpack(_dlpack.take(value, stream, side), value, side)
    return Memory(pointer=pointer(value, side), keep=value)


def pointer(value: Any, side: str) -> int:
    # cuda-python's CUdeviceptr knows int() only.
    of_cuda_python = type(value).__module__.split(".")[0] == "cuda" and hasattr(value, "__int__")
    if isinstance(value, bool) or not (hasattr(value, "__index__") or of_cuda_python):
        raise TypeError(f"{side} is {type(value).__name__}; pass {_KINDS}")
    address = int(value)
    if not 0 <= address < 1 << 64:
        raise ValueError(f"{side}={address:#x} is no address of GPU memory; pass {_KINDS}")
    return address


def _tensor(torch: Any, tensor: Any, side: str) -> Memory:
    if not tensor.is_cuda:
        raise ValueError(
            f"{side} is a tensor on {tensor.device}; only GPU memory can be copied:"
            f" pass {side}.cuda()"
        )
    if tensor.layout is not torch.strided:
        raise ValueError(f"{side} has layout {tensor.layout}; pass its dense form, .to_dense()")
    if not tensor.is_contiguous():
        raise ValueError(f"{side} is not contiguous: pass {side}.contiguous()")
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            f"{side}'s memory is not what it reads as (a conjugated or negated view): pass"
            f" {side}.resolve_conj().resolve_neg()"
        )
    return Memory(
        tensor.data_ptr(),
        tensor.numel() * tensor.element_size(),
        tensor.device.index,
        torch.cuda.current_stream(tensor.device).cuda_stream,
        keep=tensor,
        tensor=tensor,
    )


def _array_interface(interface: dict[str, Any], owner: Any, side: str) -> Memory:
    shape = list(interface["shape"])
    address, read_only = interface["data"]
    if side == "target" and read_only:
        raise ValueError("target is read-only: pass memory that may be written")
    if interface.get("mask") is not None:
        raise ValueError(f"{side} has a mask; pass its data without one")
    item = int(interface["typestr"][2:])
    strides = interface.get("strides")  # bytes
    if strides is not None and not _dlpack.dense([*shape, item], [*strides, 1]):
        raise ValueError(f"{side} is not contiguous: copy it into a contiguous array first")
    # Streams as DLPack counts them: 1 is the legacy default stream, which is null here.
    stream = interface.get("stream") or 0
    return Memory(
        int(address or 0),
        math.prod(shape) * item,
        _gpu_of(owner),
        0 if stream == _dlpack.LEGACY_STREAM else stream,
        keep=owner,
    )


def _gpu_of(owner: Any) -> int | None:
    """Beside __cuda_array_interface__, which does not say it: DLPack's, CuPy's or Numba's word."""
    if hasattr(owner, "__dlpack_device__"):
        return int(owner.__dlpack_device__()[1])
    for of in (getattr(owner, "device", None), getattr(owner, "context", None)):
        of = getattr(of, "device", of)
        for number in (of, getattr(of, "id", None), getattr(of, "index", None)):
            if isinstance(number, int):
                return number
    return None


def _of_dlpack(tensor: _dlpack.Tensor, owner: Any, side: str) -> Memory:
    if side == "target" and tensor.read_only:
        raise ValueError("target is read-only: pass memory that may be written")
    return Memory(tensor.pointer, tensor.bytes, tensor.gpu, keep=(tensor, owner))


def handle_bytes(handle: Any, name: str) -> bytes | None:
    """Of bytes, or of an object with .reserved as cuda-python's and ctypes' have it."""
    if handle is None:
        return None
    raw = getattr(handle, "reserved", handle)
    if isinstance(raw, (int, str)):
        raise TypeError(
            f"{name} is {type(handle).__name__}; pass bytes, or an object with .reserved"
        )
    data = bytes(raw)
    if not 1 <= len(data) <= HANDLE_BYTES:
        raise ValueError(
            f"{name} has {len(data)} bytes; a CUDA IPC handle has 1 to {HANDLE_BYTES} (torch puts"
            f" two of its own before them: pass handle[-{HANDLE_BYTES}:])"
        )
    return data


def stream_number(stream: Any) -> int | None:
    """The cudaStream_t of an int or of torch's, CuPy's or cuda-python's stream objects."""
    if stream is None:
        return None
    for name in ("cuda_stream", "ptr"):
        if isinstance(getattr(stream, name, None), int):
            return int(getattr(stream, name))
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    if isinstance(stream, (bool, float, str)) or not hasattr(stream, "__int__"):
        raise TypeError(
            f"stream is {type(stream).__name__}; pass an int, a stream object of torch, CuPy or"
            " cuda-python, or None"
        )
    number = int(stream)
    if not 0 <= number < 1 << 64:
        raise ValueError(f"stream={number} is no cudaStream_t")
    return number
