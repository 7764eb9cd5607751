"""UCX by its C library: RMA of registered memory, and tagged messages for the ping-pong.

Python calls libucp itself, so each put has the cost of a ctypes call or two, about 0.5 us.
"""

from __future__ import annotations

import ctypes
import pathlib
import sys
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_int,
    c_size_t,
    c_uint,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

from side import Failed, Move, Side, rally, timed, until

import memory

TAG, RMA = 1 << 0, 1 << 1  # ucp_feature
ADDRESS, LENGTH = 1 << 0, 1 << 1  # ucp_mem_map_params_field; ADDRESS also of ucp_ep_params_field
MEMORY_TYPE = 1 << 6  # ucp_op_attr_t
HOST, CUDA = 0, 1  # ucs_memory_type_t
IN_PROGRESS, LAST_ERROR = 1, -100  # ucs_status_t
ANY_TAG = (1 << 64) - 1


class ContextParameters(ctypes.Structure):
    """ucp_params_t: what field_mask does not name is not read."""

    _fields_ = [("field_mask", c_uint64), ("features", c_uint64), ("rest", c_uint64 * 16)]


class MapParameters(ctypes.Structure):
    """ucp_mem_map_params_t."""

    _fields_ = [
        ("field_mask", c_uint64),
        ("address", c_void_p),
        ("length", c_size_t),
        ("rest", c_uint64 * 8),
    ]


class EndpointParameters(ctypes.Structure):
    """ucp_ep_params_t."""

    _fields_ = [("field_mask", c_uint64), ("address", c_char_p), ("rest", c_uint64 * 24)]


class RequestParameters(ctypes.Structure):
    """ucp_request_param_t, of bytes without a gap."""

    _fields_ = [
        ("op_attr_mask", c_uint32),
        ("flags", c_uint32),
        ("not_read", c_uint64 * 5),
        ("memory_type", c_int),
        ("rest", c_uint64 * 18),
    ]


def library() -> ctypes.CDLL:
    for folder in sys.path:
        if (lib := pathlib.Path(folder) / "libucx/lib").is_dir():
            return ctypes.CDLL(str(lib / "libucp.so.0"), ctypes.RTLD_GLOBAL)
    raise Failed("no libucx: run.py --fetch, then --wheels")


def declare(ucp: ctypes.CDLL) -> None:
    pointer = POINTER(c_void_p)
    for name, result, *arguments in (
        ("ucp_init_version", c_int, c_uint, c_uint, c_void_p, c_void_p, pointer),
        ("ucp_worker_create", c_int, c_void_p, c_void_p, pointer),
        ("ucp_worker_get_address", c_int, c_void_p, pointer, POINTER(c_size_t)),
        ("ucp_ep_create", c_int, c_void_p, c_void_p, pointer),
        ("ucp_mem_map", c_int, c_void_p, c_void_p, pointer),
        ("ucp_mem_unmap", c_int, c_void_p, c_void_p),
        ("ucp_rkey_pack", c_int, c_void_p, c_void_p, pointer, POINTER(c_size_t)),
        ("ucp_rkey_buffer_release", None, c_void_p),
        ("ucp_ep_rkey_unpack", c_int, c_void_p, c_char_p, pointer),
        ("ucp_rkey_destroy", None, c_void_p),
        ("ucp_put_nbx", c_void_p, c_void_p, c_void_p, c_size_t, c_uint64, c_void_p, c_void_p),
        ("ucp_get_nbx", c_void_p, c_void_p, c_void_p, c_size_t, c_uint64, c_void_p, c_void_p),
        ("ucp_ep_flush_nbx", c_void_p, c_void_p, c_void_p),
        ("ucp_tag_send_nbx", c_void_p, c_void_p, c_void_p, c_size_t, c_uint64, c_void_p),
        ("ucp_tag_recv_nbx", c_void_p, c_void_p, c_void_p, c_size_t, c_uint64, c_uint64, c_void_p),
        ("ucp_request_check_status", c_int, c_void_p),
        ("ucp_request_free", None, c_void_p),
        ("ucp_worker_progress", c_uint, c_void_p),
        ("ucp_get_version_string", c_char_p),
        ("ucs_status_string", c_char_p, c_int),
    ):
        function = getattr(ucp, name)
        function.restype, function.argtypes = result, arguments


def of_kind(near: memory.Memory) -> Any:
    """Says where the local memory is, which UCX would look up for each call."""
    return byref(
        RequestParameters(op_attr_mask=MEMORY_TYPE, memory_type=CUDA if near.gpu >= 0 else HOST)
    )


class UcxSide(Side):
    needs_progress = True

    def __init__(self, role: str) -> None:
        super().__init__(role)
        self.ucp = library()
        declare(self.ucp)
        self.none = byref(RequestParameters())
        self.context, self.worker, self.endpoint = c_void_p(), c_void_p(), c_void_p()
        parameters = ContextParameters(field_mask=1, features=TAG | RMA)
        self.check(
            self.ucp.ucp_init_version(1, 22, byref(parameters), None, byref(self.context)),
            "ucp_init",
        )
        self.check(
            self.ucp.ucp_worker_create(
                self.context, byref(EndpointParameters()), byref(self.worker)
            ),
            "ucp_worker_create",
        )
        self.mapped: list[c_void_p] = []
        self.far: list[tuple[int, c_void_p]] = []

    def check(self, status: int, call: str) -> None:
        if status < 0:
            raise Failed(f"{call}: {self.ucp.ucs_status_string(status).decode()}")

    def version(self) -> str:
        return self.ucp.ucp_get_version_string().decode()

    def offer(self, memories: list[memory.Memory]) -> Any:
        address, size = c_void_p(), c_size_t()
        self.check(
            self.ucp.ucp_worker_get_address(self.worker, byref(address), byref(size)),
            "ucp_worker_get_address",
        )
        keys = []
        for each in memories:
            handle, key, bytes_ = c_void_p(), c_void_p(), c_size_t()
            parameters = MapParameters(ADDRESS | LENGTH, each.address, each.bytes)
            self.check(
                self.ucp.ucp_mem_map(self.context, byref(parameters), byref(handle)), "ucp_mem_map"
            )
            self.mapped.append(handle)
            self.check(
                self.ucp.ucp_rkey_pack(self.context, handle, byref(key), byref(bytes_)),
                "ucp_rkey_pack",
            )
            keys.append((each.address, ctypes.string_at(key.value, bytes_.value)))
            self.ucp.ucp_rkey_buffer_release(key)
        return ctypes.string_at(address.value, size.value), keys

    def accept(self, offer: Any) -> None:
        address, keys = offer
        if not self.endpoint:
            parameters = EndpointParameters(ADDRESS, address)
            self.check(
                self.ucp.ucp_ep_create(self.worker, byref(parameters), byref(self.endpoint)),
                "ucp_ep_create",
            )
        for far, packed in keys:
            key = c_void_p()
            self.check(
                self.ucp.ucp_ep_rkey_unpack(self.endpoint, packed, byref(key)), "ucp_ep_rkey_unpack"
            )
            self.far.append((far, key))

    def finish(self, request: int | None, call: str) -> None:
        """Waits for what a call that ends in _nbx returned: nothing, an error, or a request."""
        if request is None:
            return
        if request >= (1 << 64) + LAST_ERROR:
            self.check(request - (1 << 64), call)
        ucp, worker = self.ucp, self.worker

        def ended() -> bool:
            ucp.ucp_worker_progress(worker)
            return ucp.ucp_request_check_status(request) != IN_PROGRESS

        try:
            until(ended, call)
            self.check(ucp.ucp_request_check_status(request), call)
        finally:
            ucp.ucp_request_free(request)

    def mover(self, row: Any, memories: list[memory.Memory]) -> Move:
        call = self.ucp.ucp_put_nbx if row.op == "write" else self.ucp.ucp_get_nbx
        verb = "put" if row.op == "write" else "get"
        self.how = f"ucp_{verb}_nbx, ucp_ep_flush_nbx, by ctypes"
        pairs = row.indices() if row.pages else [(range(row.in_flight), range(row.in_flight))]
        pieces = [
            (each.address + a * row.bytes, far + b * row.bytes, key)
            for each, (far, key), (mine, theirs) in zip(memories, self.far, pairs)
            for a, b in zip(mine, theirs)
        ]
        endpoint, size, none, flush = self.endpoint, row.bytes, self.none, self.ucp.ucp_ep_flush_nbx
        how = of_kind(memories[0])

        def once() -> None:
            requests = [call(endpoint, near, size, far, key, how) for near, far, key in pieces]
            self.finish(flush(endpoint, none), "ucp_ep_flush_nbx")
            for request in requests:
                if request is not None:
                    self.finish(request, "ucp_put_nbx or ucp_get_nbx")

        return timed(once)

    def player(self, row: Any, memories: list[memory.Memory]) -> Move:
        self.how = "ucp_tag_send_nbx, ucp_tag_recv_nbx, by ctypes"
        near, size, how = memories[0].address, row.bytes, of_kind(memories[0])

        def post() -> None:
            self.finish(
                self.ucp.ucp_tag_send_nbx(self.endpoint, near, size, 1, how), "ucp_tag_send_nbx"
            )

        def hear() -> None:
            self.finish(
                self.ucp.ucp_tag_recv_nbx(self.worker, near, size, 1, ANY_TAG, how),
                "ucp_tag_recv_nbx",
            )

        return rally(self.role, post, hear)

    def progress(self) -> None:
        self.ucp.ucp_worker_progress(self.worker)

    def release(self) -> None:
        for _, key in self.far:
            self.ucp.ucp_rkey_destroy(key)
        for handle in self.mapped:
            self.ucp.ucp_mem_unmap(self.context, handle)
        self.mapped, self.far = [], []


create = UcxSide
