"""Finds the memory of an object: address, shape, device and owner.

Threads: any thread.
"""

from __future__ import annotations

import math
import re
import sys
from typing import Any, NamedTuple

from . import _core

_KINDS = (
    "a tensor, an array, an object with __cuda_array_interface__, __dlpack__ or the buffer"
    " protocol, or (address, bytes)"
)
_TYPE = re.compile(r"[<>|=]?([a-zA-Z])(\d+)")  # of __array_interface__: byte order, kind, size
_DLPACK_CPU, _DLPACK_CUDA, _DLPACK_PINNED, _DLPACK_MANAGED = 1, 2, 3, 13


class View(NamedTuple):
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes
    itemsize: int
    device: int  # ordinal of the CUDA runtime; -1: none, or unknown
    read_only: bool
    owner: Any  # the object that owns the memory

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    @property
    def contiguous(self) -> bool:
        return not self.levels()

    @property
    def dense(self) -> bool:
        """True if there are no gaps, in any order of the dimensions."""
        by_step = sorted(zip(self.strides, self.shape), reverse=True)
        strides, shape = tuple(zip(*by_step)) if by_step else ((), ())
        return self._replace(shape=shape, strides=strides).contiguous

    def levels(self) -> list[tuple[int, int]]:
        """Returns (count, step in bytes) of the levels that are not contiguous, outermost first."""
        if 0 in self.shape:
            return []
        levels: list[tuple[int, int]] = []
        run = self.itemsize
        for count, step in zip(reversed(self.shape), reversed(self.strides)):
            if count == 1:
                continue
            if not levels and step == run:
                run *= count
            elif levels and step == levels[0][0] * levels[0][1]:
                levels[0] = (levels[0][0] * count, levels[0][1])
            else:
                levels.insert(0, (count, step))
        return levels


def view(memory: Any) -> View:
    """TypeError: it has no memory that can be named. ValueError: it is of a strange kind."""
    torch = sys.modules.get("torch")  # without it loaded no object is one of its tensors
    if torch is not None and isinstance(memory, getattr(torch, "Tensor", ())):
        return _tensor(torch, memory)
    if (interface := getattr(memory, "__cuda_array_interface__", None)) is not None:
        device = memory.__dlpack_device__()[1] if hasattr(memory, "__dlpack_device__") else -1
        return _array_interface(interface, memory, int(device))
    if isinstance(memory, tuple) and len(memory) == 2:
        address, size = memory
        if not (isinstance(address, int) and isinstance(size, int)) or not (
            0 < address < 1 << 64 and 0 <= size < 1 << 64
        ):
            raise ValueError(f"{memory!r} is no (address, bytes): whole numbers, the first not 0")
        return View(address, (size,), (1,), 1, -1, False, memory)
    _refuse_objects(memory)
    try:
        buffer = memoryview(memory)  # as long as it lives, a bytearray keeps its place
    except (TypeError, ValueError, BufferError) as error:
        # The buffer protocol has no name for datetime64, bfloat16 and other types of numpy.
        interface = getattr(memory, "__array_interface__", None)
        if interface is not None and isinstance(interface.get("data"), tuple):
            return _array_interface(interface, memory, -1)
        if hasattr(memory, "__dlpack__"):
            return _dlpack(memory)
        raise TypeError(f"{type(memory).__name__} is no memory ({error}): give {_KINDS}") from None
    if "O" in re.sub(":[^:]*:", "", buffer.format):  # without the names of fields
        raise _objects(memory)
    address = _core.address_of(buffer)
    shape, strides = buffer.shape or (), buffer.strides or ()
    return View(address, shape, strides, buffer.itemsize, -1, buffer.readonly, buffer)


def whole(
    memory: Any, is_written: bool = False, any_order: bool = False
) -> tuple[int, int, int, bool, Any]:
    """(address, bytes, device, read-only, what it belongs to) of memory without gaps."""
    of = view(memory)
    if is_written and of.read_only:
        raise ValueError(
            f"{type(memory).__name__} is read-only and cannot be received into: give memory that"
            " may be written"
        )
    if not (of.dense if any_order else of.contiguous):
        raise ValueError(
            f"shape {of.shape} with strides {of.strides} in bytes is not contiguous: give"
            " .contiguous(), or register what it is a view of and pass"
            " linkspan.util.packed(region, view) as shape"
        )
    return of.address, of.bytes, of.device, of.read_only, of.owner


def gpu_indices(value: Any, what: str) -> tuple[int, int] | None:
    """(address, count) of page indices on a GPU; None: they are not on one."""
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        if not hasattr(value, "__dlpack_device__") or value.__dlpack_device__()[0] != _DLPACK_CUDA:
            return None
        raise ValueError(f"{what} is on a GPU without __cuda_array_interface__: give a tensor")
    if interface["typestr"][1:] not in ("i4", "u4"):
        raise ValueError(
            f"{what} is on a GPU, where indices have 32 bits, and is {interface['typestr']}: give"
            f" {what}.to(torch.int32)"
        )
    of = view(value)
    if len(of.shape) != 1 or not of.contiguous:
        raise ValueError(f"{what} is on a GPU: give one dimension without gaps")
    return of.address, of.shape[0]


def _tensor(torch: Any, tensor: Any) -> View:
    if tensor.layout is not torch.strided:
        raise ValueError(f"a tensor of layout {tensor.layout}: give its dense form, .to_dense()")
    if tensor.device.type not in ("cuda", "cpu"):
        raise ValueError(f"a tensor on {tensor.device}: give one on a GPU or the CPU")
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            "the tensor's memory is not what it reads as (a conjugated or negated view): give"
            " .resolve_conj().resolve_neg()"
        )
    item = tensor.element_size()
    return View(
        tensor.data_ptr(),
        tuple(tensor.shape),
        tuple(step * item for step in tensor.stride()),
        item,
        tensor.device.index if tensor.is_cuda else -1,
        False,
        (tensor, tensor.untyped_storage()),  # `tensor.data = other` gives the tensor another storage
    )


def _objects(owner: Any) -> ValueError:
    return ValueError(
        f"{type(owner).__name__} holds Python objects: its memory is pointers, which mean nothing to"
        " a peer; give an array of numbers or bytes, or pickle it"
    )


def _refuse_objects(memory: Any) -> None:
    """ValueError: an array of Python objects, or of structures with such a field."""
    interface = getattr(memory, "__array_interface__", None)
    typestr = interface.get("typestr", "") if isinstance(interface, dict) else ""
    if typestr[1:2] == "O" or getattr(getattr(memory, "dtype", None), "hasobject", False):
        raise _objects(memory)


def _array_interface(interface: dict[str, Any], owner: Any, device: int) -> View:
    shape = tuple(interface["shape"])
    address, read_only = interface["data"]
    if interface.get("mask") is not None:
        raise ValueError(f"{type(owner).__name__} has a mask: give its data without one")
    kind = _TYPE.match(interface["typestr"])
    if kind is None:
        raise ValueError(
            f"{type(owner).__name__} has elements of type {interface['typestr']!r}: give a type with"
            " a size, or its bytes"
        )
    item = int(kind[2]) * (4 if kind[1] == "U" else 1)  # of text the size counts characters
    strides = interface.get("strides")
    if strides is None:
        strides = _dense(shape, item)
    return View(int(address or 0), shape, tuple(strides), item, device, bool(read_only), owner)


def _dlpack(owner: Any) -> View:
    address, shape, strides, item, kind, device, read_only, held = _core.dlpack_view(owner)
    if kind not in (_DLPACK_CPU, _DLPACK_CUDA, _DLPACK_PINNED, _DLPACK_MANAGED):
        raise ValueError(f"{type(owner).__name__} is on DLPack's device type {kind}: give memory of"
                         " CUDA or of the CPU")
    on_gpu = device if kind == _DLPACK_CUDA else -1
    return View(address, tuple(shape), tuple(strides), item, on_gpu, read_only, held)


def _dense(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    steps: list[int] = []
    for count in reversed(shape):
        steps.insert(0, item)
        item *= count
    return tuple(steps)
