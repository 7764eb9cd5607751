"""The rows of evidence/peers.json and nixl.json: what moves, between which memories, how often.

`local` is the initiator's memory, `remote` the target's. Page lists are fresh for each transfer, so
making them is part of its time.
"""

from __future__ import annotations

import dataclasses
import random

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclasses.dataclass(frozen=True)
class Row:
    id: str
    local: str  # gpu, pinned, page, shared
    remote: str
    bytes: int  # of a piece
    op: str = "write"
    unit: str = "us"
    regions: int = 1
    pages: int = 0  # of each region that move; 0: one piece at the start
    region_pages: int = 0
    lists: bool = False  # each region has page lists of its own
    in_flight: int = 1
    ping_pong: bool = False
    handle: str = ""  # NIXL's: "posted" again, "made" for each transfer, "timed" while it is made
    tcp: bool = False  # by TCP although both processes are on one host
    low_latency: bool = False  # linkspan's plugin with low_latency=yes
    runs: int = 500  # transfers of a turn; fewer where a second is over
    bar: float | None = None

    @property
    def region_bytes(self) -> int:
        return self.bytes * (self.region_pages or self.in_flight)

    @property
    def moved(self) -> int:
        """Bytes of what one time is taken of."""
        return self.bytes * self.regions * (self.pages or self.in_flight)

    @property
    def needs_gpu(self) -> bool:
        return bool({"gpu", "pinned"} & {self.local, self.remote})

    def indices(self) -> list[tuple[list[int], list[int]]]:
        """Returns the pages (of the initiator's region, of the target's) for each region."""
        rng = random.Random(self.id)

        def two() -> tuple[list[int], list[int]]:
            # Of all pages every other one, so that no two are neighbours on both sides.
            return tuple(rng.sample(range(self.region_pages), self.pages) for _ in range(2))  # type: ignore[return-value]

        if self.lists:
            return [two() for _ in range(self.regions)]
        return [two()] * self.regions


def all_rows() -> list[Row]:
    """In the order of evidence.md, but that rows of host memory come first."""
    rows = [
        Row("page_page.8B", "page", "page", 8),
        Row("page_page.4KiB", "page", "page", 4 * KIB),
        Row("page_page.1MiB", "page", "page", MIB, runs=100),
        Row("shared_shared.8B", "shared", "shared", 8),
    ]
    for remote in ("pinned", "page"):
        for name, size in (("8B", 8), ("4KiB", 4 * KIB)):
            for op in ("write", "read"):
                rows.append(Row(f"gpu_{remote}.{name}.{op}", "gpu", remote, size, op))
    layers = {"regions": 122, "pages": 67, "region_pages": 256, "unit": "GB/s", "runs": 100}
    rows += [
        Row("pingpong.nobody_waits.python", "gpu", "gpu", 8, ping_pong=True),
        Row("pages.122x67.sets.python", "gpu", "gpu", 4 * KIB, **layers, bar=0.80),
        Row("pages.122x67.triples.python", "gpu", "gpu", 4 * KIB, **layers, lists=True, bar=0.80),
        Row(
            "pages.8192x4KiB.python",
            "gpu",
            "gpu",
            4 * KIB,
            unit="GB/s",
            pages=8192,
            region_pages=16384,
            runs=100,
            bar=0.90,
        ),
        Row("window16.1MiB", "gpu", "gpu", MIB, unit="GB/s", in_flight=16, runs=100),
        Row("gpu_gpu.1GiB.python", "gpu", "gpu", GIB, unit="GB/s", runs=5),
    ]
    return rows


def nixl_rows() -> list[Row]:
    """Of NIXL's API: linkspan's plugin, with NIXL's UCX in the place of the ceiling."""
    pages = {"pages": 8192, "region_pages": 16384, "runs": 100}
    layers = {"regions": 122, "pages": 67, "region_pages": 256, "runs": 100}
    return [
        Row("pages.8192x4KiB.repost", "gpu", "gpu", 4 * KIB, **pages, handle="posted", bar=1 / 100),
        Row("pages.8192x4KiB.vllm", "gpu", "gpu", 4 * KIB, **pages, handle="made", bar=1 / 30),
        Row("regions.122x67.repost", "gpu", "gpu", 4 * KIB, **layers, handle="posted", bar=1 / 100),
        Row("regions.122x67.vllm", "gpu", "gpu", 4 * KIB, **layers, handle="made", bar=1 / 30),
        Row("8B", "gpu", "gpu", 8, bar=1.0),
        Row("8B.low_latency", "gpu", "gpu", 8, low_latency=True, bar=1.0),
        Row("gpu_host.8B", "gpu", "pinned", 8, bar=1.0),
        Row("gpu_host.64MiB", "gpu", "pinned", 64 * MIB, runs=20, bar=1 / 20),
        Row("tcp.64MiB", "gpu", "gpu", 64 * MIB, runs=20, tcp=True, bar=1 / 20),
        Row("prep_ns_per_descriptor", "gpu", "gpu", 4 * KIB, unit="ns", **pages, handle="timed"),
    ]


def in_host_memory(row: Row) -> Row:
    """Returns the same row small and in pageable memory: shows the programs on a machine without a
    GPU, measures nothing."""
    pages = {"pages": min(row.pages, 256), "region_pages": min(row.region_pages, 512)}
    return dataclasses.replace(
        row,
        id=f"{row.id}.host",
        local="page" if row.local in ("gpu", "pinned") else row.local,
        remote="page" if row.remote in ("gpu", "pinned") else row.remote,
        bytes=min(row.bytes, 4 * MIB),
        regions=min(row.regions, 8),
        runs=min(row.runs, 20),
        bar=None,
        **pages,
    )
