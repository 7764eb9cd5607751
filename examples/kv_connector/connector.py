"""A KV connector as vLLM and SGLang have them: pages of requests, whole or layer by layer.

The prefill side writes into the decode side's caches. Both make a KVConnector. The decode side's
metadata() goes to the prefill side's add_remote() by HTTP, ZeroMQ or a file, once for each process.
docs/connectors.md has the engines' calls beside these. Threads: one calls a connector.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from typing import Any, Sequence

import linkspan
import numpy as np
from layout import Layout
from send import SECONDS, Remote, Send


class KVConnector:
    def __init__(
        self, name: str, layout: Layout, caches: Sequence[Any], secret: bytes | None = None
    ) -> None:
        """Peers of other hosts need the same secret."""
        self.engine = linkspan.Engine(name, secret=secret)
        self.layout, self.layers = layout, [self.engine.register_memory(each) for each in caches]
        self.engine.publish("caches", self.layers)
        self.remotes: dict[str, Remote] = {}
        self._sends: dict[str, list[Send]] = {}  # one for each rank
        self._receives: dict[str, tuple[linkspan.Peer, int]] = {}  # and pages that are to come
        self._failed: dict[str, linkspan.Error] = {}

    def metadata(self, *addresses: str) -> bytes:
        """Listens at a Unix socket for peers of this host, at a TCP address for all, or at both."""
        for each in addresses:
            self.engine.listen(each)
        return json.dumps([self.engine.addresses, *dataclasses.astuple(self.layout)]).encode()

    def add_remote(self, name: str, metadata: bytes) -> None:
        """Connects to a decode rank. A restarted one takes the place of its earlier process."""
        addresses, *layout = json.loads(metadata)
        peer = self.engine.connect(addresses, expect=name)
        self.remotes[name] = Remote(peer, peer.lookup_set("caches").regions, Layout(*layout))

    def start_send(self, request: str, ranks: Sequence[str], mine: Any, its: Any) -> list[Send]:
        """Begins a request: pages `mine` of each layer here become pages `its` of each rank."""
        pages = np.asarray(mine), np.asarray(its)
        self._sends[request] = [
            Send(request, self.layers, self.layout, self.remotes[rank], *pages) for rank in ranks
        ]
        return self._sends[request]

    def send(self, request: str, layers: slice = slice(None), positions: Any = slice(None)) -> None:
        """Sends these layers of the pages at these positions, by one transfer to each rank, in the
        order of the current stream. Waits for nothing. get_finished() reports failures."""
        try:
            for send in self._sends.get(request, []):
                send.post(layers, positions)
        except linkspan.Error as error:
            self.abort(request)
            self._failed[request] = error

    def start_receive(self, request: str, sender: str, pages: int) -> None:
        """Expects this many pages of each layer. NotFoundError: the sender is not connected."""
        self._receives[request] = self.engine.find_peer(sender), pages * len(self.layers)

    def get_finished(self, timeout: float = 0) -> tuple[set[str], set[str], dict[str, Any]]:
        """Returns the requests that are sent, received and failed: no transfer uses their pages any
        more. Waits at most `timeout` seconds for a message."""
        self._take_notifications(timeout)
        sent, received = set(), set()
        for request, sends in list(self._sends.items()):
            if error := next(filter(None, (each.error() for each in sends)), None):
                self.abort(request)
                self._failed[request] = error
            elif all(each.complete() for each in sends):
                del self._sends[request]
                sent.add(request)
        for request, (_, left) in list(self._receives.items()):
            if left == 0:
                del self._receives[request]
                received.add(request)
        failed, self._failed = self._failed, {}
        return sent, received, failed

    def abort(self, request: str) -> int:
        """Ends a request, and informs the other side. When it returns, this side's pages of the
        request may be used again. Returns how many transfers it canceled in flight."""
        caught = 0
        for send in self._sends.get(request, []):
            caught += send.end()
            self._notify(send.to.peer, f"aborted 0 {request}")
        self._sends.pop(request, None)
        if request in self._receives:
            sender, _ = self._receives[request]
            self._notify(sender, f"abort 0 {request}")
            until = time.monotonic() + SECONDS
            while self._receives.get(request, (sender, 0))[1]:  # pages that may still come
                if time.monotonic() > until:
                    raise TimeoutError(f"{sender} does not answer: call again")
                self._take_notifications(0.1)
            self._receives.pop(request, None)
            self._failed.pop(request, None)
        return caught

    def _take_notifications(self, timeout: float) -> None:
        gone = [name for name, (peer, _) in self._receives.items() if peer.state == "gone"]
        for each in self.engine.notifications(timeout):
            kind, pages, request = each.message.decode().split(" ", 2)
            if kind == "abort":  # the decode side wants its pages back
                if request in self._sends:
                    self.abort(request)
                    self._failed[request] = linkspan.CanceledError("aborted by the decode side")
                for remote in self.remotes.values():  # also of a request that has ended
                    if remote.peer.id == each.peer:
                        self._notify(remote.peer, f"aborted 0 {request}")
            elif request in self._receives:
                peer, left = self._receives[request]
                self._receives[request] = peer, left - int(pages)
                if kind == "aborted":
                    self._fail(request, linkspan.CanceledError("aborted by the prefill side"))
        for request in gone:
            peer, left = self._receives.get(request, (None, 0))
            if left:
                self._fail(request, linkspan.DisconnectedError(f"{peer} is gone"))

    def _fail(self, request: str, error: linkspan.Error) -> None:
        del self._receives[request]
        self._failed[request] = error

    def _notify(self, peer: linkspan.Peer, text: str) -> None:
        with contextlib.suppress(linkspan.DisconnectedError):
            peer.notify(text.encode())
