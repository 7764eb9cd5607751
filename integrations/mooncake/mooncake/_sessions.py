"""Finds the peer of a session "host:port", the text by which Mooncake names an engine.

A session of this host is a Unix socket below linkspan's socket_dir, which belongs to one user. TCP
is used only where the environment has a secret or LINKSPAN_SECURITY=insecure.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
import weakref

import linkspan
from linkspan import util

from ._failures import Failure
from ._ranges import RemoteRanges

_CONNECT_S = 5.0
_PROBE_S = 1.0
_PROBE_EACH_S = 0.25
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def split(session: str, what: str = "session") -> tuple[str, int]:
    """Returns host and port of "host:port", "[v6]:port" or "host", whose port is 0."""
    host, colon, port = session.rpartition(":")
    if not colon or session.endswith("]") or session.count(":") > 1 and not session.startswith("["):
        host, port = session, "0"
    host = host.removeprefix("[").removesuffix("]")
    if not host or "/" in host or not (port.isdecimal() and int(port) < 1 << 16):
        raise Failure(f'{what} "{session}": give "host:port", such as "10.0.0.1:12345"')
    try:
        host = str(ipaddress.ip_address(host))
    except ValueError:
        pass  # a name
    return ("127.0.0.1" if host in _LOOPBACK else host), int(port)


def _socket_name(host: str, port: int) -> str:
    return f"mooncake-{host.replace(':', '_')}-{port}"


def _tcp(host: str, port: int) -> str:
    return f"tcp:[{host}]:{port}" if ":" in host else f"tcp:{host}:{port}"


class Listener:
    """An Engine that listens under its session.

    Threads: immutable after construction.
    """

    def __init__(self, local_hostname: str) -> None:
        host, port = split(local_hostname, "local_hostname")
        self._reserved = None
        if not util.tcp_is_configured():  # a number that no other program of this host has
            self._reserved = socket.socket()
            weakref.finalize(self, self._reserved.close)
            try:
                self._reserved.bind(("127.0.0.1", port))
            except OSError as error:
                raise Failure(f"port {port} is taken ({error}): give another or none") from error
            port = self._reserved.getsockname()[1]
        self.engine = linkspan.Engine(f"mooncake {host}" + (f":{port}" if port else ""))
        if self._reserved is None:
            port = int(self.engine.listen(_tcp(host, port)).rpartition(":")[2])
        self.port = port
        self.folder = os.path.dirname(self.engine.listen(_socket_name(host, port)))


class Sessions:
    """The peers of one Engine by their sessions. A peer that was lost is met anew by the next call.

    Threads: any thread. One call connects to a session, others of it wait.
    """

    def __init__(self, listener: Listener) -> None:
        self._engine, self._folder = listener.engine, listener.folder
        self._lock = threading.Lock()
        self._connecting: dict[str, threading.Lock] = {}
        self._peers: dict[str, RemoteRanges] = {}

    def get(self, session: str) -> RemoteRanges:
        known = self._peers.get(session)
        if known is not None and known.peer.state == "up":
            return known
        with self._lock:
            connecting = self._connecting.setdefault(session, threading.Lock())
        with connecting:
            known = self._peers.get(session)
            if known is None or known.peer.state != "up":
                with self._lock:  # what was imported of lost peers goes
                    for lost in [s for s, r in self._peers.items() if r.peer.state != "up"]:
                        del self._peers[lost]
                known = RemoteRanges(self._engine, self._connect(session))
                with self._lock:
                    self._peers[session] = known
        return known

    def _connect(self, session: str) -> linkspan.Peer:
        host, port = split(session)
        if port == 0:
            raise Failure(f'session "{session}" has no port: give "host:port" of get_rpc_port()')
        path = f"{self._folder}/{_socket_name(host, port)}"
        ways: list[tuple[str, str | tuple[str, int]]] = [(path, path.removeprefix("unix:"))]
        if util.tcp_is_configured():
            ways.append((_tcp(host, port), (host, port)))
        why = []
        for address, place in ways:
            try:
                return self._meet(address, place)
            except (OSError, linkspan.Error) as error:
                why.append(f"{address}: {error}")
        if len(ways) == 1:
            why.append(
                "not by TCP, which needs LINKSPAN_SECRET_FILE on both sides; another host or user"
                " is reached by TCP alone"
            )
        raise Failure(f'no engine answers as session "{session}" ({"; ".join(why)})')

    def _meet(self, address: str, place: str | tuple[str, int]) -> linkspan.Peer:
        """Connects. Engine.connect() would wait for somebody to listen: here a socket at which
        nobody listens, or no longer, is an OSError at once."""
        _probe(place)
        meeting = self._engine.connect_async(address, _CONNECT_S)
        while True:  # until its time-out
            try:
                return meeting.wait(_PROBE_EACH_S)
            except linkspan.Error:
                raise
            except TimeoutError:
                try:
                    _probe(place)
                except OSError:
                    meeting.cancel()
                    raise


def _probe(place: str | tuple[str, int]) -> None:
    if isinstance(place, tuple):
        socket.create_connection(place, _PROBE_S).close()
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_S)
        probe.connect(place)
