"""Endpoint, by the names of uccl.p2p: send_ipc() and recv_ipc() between processes of one host.

The bytes are moved by linkspan, and its lines in the log are linkspan's too (UCCL_P2P_LOG_LEVEL).
The logger "uccl.p2p" reports why a call returned False, to stderr unless the program configures it.
p2p/README.md lists the names that are here, and what replaces the others.
"""

from __future__ import annotations

import logging
import pathlib
import socket
import struct
import sys

_BUILD = pathlib.Path(__file__).resolve().parents[2] / "out" / "release" / "python"

try:
    import linkspan
    from linkspan.compat import ipc
except ModuleNotFoundError as error:
    if error.name != "linkspan":
        raise
    sys.path.append(str(_BUILD))
    try:
        import linkspan
        from linkspan.compat import ipc
    except ImportError as of_the_build:
        sys.path.remove(str(_BUILD))
        raise ImportError(
            f"the package linkspan is neither installed nor in {_BUILD} ({of_the_build}): run"
            f" ./dev build in {_BUILD.parents[2]}, or pip install it from there; this Python is"
            f" {sys.version_info[0]}.{sys.version_info[1]}"
        ) from None

_log = logging.getLogger("uccl.p2p")
_NAME = "uccl-gpu-"  # below linkspan's socket_dir, which belongs to one user
_METADATA = struct.Struct("!4sH")  # IPv4 address and port, and then the index
_INDEX = struct.Struct("=i")


class Endpoint:
    """A process of this host that others connect to by a unique index.

    local_gpu_idx: that index, by convention its GPU; linkspan detects the GPU of each pointer.
    num_cpus: threads that copy between host memories.
    RuntimeError: another Endpoint of this user has the index.

    A pointer is an int, of any memory of this process; it need not be registered, and must stay
    until the call has returned, or poll_async() has said done. False is every failure but a wrong
    argument (ValueError, TypeError); nothing waits for ever.
    Threads: any thread.
    """

    def __init__(self, local_gpu_idx: int, num_cpus: int = 4) -> None:
        if not isinstance(local_gpu_idx, int) or local_gpu_idx < 0:
            raise ValueError(f"local_gpu_idx={local_gpu_idx!r}: give a whole number from 0 on")
        self._index = local_gpu_idx
        self._engine = linkspan.Engine(f"{_NAME}{local_gpu_idx}", cpu_threads=num_cpus)
        self._transfers: dict[int, linkspan.Transfer] = {}
        try:
            self._engine.listen(f"{_NAME}{local_gpu_idx}")
        except linkspan.BusyError as error:
            raise RuntimeError(
                f"GPU index {local_gpu_idx} is taken: {error}. Each Endpoint of a host needs its"
                " own; another job of yours needs its own LINKSPAN_SOCKET_DIR"
            ) from error

    def connect_local(self, remote_gpu_idx: int, timeout: float = 60.0) -> tuple[bool, int]:
        """Connects to the Endpoint of that index, waiting until it exists: (ok, conn_id)."""
        try:
            peer = self._engine.connect(f"{_NAME}{remote_gpu_idx}", timeout)
        except linkspan.Error as error:
            _log.error("[connect_local] remote_gpu_idx=%s: %s", remote_gpu_idx, error)
            return False, 0
        return True, peer.id

    def accept_local(self, timeout: float = 60.0) -> tuple[bool, int, int]:
        """Accepts the next peer: (ok, remote_gpu_idx, conn_id); index -1: not an Endpoint."""
        try:
            peer = self._engine.accept(timeout)
        except linkspan.Error as error:
            _log.error("[accept_local] %s", error)
            return False, -1, 0
        index = peer.name.removeprefix(_NAME)
        return True, int(index) if index.isdecimal() else -1, peer.id

    def send_ipc(self, conn_id: int, ptr: int, size: int) -> bool:
        """Sends to the matching recv_ipc(): the n-th send of a connection goes to its n-th
        receive, in any order of time. False on both sides, with nothing written: the receiver has
        less room."""
        try:
            ipc.send_ipc(self._engine, conn_id, (ptr, size))
        except linkspan.Error as error:
            _log.error("[send_ipc] conn_id=%s size=%s: %s", conn_id, size, error)
            return False
        return True

    def recv_ipc(self, conn_id: int, ptr: int, size: int) -> bool:
        """Receives at most size bytes; a shorter message leaves the rest unchanged."""
        try:
            ipc.recv_ipc(self._engine, conn_id, (ptr, size))
        except linkspan.Error as error:
            _log.error("[recv_ipc] conn_id=%s size=%s: %s", conn_id, size, error)
            return False
        return True

    def send_ipc_async(self, conn_id: int, ptr: int, size: int) -> tuple[bool, int]:
        """(ok, transfer_id) for poll_async()."""
        try:
            return True, self._keep(ipc.send_ipc_async(self._engine, conn_id, (ptr, size)))
        except linkspan.Error as error:
            _log.error("[send_ipc_async] conn_id=%s size=%s: %s", conn_id, size, error)
            return False, 0

    def recv_ipc_async(self, conn_id: int, ptr: int, size: int) -> tuple[bool, int]:
        """(ok, transfer_id) for poll_async()."""
        try:
            return True, self._keep(ipc.recv_ipc_async(self._engine, conn_id, (ptr, size)))
        except linkspan.Error as error:
            _log.error("[recv_ipc_async] conn_id=%s size=%s: %s", conn_id, size, error)
            return False, 0

    def poll_async(self, transfer_id: int) -> tuple[bool, bool]:
        """(ok, done). A transfer that has failed is (False, True); its id is unknown from the first
        poll on that said done, and an unknown one is (False, True) too: no loop waits for ever."""
        transfer = self._transfers.get(transfer_id)
        if transfer is None:
            _log.error("[poll_async] no such transfer_id: %s", transfer_id)
            return False, True
        if not transfer.done():
            return True, False
        self._transfers.pop(transfer_id, None)
        try:
            transfer.wait()
        except linkspan.Error as error:
            _log.error("[poll_async] transfer_id=%s: %s", transfer_id, error)
            return False, True
        return True, True

    def get_metadata(self) -> bytes:
        """Returns the bytes from which parse_metadata() of another process reads this index."""
        return _METADATA.pack(socket.inet_aton("127.0.0.1"), 0) + _INDEX.pack(self._index)

    @staticmethod
    def parse_metadata(metadata: bytes) -> tuple[str, int, int]:
        """Returns (ip, port, gpu_idx); only the index matters on one host."""
        address, port = _METADATA.unpack_from(metadata)
        return socket.inet_ntoa(address), port, _INDEX.unpack_from(metadata, _METADATA.size)[0]

    def _keep(self, transfer: linkspan.Transfer) -> int:
        self._transfers[transfer.id] = transfer
        return transfer.id

    def __repr__(self) -> str:
        return f"<Endpoint of GPU index {self._index}, over linkspan>"
