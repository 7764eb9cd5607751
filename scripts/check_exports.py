#!/usr/bin/env python3
"""Fails unless a shared object exports exactly what a C header declares.

Usage: check_exports.py FILE HEADER

These are the functions that the header marks NVLINK_TRANSFER_API or LINKSPAN_C_API, those of CUDA's
names weakly; what is of C++ in linkspan:: may stand beside them.
"""

import pathlib
import re
import subprocess
import sys

OF_CPP = re.compile(r"(?:\w+ )*linkspan::")
DECLARED = re.compile(r"^(?:NVLINK_TRANSFER|LINKSPAN_C)_API [^(;]*?(\w+)\(", re.MULTILINE)


def exports_of(file: str) -> dict[str, str]:
    """{name: nm's letter}."""
    lines = subprocess.run(
        ["nm", "-DC", "--defined-only", file], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return {fields[2]: fields[1] for fields in (line.split(maxsplit=2) for line in lines)}


def faults_of(exports: dict[str, str], declared: set[str]) -> list[str]:
    of_c = {name for name in exports if not OF_CPP.match(name)}
    faults = [f"exported but not declared: {name}" for name in of_c - declared]
    faults += [f"declared but not exported: {name}" for name in declared - of_c]
    for name in declared & exports.keys():
        if (exports[name] in "WV") != name.startswith("cuda"):
            faults.append(f"{name} is {exports[name]}: CUDA's names are weak, no others")
    return sorted(faults)


def main() -> int:
    file, header = sys.argv[1:]
    exports, declared = exports_of(file), set(DECLARED.findall(pathlib.Path(header).read_text()))
    if not declared:
        sys.exit(f"{header} declares nothing")
    faults = faults_of(exports, declared)
    print("\n".join(faults + [f"{len(exports)} symbols exported, {len(faults)} faults"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
