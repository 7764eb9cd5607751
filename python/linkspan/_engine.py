"""The Engine of Python: memory by object, context managers, destruction in any order."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import weakref
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from . import _core, _errors, _memory
from ._core import Future, Region


class Notification(NamedTuple):
    peer: int  # Peer.id of the sender
    message: bytes


class Engine(_core.Engine):
    """Registers memory of this process and connects to peers.

    An option that is None or an empty text takes its value from the environment, else from the
    table in docs/options.md.

    name: Is shown in logs and to peers; at most 256 bytes.
    socket_dir: Names the directory of the bare names that listen() and connect() take.
    any_uid: Accepts peers of other users, who can then map whole allocations.
    use_gpu: False makes no CUDA call.
    cpu_threads: Sets how many threads copy by the CPU. 0 is the default.
    copy_ctas: Limits the CTAs of one copy by a kernel. 0 uses copy engines only.
    relay_gpus: Sets how many other GPUs' PCIe links large copies from pinned memory use as well.
    calibrate: Measures the copiers of each GPU at their first use, and chooses by these rates.
    secret_file: Names a file with the secret that peers over TCP share (docs/security.md).
    secret: Is that secret itself, 16 to 4096 bytes.
    security: Protects TCP: "loopback_only", "insecure" (anyone who reaches the port is a peer), or
        with a secret "authenticated" or "encrypted". Both sides must agree.
    transport: Sets options of the transports by key: {"tcp.interfaces": "eth1,eth2"}.
    transfer_deadline: Limits each transfer that has no deadline of its own, in seconds.

    Paths and addresses are str, bytes or os.PathLike.
    `with Engine() as engine:` closes it at the end, as close() does; so does the interpreter's end.
    Log lines go to stderr, from LINKSPAN_LOG_LEVEL up, WARNING by default.
    Threads: any thread.
    """

    def __init__(
        self,
        name: str = "",
        *,
        socket_dir: str | bytes | os.PathLike = "",
        any_uid: bool = False,
        use_gpu: bool = True,
        cpu_threads: int = 0,
        copy_ctas: int | None = None,
        relay_gpus: int | None = None,
        calibrate: bool | None = None,
        secret_file: str | bytes | os.PathLike = "",
        secret: bytes | None = None,
        security: str | None = None,
        transport: Mapping[str, str] | None = None,
        transfer_deadline: float | None = None,
    ) -> None:
        super().__init__(
            name,
            socket_dir=socket_dir,
            any_uid=any_uid,
            use_gpu=use_gpu,
            cpu_threads=cpu_threads,
            copy_ctas=copy_ctas,
            relay_gpus=relay_gpus,
            calibrate=calibrate,
            secret_file=secret_file,
            secret=secret,
            security=security,
            transport={} if transport is None else transport,
            transfer_deadline=transfer_deadline,
        )
        # Until deregistered or closed: dropping a Region drops neither its key nor its memory.
        self._regions: set[Region] = set()
        self._ending: set[Future] = set()  # of regions that end; those that are done are removed
        self._process = os.getpid()
        _open.add(self)

    def register_memory(
        self,
        memory: Any,
        *,
        peers_read: bool = True,
        peers_write: bool = True,
        exclusive: bool = False,
        pin: bool = False,
    ) -> Region:
        """Registers memory that has no gaps: a tensor or array of torch, numpy, CuPy or another, on
        a GPU or not, anything with __cuda_array_interface__, __dlpack__ or the buffer protocol, or
        (address, bytes), which must live on by itself. What it belongs to lives until deregister()
        or close(). Off the data path: the first region of a GPU takes up to 0.5 s.

        exclusive: no peer may map it. pin: lock host memory for the GPU.
        ValueError: gaps, read-only memory that peers may write. UnsupportedError: managed memory.
        """
        address, size, device, read_only, owner = _memory.whole(memory, any_order=True)
        if read_only and peers_write:
            raise ValueError(
                f"{type(memory).__name__} is read-only: give memory that may be written, or say"
                " that peers do not write it, peers_write=False"
            )
        region = self._register_memory(
            address, size, peers_read, peers_write, exclusive, pin, device, read_only, owner
        )
        self._regions.add(region)
        return region

    def allocate_shared(
        self,
        bytes: int,
        *,
        peers_read: bool = True,
        peers_write: bool = True,
        exclusive: bool = False,
        pin: bool = False,
    ) -> Region:
        """Zeroed memory that every local peer can map; region.memory is a memoryview of it."""
        region = self._allocate_shared(bytes, peers_read, peers_write, exclusive, pin)
        self._regions.add(region)
        return region

    def deregister(self, region: Region, timeout: float = 10.0) -> None:
        """Its key is dead at once; returns when no peer maps it and no transfer uses it any more.
        BusyError names who still does: call again."""
        self._deregister(region, timeout)
        _let_go(self._regions, region)

    def invalidate(self, region: Region, timeout: float = 10.0) -> None:
        """As deregister(), for memory that is about to be freed: what is in flight on it is
        canceled, and peers let go of GPU memory although their users hold its RemoteRegion."""
        self._invalidate(region, timeout)
        _let_go(self._regions, region)

    def deregister_async(self, region: Region, timeout: float = 10.0) -> Future:
        """deregister() that returns at once: `await` or wait() returns None, or raises BusyError.
        The memory is kept until then, or if the Future is dropped until a later call of this or
        close()."""
        return self._ends(self._deregister_async, region, timeout)

    def invalidate_async(self, region: Region, timeout: float = 10.0) -> Future:
        """invalidate() that returns at once, as deregister_async()."""
        return self._ends(self._invalidate_async, region, timeout)

    def _ends(self, call: Callable[..., Future], region: Region, timeout: float) -> Future:
        for each in list(self._ending):
            if each.done():
                self._ending.discard(each)
                with contextlib.suppress(_errors.Error):  # the region stays registered
                    each.wait(0)
        future = call(region, timeout, functools.partial(_let_go, self._regions, region))
        self._ending.add(future)
        return future

    def publish(self, name: str, region: Region | Sequence[Region]) -> int | None:
        """Lets peers find it. Several regions are a set, published at once in the place of what the
        name stood for: peers see the old or the new one, never a mix. Of a set, its version."""
        if isinstance(region, Region):
            self._publish(name, region)
            return None
        return self._publish_set(name, list(region))

    def notifications(self, timeout: float | None = 0.0) -> list[Notification]:
        """Those that came since the last call, in order; where there are none, waits for the first,
        for ever with None. Empty: none came, or the Engine is closed."""
        return [Notification(*each) for each in self._notifications(timeout)]

    def close(self, timeout: float = 5.0) -> None:
        """Cancels what is in flight, says goodbye to all peers, and waits until those that had
        imported memory of this Engine copy there no more. PendingError: something is not quiet, the
        text names whom it waits for, and the memory is kept. Call again, also after a signal."""
        self._close(timeout)
        for region in list(self._regions):
            _let_go(self._regions, region)
        self._ending.clear()
        _open.discard(self)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_process", None) == os.getpid():
            _close_or_keep(self)


_open: weakref.WeakSet[Engine] = weakref.WeakSet()
_kept: list[Any] = []  # memory that is in use until the process ends


def _let_go(regions: set[Region], region: Region) -> None:
    regions.discard(region)
    region._end()


def _close_or_keep(engine: Engine) -> None:
    try:
        engine.close()
    except _errors.Error:
        _kept.append(engine._regions)
    except BaseException:  # a signal: what it interrupted may still touch the memory
        _kept.append(engine._regions)
        raise


@atexit.register
def _close_all() -> None:
    for engine in list(_open):
        if engine._process == os.getpid():
            _close_or_keep(engine)
    _core._drain()


os.register_at_fork(after_in_child=_core._forget_threads)
