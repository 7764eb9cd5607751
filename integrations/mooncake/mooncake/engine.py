"""TransferEngine, by the names of mooncake.engine: writes and reads between absolute addresses of
processes. The bytes are moved by linkspan, over NVLink, shared memory or TCP.

A failure is a return code: below 0, or what the method names. The logger "mooncake.engine" says
why, with the wrong value and the remedy; to stderr unless the program configures it.
README.md beside this package lists the names that are here and what differs.
"""

from __future__ import annotations

import ctypes
import enum
import itertools
import os
from collections.abc import Iterable, Sequence

try:
    import linkspan
except ModuleNotFoundError as error:
    if error.name != "linkspan":
        raise
    raise ImportError(
        "mooncake.engine here needs the package linkspan: pip install it, or put"
        " out/release/python of its repository on PYTHONPATH after ./dev build"
    ) from None

from ._failures import INVALID, TIMED_OUT, Failure, answers, log
from ._ranges import Registrations
from ._sessions import Listener, Sessions
from ._transfers import Started, Transfers, numbers, pack, same_lengths, unpack

_TIMEOUT_S, _LEAST_TIMEOUT_S = 30, 5


class TransferOpcode(enum.IntEnum):
    Read = READ = 0
    Write = WRITE = 1


Read, Write = TransferOpcode.Read, TransferOpcode.Write


class TransferNotify:
    """What a transfer tells the peer's get_notifies() after its data."""

    def __init__(self, name: str = "", msg: str = "") -> None:
        self.name, self.msg = name, msg

    def __repr__(self) -> str:
        return f"TransferNotify(name={self.name!r}, msg={self.msg!r})"


class TransferEngine:
    """Moves bytes between registered memory of this process and of others.

    A session is "host:port": what the other engine gave to initialize(), and its get_rpc_port().
    Addresses and lengths are whole numbers, in batches also arrays. Both ends of a transfer lie in
    registered memory, each block in one range; a block of 0 bytes moves nothing. A transfer ends
    after MC_TRANSFER_TIMEOUT (30 s, at least 5) and a second for each GB. `transport_hint` has no
    effect: the two memories decide the path.
    Threads: any thread, after initialize() has returned.
    """

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._batches: dict[int, Started] = {}  # by id
        self._next_batch = itertools.count(1)

    @answers()
    def initialize(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str
    ) -> int:
        """Opens the engine and listens. local_hostname: "host" or "host:port", where others find
        it. metadata_server: "P2PHANDSHAKE". protocol and device_name have no effect."""
        if self._listener is not None:
            raise Failure("initialize() was called before: make another TransferEngine")
        if metadata_server != "P2PHANDSHAKE":
            raise Failure(
                f'metadata_server "{metadata_server}": give "P2PHANDSHAKE", the only one that this'
                " package knows"
            )
        timeout = os.environ.get("MC_TRANSFER_TIMEOUT") or _TIMEOUT_S
        try:
            limit = max(_LEAST_TIMEOUT_S, int(timeout))
        except ValueError:
            raise Failure(f'MC_TRANSFER_TIMEOUT="{timeout}": give whole seconds') from None
        listener = Listener(local_hostname)
        self._registrations = Registrations(listener.engine)
        self._sessions = Sessions(listener)
        self._transfers = Transfers(self._registrations, self._sessions, limit)
        self._listener = listener
        return 0

    def initialize_ext(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str,
        metadata_type: str,
    ) -> int:  # fmt: skip
        """Does what initialize() does."""
        return self.initialize(local_hostname, metadata_server, protocol, device_name)

    @answers()
    def get_rpc_port(self) -> int:
        return self._ready().port

    @answers(lambda: None)
    def get_engine(self) -> linkspan.Engine | None:
        """Returns the linkspan.Engine, which a MooncakeDistributedStore cannot use."""
        return self._ready().engine

    # ---- memory ----------------------------------------------------------------------------------

    @answers()
    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Lets peers write and read a range. -7: it overlaps a registered one. `location` has no
        effect: linkspan detects the memory of a pointer."""
        self._ready()
        self._registrations.register([(int(buffer_addr), int(capacity))])
        return 0

    @answers()
    def unregister_memory(self, buffer_addr: int) -> int:
        """Ends a range: transfers on it fail, on both sides, and nothing touches its memory after
        0 was returned. -3: no range begins there. -4: a stopped peer may still; call again."""
        self._ready()
        self._registrations.unregister([int(buffer_addr)])
        return 0

    @answers()
    def batch_register_memory(
        self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*"
    ) -> int:
        """Registers all ranges or, if it fails, none."""
        self._ready()
        addresses = numbers(buffer_addresses, "buffer_addresses")
        sizes = numbers(capacities, "capacities")
        same_lengths(buffer_addresses=addresses, capacities=sizes)
        self._registrations.register(list(zip(addresses.tolist(), sizes.tolist())))
        return 0

    @answers()
    def batch_unregister_memory(self, buffer_addresses: Sequence[int]) -> int:
        """Ends all ranges that begin there or, if one is unknown, none."""
        self._ready()
        self._registrations.unregister(numbers(buffer_addresses, "buffer_addresses").tolist())
        return 0

    @answers(int)
    def allocate_managed_buffer(self, length: int) -> int:
        """Allocates registered host memory, zeroed. Returns its address. 0: it has failed."""
        self._ready()
        return self._registrations.allocate(length)

    @answers()
    def free_managed_buffer(self, buffer_addr: int, length: int) -> int:
        self._ready()
        self._registrations.unregister([buffer_addr])
        return 0

    @answers(int)
    def get_first_buffer_address(self, segment_name: str) -> int:
        """Returns the address of the oldest range of a session. 0: none, or it has failed."""
        self._ready()
        remote = self._sessions.get(segment_name)
        remote.refresh()
        return int(remote.ranges.rows[0, 0]) if len(remote.ranges) else 0

    @answers()
    def write_bytes_to_buffer(self, dest_address: int, src_ptr: bytes | str, length: int) -> int:
        """Copies bytes into registered host memory of this process."""
        source = src_ptr.encode() if isinstance(src_ptr, str) else bytes(src_ptr)
        if not 0 <= length <= len(source):
            raise Failure(f"length {length} of a source of {len(source)} bytes: give at most these")
        self._check_host(dest_address, length)
        ctypes.memmove(dest_address, source, length)
        return 0

    @answers(bytes)
    def read_bytes_from_buffer(self, source_address: int, length: int) -> bytes:
        """Returns bytes of registered host memory of this process. b"": it has failed."""
        self._check_host(source_address, length)
        return ctypes.string_at(source_address, length)

    # ---- transfers -------------------------------------------------------------------------------

    # fmt: off
    def transfer_sync_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int,
        transport_hint: str = "",
    ) -> int:
        return self.transfer_sync(target_hostname, buffer, peer_buffer_address, length, Write)

    def transfer_sync_read(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int,
        transport_hint: str = "",
    ) -> int:
        return self.transfer_sync(target_hostname, buffer, peer_buffer_address, length, Read)

    def transfer_sync(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int,
        opcode: TransferOpcode, notify: TransferNotify | None = None, transport_hint: str = "",
    ) -> int:
        return self.batch_transfer_sync(
            target_hostname, [buffer], [peer_buffer_address], [length], opcode, notify
        )

    def batch_transfer_sync_write(
        self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int], transport_hint: str = "",
    ) -> int:
        return self.batch_transfer_sync(
            target_hostname, buffers, peer_buffer_addresses, lengths, Write
        )

    def batch_transfer_sync_read(
        self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int], transport_hint: str = "",
    ) -> int:
        return self.batch_transfer_sync(
            target_hostname, buffers, peer_buffer_addresses, lengths, Read
        )

    @answers()
    def batch_transfer_sync(
        self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int], opcode: TransferOpcode, notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """Copies all blocks as one transfer and waits. 0: they are at their destination."""
        self._ready()
        given = target_hostname, buffers, peer_buffer_addresses, lengths, _writes(opcode)
        message = b"" if notify is None else pack(notify.name, notify.msg)
        started = self._transfers.start(*given, message)
        try:
            started.wait()
        except linkspan.UnreachableError:
            if not started.remote.refresh(started.ranges):
                raise
            self._transfers.start(*given, message).wait()  # the peer's memory is registered anew
        return 0

    def batch_transfer_async_write(
        self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int], transport_hint: str = "",
    ) -> int:
        return self.batch_transfer_async(
            target_hostname, buffers, peer_buffer_addresses, lengths, Write
        )

    def batch_transfer_async_read(
        self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int], transport_hint: str = "",
    ) -> int:
        return self.batch_transfer_async(
            target_hostname, buffers, peer_buffer_addresses, lengths, Read
        )

    @answers(int)
    def batch_transfer_async(
        self, target_hostname: str, buffers: Sequence[int], peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int], opcode: TransferOpcode, transport_hint: str = "",
    ) -> int:
        """Starts a batch. Returns its id for get_batch_transfer_status(). 0: it has failed."""
        self._ready()
        started = self._transfers.start(
            target_hostname, buffers, peer_buffer_addresses, lengths, _writes(opcode)
        )
        batch_id = next(self._next_batch)
        self._batches[batch_id] = started
        return batch_id

    def transfer_submit_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int,
        transport_hint: str = "",
    ) -> int:
        """Starts a write. Returns its id for transfer_check_status(). -1: it has failed."""
        return self.batch_transfer_async_write(
            target_hostname, [buffer], [peer_buffer_address], [length]
        ) or INVALID

    # fmt: on
    @answers()
    def get_batch_transfer_status(self, batch_ids: Iterable[int]) -> int:
        """Waits until all batches are done and forgets them. 0: all are at their destination."""
        batches = [(each, self._batches.pop(each, None)) for each in batch_ids]
        code = 0
        for batch_id, started in batches:
            try:
                _known(batch_id, started).wait()
            except (Failure, linkspan.Error) as error:
                log.error("[get_batch_transfer_status] batch %s: %s", batch_id, error)
                code = INVALID
        return code

    @answers()
    def transfer_check_status(self, batch_id: int) -> int:
        """1: done, 0: not yet, -1: failed or unknown, -2: timed out. It is forgotten unless 0."""
        started = _known(batch_id, self._batches.get(batch_id))
        if started.transfer is not None and not started.transfer.done():
            return 0
        self._batches.pop(batch_id, None)
        try:
            started.wait()
        except linkspan.TimedOutError as error:
            raise Failure(f"batch {batch_id}: {error}", TIMED_OUT) from error
        return 1

    # ---- peers -----------------------------------------------------------------------------------

    @answers(list)
    def get_notifies(self) -> list[TransferNotify]:
        """Returns the notifications that came since the last call, in order."""
        notifies = []
        for peer, message in self._ready().engine.notifications():
            try:
                notifies.append(TransferNotify(*unpack(message)))
            except ValueError as error:  # as a program that is no TransferEngine may send them
                log.error("[get_notifies] peer %d: %s", peer, error)
        return notifies

    @answers()
    def send_probe(self, peer_server_name: str) -> int:
        """Asks the engine of a session for an answer. 0: it lives."""
        self._ready()
        self._sessions.get(peer_server_name).refresh()
        return 0

    # ---- inside ----------------------------------------------------------------------------------

    def _ready(self) -> Listener:
        if self._listener is None:
            raise Failure("the engine is not open: call initialize() first; it has to return 0")
        return self._listener

    def _check_host(self, address: int, length: int) -> None:
        self._ready()
        if (region := self._transfers.local_region(address, length)).kind == "device":
            raise Failure(f"{address:#x} is memory of a GPU ({region!r}): copy it with CUDA")


def _writes(opcode: TransferOpcode) -> bool:
    if opcode not in (Read, Write):
        raise Failure(f"opcode {opcode!r}: give TransferOpcode.Read or TransferOpcode.Write")
    return opcode == Write


def _known(batch_id: int, started: Started | None) -> Started:
    if started is None:
        raise Failure(f"no such batch: {batch_id}; it was asked before, or never started")
    return started
