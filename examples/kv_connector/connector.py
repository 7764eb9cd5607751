"""A KV connector as vLLM and SGLang have them: pages of requests, one layer after the other.

The prefill side writes into the decode side's caches. Both make a KVConnector; the metadata() of
the decode side goes to the prefill side's add_remote() by any way, once in each of its lives.
docs/connectors.md has the calls beside NIXL's. One thread calls a connector, at each of its steps.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from typing import Any, Sequence

import linkspan
import numpy as np
from layout import Layout
from send import SECONDS, Remote, Send


class KVConnector:
    def __init__(self, name: str, address: str, layout: Layout, caches: Sequence[Any]) -> None:
        self.engine = linkspan.Engine(name)
        self.engine.listen(address)
        self.layout, self.layers = layout, [self.engine.register_memory(each) for each in caches]
        for i, each in enumerate(self.layers):
            self.engine.publish(f"layer {i}", each)
        self.remotes: dict[str, Remote] = {}
        self._callers: dict[str, linkspan.Peer] = {}  # who has connected to us, by name
        self._sends: dict[str, list[Send]] = {}  # one for each rank
        self._receives: dict[str, tuple[linkspan.Peer, int]] = {}  # and pages that are to come
        self._failed: dict[str, linkspan.Error] = {}

    def metadata(self) -> bytes:
        layers = [self.engine.describe(f"layer {i}", each) for i, each in enumerate(self.layers)]
        return pickle.dumps((self.layout, layers))

    def add_remote(self, name: str, metadata: bytes) -> None:
        """Of one that has started anew, too: it takes the place of its earlier life."""
        layout, layers = pickle.loads(metadata)
        peers, regions = zip(*[self.engine.lookup(each) for each in layers])
        self.remotes[name] = Remote(peers[0], list(regions), layout)

    def start_send(self, request: str, ranks: Sequence[str], mine: Any, its: Any) -> None:
        self._sends[request] = [
            Send(request, self.layers, self.layout, self.remotes[rank], mine, its) for rank in ranks
        ]

    def send_layer(self, request: str, layer: int, chunk: np.ndarray) -> None:
        """When this layer of the pages at these positions is computed, or queued on the current
        stream. Waits for nothing. What has failed or was aborted it leaves to get_finished()."""
        try:
            for send in self._sends.get(request, []):
                send.post(layer, chunk)
        except linkspan.Error as error:
            self.abort(request)
            self._failed[request] = error

    def start_receive(self, request: str, sender: str, pages: int) -> None:
        with contextlib.suppress(linkspan.TimedOutError):
            while caller := self.engine.accept(0):
                self._callers[caller.name] = caller  # in its last life
        self._receives[request] = self._callers[sender], pages * len(self.layers)

    def get_finished(self, timeout: float = 0) -> tuple[set[str], set[str], dict[str, Any]]:
        """Requests that are sent, received, failed: their pages are nobody else's any more. Waits
        so long for a message where none has come."""
        self._hear(timeout)
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
        """When it returns nobody reads or writes this side's pages of the request, and they may be
        used again at once; the other side hears of it. How many transfers it caught in flight."""
        caught = 0
        for send in self._sends.get(request, []):
            caught += send.end()
            self._tell(send.to.peer, f"aborted 0 {request}")
        self._sends.pop(request, None)
        if request in self._receives:
            sender, _ = self._receives[request]
            self._tell(sender, f"abort 0 {request}")
            until = time.monotonic() + SECONDS
            while self._receives.get(request, (sender, 0))[1]:  # pages that may still come
                if time.monotonic() > until:
                    raise TimeoutError(f"{sender} does not answer: call again")
                self._hear(0.1)
            self._receives.pop(request, None)
            self._failed.pop(request, None)
        return caught

    def _hear(self, timeout: float) -> None:
        gone = [name for name, (peer, _) in self._receives.items() if peer.state == "gone"]
        for each in self.engine.notifications(timeout):
            kind, pages, request = each.message.decode().split(" ", 2)
            if kind == "abort":  # the decode side wants its pages back
                if request in self._sends:
                    self.abort(request)
                    self._failed[request] = linkspan.CanceledError("aborted by the decode side")
                for remote in self.remotes.values():
                    if remote.peer.id == each.peer:
                        self._tell(remote.peer, f"aborted 0 {request}")
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

    def _tell(self, peer: linkspan.Peer, text: str) -> None:
        with contextlib.suppress(linkspan.DisconnectedError):
            peer.notify(text.encode())
