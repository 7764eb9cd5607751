"""GPU memory out of DLPack capsules, of both kinds: "dltensor" and "dltensor_versioned".

A capsule is consumed: its name changes, so nobody takes it again, and its deleter is called when
the Tensor that was made of it is gone.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

CUDA = 2  # kDLCUDA; pinned (3) and managed (13) memory are not what a handle is made of
LEGACY_STREAM = 1  # as DLPack counts streams of CUDA
_READ_ONLY = 1
_MAX_MAJOR = 1

_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


# The names stay where they are for ever: a capsule keeps the pointer it is given.
_KINDS = {b"dltensor": _Managed, b"dltensor_versioned": _ManagedVersioned}
_USED = {name: ctypes.create_string_buffer(b"used_" + name) for name in _KINDS}

_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.restype, _set_name.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_void_p]


def is_capsule(value: object) -> bool:
    return type(value).__name__ == "PyCapsule"


def dense(shape: list[int], strides: list[int]) -> bool:
    """Whether elements lie one behind the other, the last index fastest. Strides in elements."""
    if 0 in shape:
        return True
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def _delete(managed: Any, address: int) -> None:
    if managed.deleter:
        _DELETER(managed.deleter)(address)


class Tensor:
    """What a consumed capsule held; owns it. Raises ValueError for what a copy cannot take."""

    def __init__(self, capsule: object, side: str) -> None:
        name = next((name for name in _KINDS if _is_valid(capsule, name)), None)
        if name is None:
            raise ValueError(
                f"{side}={capsule!r} is no DLPack capsule, or one that was consumed; a capsule"
                " can be used once: ask its producer for another, or pass the producer"
            )
        address = _get_pointer(capsule, name)
        managed = _KINDS[name].from_address(address)
        _set_name(capsule, ctypes.addressof(_USED[name]))
        # Not at exit: a transfer may still run then, and memory goes with the process.
        weakref.finalize(self, _delete, managed, address).atexit = False
        if name == b"dltensor_versioned" and managed.major > _MAX_MAJOR:
            raise ValueError(
                f"{side} is DLPack of version {managed.major}.{managed.minor}; this engine knows"
                f" up to {_MAX_MAJOR}: ask the producer for max_version=({_MAX_MAJOR}, 0)"
            )
        self.read_only = bool(getattr(managed, "flags", 0) & _READ_ONLY)
        tensor = managed.tensor
        if tensor.device.type != CUDA:
            raise ValueError(
                f"{side} is DLPack of device type {tensor.device.type}; only memory of CUDA"
                f" devices (type {CUDA}) can be copied: move it to a GPU first"
            )
        shape = list(tensor.shape[: tensor.ndim]) if tensor.ndim else []
        if tensor.strides and not dense(shape, list(tensor.strides[: tensor.ndim])):
            raise ValueError(f"{side} is not contiguous: copy it into a contiguous array first")
        elements = 1
        for length in shape:
            elements *= length
        self.gpu = tensor.device.id
        self.pointer = (tensor.data or 0) + tensor.byte_offset
        self.bytes = (elements * tensor.bits * tensor.lanes + 7) // 8


def take(producer: Any, stream: int, side: str) -> Tensor:
    """Of an object with __dlpack__; what it has queued comes before later work of `stream`."""
    kind, _ = producer.__dlpack_device__()
    if kind != CUDA:  # before a capsule is asked for: its stream would mean nothing there
        raise ValueError(
            f"{side}={type(producer).__name__} is on DLPack device type {int(kind)}; only memory of"
            f" CUDA devices (type {CUDA}) can be copied: move it to a GPU first"
        )
    try:
        capsule = producer.__dlpack__(stream=stream or LEGACY_STREAM, max_version=(_MAX_MAJOR, 0))
    except TypeError:  # from before max_version
        capsule = producer.__dlpack__(stream=stream or LEGACY_STREAM)
    return Tensor(capsule, side)
