"""NIXL by its Python API, over linkspan's plugin, which NIXL_PLUGIN_DIR names."""

from __future__ import annotations

import os

from nixl_side import NixlSide


class LinkspanBehindNixl(NixlSide):
    backend = "LINKSPAN"

    def __init__(self, role: str) -> None:
        if "LINKSPAN_BENCH_TCP" in os.environ:
            self.parameters = {"unix_socket": "no"}
        if "LINKSPAN_BENCH_LOW_LATENCY" in os.environ:
            self.parameters = {"low_latency": "yes"}
        super().__init__(role)


create = LinkspanBehindNixl
