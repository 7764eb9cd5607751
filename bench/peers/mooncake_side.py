"""Mooncake's transfer engine by its Python API: NVLink between GPUs, else TCP, which is all that it
has between processes of a host without RDMA."""

from __future__ import annotations

import importlib.metadata
import os
from typing import Any

from side import Failed, Move, Side, timed

import memory


class MooncakeSide(Side):
    def __init__(self, role: str) -> None:
        super().__init__(role)
        from mooncake.engine import TransferEngine

        self.protocol = "nvlink_intra" if os.environ.get("MC_INTRANODE_NVLINK") else "tcp"
        self.how = f"batch_transfer_sync_write or _read, {self.protocol}"
        self.engine = TransferEngine()
        self.check(
            self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", self.protocol, ""), "initialize"
        )
        self.addresses: list[int] = []

    def check(self, result: int, call: str) -> None:
        if result != 0:
            raise Failed(f"{call} with {self.protocol} returned {result}")

    def version(self) -> str:
        for package in ("mooncake-transfer-engine-cuda13", "mooncake-transfer-engine"):
            try:
                return importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                pass
        return "unknown"

    def offer(self, memories: list[memory.Memory]) -> Any:
        for each in memories:
            self.check(self.engine.register_memory(each.address, each.bytes), "register_memory")
            self.addresses.append(each.address)
        return f"127.0.0.1:{self.engine.get_rpc_port()}", self.addresses

    def accept(self, offer: Any) -> None:
        self.session, self.far = offer

    def mover(self, row: Any, memories: list[memory.Memory]) -> Move:
        call = (
            self.engine.batch_transfer_sync_write
            if row.op == "write"
            else self.engine.batch_transfer_sync_read
        )
        pairs = row.indices() if row.pages else [(range(row.in_flight), range(row.in_flight))]
        near = [
            memory.address + at * row.bytes
            for memory, (mine, _) in zip(memories, pairs)
            for at in mine
        ]
        far = [
            address + at * row.bytes
            for address, (_, theirs) in zip(self.far, pairs)
            for at in theirs
        ]
        lengths = [row.bytes] * len(near)

        def once() -> None:
            self.check(call(self.session, near, far, lengths), "batch_transfer_sync")

        return timed(once)

    def release(self) -> None:
        for address in self.addresses:
            self.engine.unregister_memory(address)
        self.addresses = []


create = MooncakeSide
