#!/usr/bin/env python3
"""Other releases of NCCL over linkspan's plugin beside their own sockets, and a step of training.

releases.py --fetch DIR [VERSION ...]                 from PyPI, small enough to travel
releases.py --libraries DIR --plugin FILE [--json FILE]

What --fetch writes, DIR/VERSION.so.xz, has code for GPUs of sm_90 alone: the rest is blank. Without
--libraries torch's own NCCL alone is measured. A row's id ends with the release. Exit: 0 all releases have
all rows, or there is no GPU; 1 not.
"""

from __future__ import annotations

import argparse
import lzma
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from gpus import gpus  # noqa: E402
from run import NEEDS_GPU, OURS, Failed, Side, rows_of, tell, write  # noqa: E402

VERSIONS = ["2.27.7", "2.32.3"]
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 27, 28)]
SIDES = [OURS, "default"]
SIZES = [8, 256 << 20]
STEPS = 20
SM, CUBIN, MAGIC = 90, 2, 0xBA55ED50


def fetch(folder: pathlib.Path, versions: list[str]) -> None:
    """SystemExit: pip's last lines."""
    folder.mkdir(parents=True, exist_ok=True)
    for version in versions:
        with tempfile.TemporaryDirectory() as name:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", name]
            command += ["--only-binary=:all:", f"nvidia-nccl-cu13=={version}"]
            for each in PLATFORMS:
                command += ["--platform", each]
            pip = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
            if pip.returncode != 0:
                sys.exit(f"pip download: {pip.stderr[-600:]}")
            (wheel,) = pathlib.Path(name).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                library = bytearray(archive.read("nvidia/nccl/lib/libnccl.so.2"))
        blank_other_gpus(library)
        file = folder / f"{version}.so.xz"
        file.write_bytes(lzma.compress(library, preset=3))
        print(f"{file}: {file.stat().st_size >> 20} MiB", flush=True)


def sections(elf: bytearray) -> Iterator[tuple[str, int, int]]:
    """The name, offset and size of each section of a 64-bit ELF file."""
    (headers,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    all_of_them = [struct.unpack_from("<IIQQQQ", elf, headers + size * i) for i in range(count)]
    for name, _, _, _, offset, length in all_of_them:
        begin = all_of_them[names][4] + name
        yield elf[begin : elf.index(0, begin)].decode(), offset, length


def blank_other_gpus(library: bytearray) -> None:
    """Writes zeros over what only other GPUs load, and what only a linker reads."""
    for name, offset, size in sections(library):
        if name == "__nv_relfatbin":
            library[offset : offset + size] = bytes(size)
        elif name == ".nv_fatbin":
            for kind, sm, begin, length in images(library, offset, offset + size):
                if (kind, sm) != (CUBIN, SM):
                    library[begin : begin + length] = bytes(length)


def images(library: bytearray, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The kind, compute capability, offset and size of each image of a row of fat binaries."""
    while at + 16 <= end:
        magic, _, header, size = struct.unpack_from("<IHHQ", library, at)
        if magic == 0:  # between two
            at += 8
            continue
        if magic != MAGIC:
            raise ValueError(f"{magic:#x} at {at:#x} begins no fat binary")
        at, behind = at + header, at + header + size
        while at < behind:
            kind, _, before, length = struct.unpack_from("<HHIQ", library, at)
            (sm,) = struct.unpack_from("<I", library, at + 28)
            yield kind, sm, at + before, length
            at += before + length


def exchanges(plugin: pathlib.Path, library: pathlib.Path | None, count: int) -> list[Any]:
    """Failed: what a side lacks. Returns the rows of run.py."""
    more = {"LINKSPAN_BENCH_NCCL": str(library)} if library else {}
    sides = {name: Side(name, plugin, count, more=more) for name in SIDES}
    for each in sides.values():
        each.turn(SIZES)
    version = sides[OURS].version
    rows = [row for row in rows_of(sides, None) if ".vs_" not in row["id"]]
    return [{**row, "id": f"{row['id']}.{version}"} for row in rows]


def training(plugin: pathlib.Path, count: int) -> list[Any]:
    """Failed: what a side lacks. Returns a row with a step's time by the plugin, and by sockets, of
    torch's own NCCL: torch does not load beside all others."""
    sides = {name: Side(name, plugin, count, "train_step.py") for name in SIDES}
    for each in sides.values():
        each.turn([STEPS])
    figures = {name: next(iter(each.took.values()))[0]["us"] / 1e3 for name, each in sides.items()}
    same = {"unit": "ms", "runs": STEPS, "verified": True}
    beside = [
        {"how": f"NCCL's sockets, {name}", "value": round(value, 2), **same}
        for name, value in figures.items()
        if name != OURS
    ]
    id = f"train_step.{sides[OURS].version}"
    return [{"id": id, "value": round(figures[OURS], 2), **same, "beside": beside}]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fetch", type=pathlib.Path, metavar="DIR")
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--libraries", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--plugin", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    if args.fetch:
        fetch(args.fetch, args.versions)
        return 0
    if args.plugin is None:
        parser.error("--plugin: give libnccl-net-linkspan.so, or --fetch a folder")
    packed = sorted(args.libraries.glob("*.so.xz")) if args.libraries else []
    if args.libraries and not packed:
        parser.error(f"--libraries: {args.libraries} has no *.so.xz; --fetch makes them")
    count, rows, absent, plugin = gpus(), [], [], args.plugin.resolve()

    def attempt(what: str, measure: Callable[..., list[Any]], *arguments: Any) -> None:
        try:
            rows.extend(measure(plugin, *arguments, count))
        except Failed as error:
            absent.append({"id": what, "why": str(error)})

    if count:
        attempt("torch's NCCL", exchanges, None)
        attempt("train_step", training)
    with tempfile.TemporaryDirectory() as name:
        library = pathlib.Path(name) / "libnccl.so.2"
        for each in packed if count else []:
            with lzma.open(each) as source, library.open("wb") as target:
                shutil.copyfileobj(source, target)
            attempt(each.name, exchanges, library)
    if not count:
        absent.append({"id": "all", "why": NEEDS_GPU})
    what = "releases of NCCL over linkspan's plugin and over their own sockets, by loopback"
    write(args.json, what, count, rows, absent)
    return tell(rows, absent)


if __name__ == "__main__":
    sys.exit(main())
