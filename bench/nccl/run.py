#!/usr/bin/env python3
"""NCCL over linkspan's plugin beside NCCL's own sockets, between two GPUs of a host, in one run.

run.py --plugin FILE [--sockets bench_tcp_transfer] [--json FILE] [--turns N] [--sides NAME ...]

P2P and shared memory are off, so all bytes go over the loopback interface. Each side has two ranks,
processes of rank.py, and the sides take turns; a value is the median of the turns. Two ranks on one
GPU are two hosts for NCCL. CPU seconds are of both processes. --sockets adds as many bare sockets.
What could not be measured is told under `absent`. Exit: 0 all sides have all rows, or there is no
GPU; 1 not.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import select
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, TextIO

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from gpus import gpus  # noqa: E402

OURS = "linkspan"
SIDES = {
    OURS: {},
    "default": {},
    "4x4": {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"},
    "2x8": {"NCCL_SOCKET_NTHREADS": "2", "NCCL_NSOCKS_PERTHREAD": "8"},
    "4x4-512KiB": {  # the chunks that the plugin sets
        "NCCL_SOCKET_NTHREADS": "4",
        "NCCL_NSOCKS_PERTHREAD": "4",
        "NCCL_P2P_NET_CHUNKSIZE": "524288",
    },
}
SIZES = [8, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30]
BARS_AT = 256 << 20
LIMIT_S = 60.0  # of a turn of a side
NEEDS_GPU = "needs a GPU"


class Failed(Exception):
    """Says why a side has no figures."""


class Side:
    """What was measured of NCCL in one environment, by two processes of `program`."""

    def __init__(
        self,
        name: str,
        plugin: pathlib.Path,
        gpu_count: int,
        program: str = "rank.py",
        more: dict[str, str] | None = None,
    ) -> None:
        self.name, self.gpu_count, self.program = name, gpu_count, program
        self.environment = {
            "NCCL_P2P_DISABLE": "1",
            "NCCL_SHM_DISABLE": "1",
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET",
            "NCCL_NET_PLUGIN": str(plugin) if name == OURS else "none",
            **SIDES[name],
            **(more or {}),
        }
        self.version = ""
        self.took: dict[tuple[str, int], list[dict[str, Any]]] = {}

    def turn(self, sizes: list[int]) -> None:
        """Runs both ranks from their start to their end."""
        with tempfile.TemporaryDirectory() as folder:
            logs = [pathlib.Path(folder) / f"rank{rank}" for rank in range(2)]
            ranks = [self.start(rank, sizes, logs[rank]) for rank in range(2)]
            try:
                told = self.follow(ranks)
                self.used_its_network(logs)
            except Failed as error:
                words = "; ".join(last_words(log) for log in logs)
                raise Failed(f"{error}: {words}") from None
            finally:
                for each in ranks:
                    each.kill()
                    each.wait()
                    each.stdout.close()
                    each.stdin.close()
        for first, second in zip(*told):
            slower = max(first["us"], second["us"])
            self.took.setdefault((first["operation"], first["bytes"]), []).append(
                {"us": slower, "cpu_s": first["cpu_s"] + second["cpu_s"]}
            )

    def start(self, rank: int, sizes: list[int], log: pathlib.Path) -> subprocess.Popen[str]:
        hosts = {} if self.gpu_count > 1 else {"NCCL_HOSTID": f"host{rank}"}
        command = [sys.executable, HERE / self.program, rank, rank % self.gpu_count, *sizes]
        with log.with_suffix(".err").open("w") as errors:
            return subprocess.Popen(
                [str(each) for each in command],
                env={**os.environ, **self.environment, **hosts, "NCCL_DEBUG_FILE": str(log)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def follow(self, ranks: list[subprocess.Popen[str]]) -> list[list[dict[str, Any]]]:
        """Reads what the ranks tell, which both do for each measurement."""
        stop = time.monotonic() + LIMIT_S
        lines = [Lines(each.stdout, stop) for each in ranks]
        try:
            ranks[1].stdin.write(json.dumps(lines[0].next()) + "\n")
            ranks[1].stdin.flush()
        except OSError:
            raise Failed("rank 1 has ended") from None
        told: list[list[dict[str, Any]]] = [[], []]
        self.version = [each.next() for each in lines][0]["version"]
        while True:
            both = [each.next() for each in lines]
            if "end" in both[0]:
                return told
            for own, what in zip(told, both):
                own.append(what)

    def used_its_network(self, logs: list[pathlib.Path]) -> None:
        wanted = "Using network " + (OURS if self.name == OURS else "Socket")
        for log in logs:
            if wanted.lower() not in log.read_text(errors="replace").lower():
                raise Failed(f"NCCL does not say \"{wanted}\"")

    def median(self, operation: str, size: int, what: str) -> float:
        return statistics.median(each[what] for each in self.took[operation, size])


class Lines:
    """Lines of JSON from a process, until a deadline."""

    def __init__(self, file: TextIO, stop: float) -> None:
        self.file, self.stop = file, stop
        self.rest = b""

    def next(self) -> dict[str, Any]:
        while b"\n" not in self.rest:
            left = self.stop - time.monotonic()
            if left <= 0 or not select.select([self.file], [], [], left)[0]:
                raise Failed(f"no answer of a rank within {LIMIT_S:.0f} s")
            got = os.read(self.file.fileno(), 65536)
            if not got:
                raise Failed("a rank has ended")
            self.rest += got
        line, self.rest = self.rest.split(b"\n", 1)
        return json.loads(line)


def last_words(log: pathlib.Path) -> str:
    said = [
        each.read_text(errors="replace").strip()[-300:]
        for each in (log, log.with_suffix(".err"))
        if each.exists()
    ]
    return " | ".join(each for each in said if each)


def size_name(size: int) -> str:
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift:
            return f"{size >> shift}{unit}"
    return f"{size}B"


def bare_sockets(program: pathlib.Path) -> tuple[float, str]:
    """Returns GB/s of as many bare sockets, and how they were measured."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "tcp.json"
        command = [str(program), "--only", "host_host.1GiB", "--json", str(file)]
        try:
            subprocess.run(command, check=False, timeout=120, stdout=subprocess.DEVNULL)
            row = json.loads(file.read_text())["rows"][0]
        except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
            raise Failed(f"{program.name}: {error}") from None
    return row["ceiling"], row["ceiling_how"]


def rows_of(sides: dict[str, Side], sockets: tuple[float, str] | None) -> list[Any]:
    rows: list[Any] = []
    others = {name: each for name, each in sides.items() if name != OURS}
    for operation, size in sides[OURS].took:
        row = row_of(sides[OURS], others, operation, size)
        rows.append(row)
        if size == BARS_AT and operation != "allgather":
            rows += rows_with_bars(row, others, sockets, operation)
    return rows


def row_of(ours: Side, others: dict[str, Side], operation: str, size: int) -> dict[str, Any]:
    """The plugin's figure, and those of NCCL's sockets beside it."""
    there = {name: each for name, each in others.items() if (operation, size) in each.took}
    row = {"id": f"{operation}.{size_name(size)}", **figure(ours, operation, size)}
    row["beside"] = [
        {"how": f"NCCL's sockets, {name}", **figure(each, operation, size)}
        for name, each in there.items()
    ]
    if row["unit"] == "us" and there:
        best = min(each["value"] for each in row["beside"])
        row |= bar(row["value"], best, "the best of NCCL's sockets", 1.0, less=True)
    return row


def figure(side: Side, operation: str, size: int) -> dict[str, Any]:
    us = side.median(operation, size, "us")
    made: dict[str, Any] = {"runs": len(side.took[operation, size]), "verified": True}
    if size < 1 << 20:
        return {"value": round(us, 2), "unit": "us", **made}
    cpu = side.median(operation, size, "cpu_s")
    made["cpu_s_per_gb"] = round(cpu / size * 1e9, 3)
    return {"value": round(size / us / 1e3, 3), "unit": "GB/s", **made}


def rows_with_bars(
    row: dict[str, Any], others: dict[str, Side], sockets: tuple[float, str] | None, operation: str
) -> list[dict[str, Any]]:
    rates = {
        name: figure(each, operation, BARS_AT)["value"]
        for name, each in others.items()
        if (operation, BARS_AT) in each.took
    }
    default = rates.pop("default", None)
    against = []
    if default is not None:
        against.append(("vs_default", default, "NCCL's sockets, default", 5.0))
    if rates:
        name = max(rates, key=lambda each: rates[each])
        against.append(("vs_tuned", rates[name], f"the best tuned sockets of NCCL: {name}", 2.0))
    if sockets is not None:
        against.append(("vs_sockets", *sockets, 0.8))
    value, same = row["value"], {key: row[key] for key in ("value", "unit", "runs", "verified")}
    return [
        {"id": f"{row['id']}.{name}", **same, **bar(value, ceiling, how, at)}
        for name, ceiling, how, at in against
    ]


def bar(value: float, ceiling: float, how: str, at: float, less: bool = False) -> dict[str, Any]:
    ratio = round(value / ceiling, 4)
    better = ratio <= at if less else ratio >= at
    return {"ceiling": ceiling, "ceiling_how": how, "ratio": ratio, "bar": at, "pass": better}


def write(
    file: pathlib.Path | None, what: str, count: int, rows: list[Any], absent: list[Any]
) -> None:
    if file is None:
        return
    command = " ".join([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]])
    content = {"what": what, "command": command, "gpus": count, "rows": rows, "absent": absent}
    file.write_text(json.dumps(content, indent=2) + "\n")


def tell(rows: list[Any], absent: list[Any]) -> int:
    """Prints all, and returns the exit code."""
    for each in [*rows, *absent]:
        print(json.dumps(each), flush=True)
    return int(any(each["why"] != NEEDS_GPU for each in absent))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plugin", type=pathlib.Path, required=True)
    parser.add_argument("--sockets", type=pathlib.Path, help="bench_tcp_transfer")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="bytes")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    count = gpus()
    absent = [] if count else [{"id": "all", "why": NEEDS_GPU}]
    sockets = None
    if args.sockets and count:
        try:
            sockets = bare_sockets(args.sockets)
        except Failed as error:
            absent.append({"id": "vs_sockets", "why": str(error)})
    sides = {name: Side(name, args.plugin.resolve(), count) for name in args.sides}

    def save() -> list[Any]:
        """Writes the rows so far, which a run that is broken off leaves."""
        rows = rows_of(sides, sockets) if OURS in sides else []
        version = next((each.version for each in sides.values() if each.version), "")
        what = f"NCCL {version} over linkspan's plugin and over its own sockets, by loopback"
        write(args.json, what, count, rows, absent)
        return rows

    for number in range(args.turns if count else 0):
        for name, side in sides.items():
            begin = time.monotonic()
            try:
                side.turn(args.sizes)
            except Failed as error:
                absent.append({"id": name, "why": f"turn {number + 1}: {error}"})
            print(f"# turn {number + 1} of {name}: {time.monotonic() - begin:.1f} s", flush=True)
            save()
    return tell(save(), absent)


if __name__ == "__main__":
    sys.exit(main())
