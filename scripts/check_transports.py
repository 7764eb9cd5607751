#!/usr/bin/env python3
"""Keeps each transport in its folder: who else may include src/transport/NAME/ or name it.

Reads src, include, tools, bench, python and tests/conformance, without comments. Prints
`file:line: what is wrong` and exits 1 if there is anything to print.
"""

import pathlib
import re
import sys

from check_includes import SUFFIXES, without_comments

# Files or folders that may name transports outside their folders, and why.
MAY = {
    "src/transport/registry.cpp": "one line registers each",
    "tools/linkspan/tcpx": "drives an NCCL network plugin without an Engine",
    "bench/tcp_ping.cpp": "measures that transport",
    "bench/tcp_small.cpp": "measures that transport",
    "bench/tcp_transfer.cpp": "measures that transport",
    "bench/tcpx_unpack.cpp": "measures a part of that transport",
    "bench/nccl_net_transfer.cpp": "measures that transport",
    "bench/nccl": "measures plugins by the interface of that transport",
}
# Here NAME.cpp has the subject of a transport, and tests may require one of an Engine.
TESTS = "tests/conformance"
ROOTS = ("src", "include", "tools", "bench", "python", TESTS)
# A word of the API: arguments are called so, and TransferOptions::require takes it.
ORDINARY = {"local"}


def pattern(name: str) -> re.Pattern:
    """Matches an include of the folder, its namespace and, as text, its name or a key of it."""
    ways = [rf'"transport/{name}/', rf"(?<!ip::)\b{name}\s*::"]
    if name not in ORDINARY:
        ways.append(rf'"{name}[".]')
    if "_" in name:
        ways.append(rf"\b{name}\w*")
    return re.compile("|".join(ways))


def check(root: pathlib.Path) -> list[str]:
    folders = sorted(each.name for each in (root / "src/transport").iterdir() if each.is_dir())
    patterns = {name: pattern(name) for name in folders}
    faults = []
    for top in ROOTS:
        for file in sorted((root / top).rglob("*")):
            path = file.relative_to(root)
            if file.suffix not in SUFFIXES or any(path.is_relative_to(each) for each in MAY):
                continue
            text = without_comments(file.read_text(encoding="utf-8", errors="replace"))
            for name, names_it in patterns.items():
                if path.is_relative_to(f"src/transport/{name}"):
                    continue
                for match in names_it.finditer(text):
                    includes = match.group().startswith('"transport/')
                    if top == TESTS and (not includes or path.stem == name):
                        continue
                    line = text.count("\n", 0, match.start()) + 1
                    faults.append(f"{path}:{line}: {match.group()} belongs in src/transport/{name}")
    return faults


if __name__ == "__main__":
    found = check(pathlib.Path(__file__).resolve().parent.parent)
    print("\n".join(found) if found else "transports: ok")
    sys.exit(1 if found else 0)
