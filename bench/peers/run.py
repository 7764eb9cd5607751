#!/usr/bin/env python3
"""linkspan beside NIXL, Mooncake and UCX, in one run, driven from Python.

run.py --fetch DIR [--part MIB]      others' libraries from PyPI, in parts that travel one by one
run.py [--wheels DIR] [--json FILE]  all rows; without parts linkspan and the bare calls alone
run.py --nixl FOLDER ...             NIXL's API over the plugin in that folder beside its own UCX
run.py --host ...                    small, in host memory: shows the programs, measures nothing

Each library has two processes, an initiator and a target. Within a row the libraries take turns, the
first of which is warm-up; a value is the median of the turns' medians. Before and after, fresh data
that differs at every position is moved, and every byte of the target is compared, gaps included.
What could not be measured is told under `absent`. Exit: 0 linkspan has all rows of this machine;
1 not.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import wheels
from gpus import gpus
from pair import CEILING, Absent, Pair
from rows import Row, all_rows, in_host_memory, nixl_rows

SIDES = [CEILING, "linkspan", "nixl", "mooncake", "ucx"]
NIXL_SIDES = ["nixl", "nixl_linkspan"]  # the first in the place of the ceiling


class Bench:
    def __init__(self, args: argparse.Namespace, site: pathlib.Path | None, gpu_count: int) -> None:
        self.args, self.site, self.gpu_count = args, site, gpu_count
        self.sides = args.sides or (NIXL_SIDES if args.nixl else SIDES)
        self.ceiling, self.ours = NIXL_SIDES if args.nixl else SIDES[:2]
        self.pairs: dict[str, Pair] = {}
        self.unstarted: dict[tuple[str, str], Absent] = {}  # by library and environment
        self.rows: list[dict[str, Any]] = []
        self.absent: list[dict[str, str]] = []

    def missing(self, side: str, row: Row, why: str) -> None:
        name = row.id if side == self.ours else f"{row.id}.{side}"
        self.absent.append({"id": name, "why": why})
        print(f"{name}: absent, {why}", flush=True)

    def pair(self, side: str, row: Row) -> Pair:
        """One that runs, in the environment that the row wants."""
        more = environment(side, row, self.args.nixl)
        if side in self.pairs and self.pairs[side].environment != more:
            self.pairs.pop(side).end()
        if side not in self.pairs:
            if (known := self.unstarted.get((side, str(more)))) is not None:
                raise known
            try:
                self.pairs[side] = Pair(side, self.gpu_count, more, self.site)
            except Absent as error:
                self.unstarted[side, str(more)] = error
                raise
        return self.pairs[side]

    def drop(self, side: str) -> None:
        if side in self.pairs:
            self.pairs.pop(side).end(well=False)

    def measure(self, row: Row) -> None:
        times: dict[str, list[float]] = {}
        counts: dict[str, int] = {}

        def attempt(side: str, step: Any) -> None:
            try:
                step(self.pair(side, row) if side not in times else self.pairs[side])
            except Absent as error:
                times.pop(side, None)
                self.drop(side)
                self.missing(side, row, str(error))

        def begin(pair: Pair) -> None:
            pair.set_up(row)
            pair.verify(row, 1)
            times[pair.side] = []

        def turn(pair: Pair, count: bool) -> None:
            taken = pair.run(row, row.runs)
            if count:
                times[pair.side].append(statistics.median(taken))
                counts[pair.side] = counts.get(pair.side, 0) + len(taken)

        def finish(pair: Pair) -> None:
            pair.verify(row, 1000)
            pair.clear()

        for side in self.sides:
            attempt(side, begin)
        for number in range(self.args.turns + 1):
            for side in list(times):
                attempt(side, functools.partial(turn, count=number > 0))
        for side in list(times):
            attempt(side, finish)
        if self.ours in times:
            self.rows.append(self.row(row, times, counts))
            print(json.dumps(self.rows[-1]), flush=True)

    def row(
        self, row: Row, times: dict[str, list[float]], counts: dict[str, int]
    ) -> dict[str, Any]:
        figures = {side: figure(row, statistics.median(each)) for side, each in times.items()}
        made: dict[str, Any] = {
            "id": row.id,
            "value": figures[self.ours],
            "unit": row.unit,
            "how": self.pairs[self.ours].how,
            "runs": counts[self.ours],
            "turns": self.args.turns,
            "verified": True,
        }
        if self.ceiling in figures:
            by = self.pairs[self.ceiling]
            made |= {
                "ceiling": figures[self.ceiling],
                "ceiling_how": f"NIXL's UCX {by.version}: {by.how}" if self.args.nixl else by.how,
                "ratio": round(figures[self.ours] / figures[self.ceiling], 4),
            }
        made["beside"] = [
            {
                "how": f"{side} {self.pairs[side].version}: {self.pairs[side].how}",
                "value": value,
                "ratio": round(figures[self.ours] / value, 3),
                "runs": counts[side],
                "verified": True,
            }
            for side, value in figures.items()
            if side not in (self.ours, self.ceiling)
        ]
        if row.bar is not None and "ratio" in made:
            better = made["ratio"] >= row.bar if row.unit == "GB/s" else made["ratio"] <= row.bar
            made |= {"bar": round(row.bar, 4), "pass": better}
        return made

    def run(self, rows: list[Row]) -> int:
        try:
            for row in rows:
                if row.needs_gpu and not self.gpu_count:
                    self.missing(self.ours, row, "needs a GPU")
                else:
                    begin = time.monotonic()
                    self.measure(row)
                    print(f"# {row.id}: {time.monotonic() - begin:.1f} s", flush=True)
                self.save()
        finally:
            for pair in self.pairs.values():
                pair.end()
        ours = {row.id for row in rows}
        return int(any(each["id"] in ours and each["why"] != "needs a GPU" for each in self.absent))

    def save(self) -> None:
        """Writes the rows so far, which a run that is broken off leaves."""
        if self.args.json is None:
            return
        content = {
            "what": "NIXL's Python API over linkspan's plugin and over its own UCX, two processes each"
            if self.args.nixl
            else "linkspan beside NIXL, Mooncake and UCX, two processes each, driven from Python",
            "command": " ".join(["run.py", *sys.argv[1:]]),
            "rows": self.rows,
            "absent": self.absent,
        }
        self.args.json.write_text(json.dumps(content, indent=2) + "\n")


def environment(side: str, row: Row, plugins: pathlib.Path | None) -> dict[str, str]:
    """Mooncake has one protocol for a process: by NVLink between GPUs, else TCP."""
    if side == "mooncake":
        nvlink = (row.local, row.remote) == ("gpu", "gpu")
        return {"MC_INTRANODE_NVLINK": "1"} if nvlink else {}
    if side == "nixl":
        return {"UCX_TLS": "tcp,cuda_copy"} if row.tcp else {}
    if side == "nixl_linkspan":
        more = {"NIXL_PLUGIN_DIR": str(plugins)}
        if row.tcp:
            more["LINKSPAN_BENCH_TCP"] = "1"
        if row.low_latency:
            more["LINKSPAN_BENCH_LOW_LATENCY"] = "1"
        return more
    return {}


def figure(row: Row, nanoseconds: float) -> float:
    if row.unit == "ns":
        return round(nanoseconds / (row.regions * row.pages), 2)  # of a descriptor
    if row.unit == "us":
        return round(nanoseconds / 1e3, 3)
    return round(row.moved / nanoseconds, 3)  # bytes a nanosecond are GB/s


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fetch", type=pathlib.Path, metavar="DIR", help="write the parts there")
    parser.add_argument("--part", type=int, default=50, metavar="MIB", help="the most of one part")
    parser.add_argument("--python", default="3.12", help="--fetch: of the other machine")
    parser.add_argument(
        "--wheels",
        type=pathlib.Path,
        metavar="DIR",
        help="the parts of --fetch, or a folder that has them unpacked",
    )
    parser.add_argument(
        "--nixl",
        type=pathlib.Path,
        metavar="FOLDER",
        help="rows of evidence/nixl.json, with the plugins of FOLDER",
    )
    parser.add_argument("--sides", nargs="+", choices=[*SIDES, "nixl_linkspan"])
    parser.add_argument("--rows", nargs="+", metavar="ID", help="these alone")
    parser.add_argument("--turns", type=int, default=5, help="of each library, after the warm-up")
    parser.add_argument("--host", action="store_true", help="small, in host memory")
    parser.add_argument("--json", type=pathlib.Path, help="write the rows as evidence/ keeps them")
    args = parser.parse_args()
    if args.part < 1 or args.turns < 1:
        parser.error(f"--part {args.part} and --turns {args.turns} have to be 1 at least")
    return args


def main() -> int:
    args = arguments()
    if args.fetch:
        for part in wheels.fetch(args.fetch, args.python, args.part):
            print(f"{part}: {part.stat().st_size / wheels.MIB:.1f} MiB")
        return 0
    rows = nixl_rows() if args.nixl else all_rows()
    rows = [in_host_memory(row) if args.host else row for row in rows]
    if args.rows:
        if unknown := set(args.rows) - {row.id for row in rows}:
            sys.exit(
                f"run.py: --rows {' '.join(sorted(unknown))}: no such row; there are "
                f"{' '.join(row.id for row in rows)}"
            )
        rows = [row for row in rows if row.id in args.rows]
    with tempfile.TemporaryDirectory() as folder:
        site = None
        if args.wheels:
            try:
                site = wheels.unpack(args.wheels.resolve(), pathlib.Path(folder) / "site")
            except RuntimeError as error:
                sys.exit(f"run.py: --wheels: {error}")
        bench = Bench(args, site, 0 if args.host else gpus())
        return bench.run(rows)


if __name__ == "__main__":
    sys.exit(main())
