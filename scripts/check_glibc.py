#!/usr/bin/env python3
"""Fails if a library or program asks for a newer glibc than it may.

    check_glibc.py VERSION FILE...    a FILE is a library, a program or a wheel with such

Prints each symbol that is newer than VERSION, and each of glibc that is asked for without a version,
which an older glibc may lack.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

UNDEFINED = re.compile(r"^ *\d+: .* (GLOBAL|WEAK) +\w+ +UND ([^\s@]+)(?:@(\S+))?", re.MULTILINE)
DEFINED = re.compile(r"^ *\d+: .* \d+ ([^\s@]+)@@?GLIBC_", re.MULTILINE)


def symbols(file: pathlib.Path | str) -> str:
    command = ["readelf", "-W", "--dyn-syms", str(file)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def faults_of(table: str, newest: str, of_glibc: set[str]) -> list[str]:
    """Reads what `readelf -W --dyn-syms` prints of a file."""
    faults = []
    for bind, name, version in UNDEFINED.findall(table):
        if not version and bind == "GLOBAL" and name in of_glibc:
            faults.append(f"{name} without a version")
        number = re.fullmatch(r"GLIBC_([\d.]+)", version)
        if number is not None:
            parts = ([int(part) for part in each.split(".")] for each in (number[1], newest))
            if next(parts) > next(parts):
                faults.append(f"{name} of glibc {number[1]}")
        elif version.startswith("GLIBC_"):  # GLIBC_PRIVATE is of one release alone
            faults.append(f"{name} of {version}")
    return sorted(faults)


def check(newest: str, files: list[pathlib.Path]) -> int:
    of_glibc: set[str] = set()
    for library in ("libc.so.6", "libm.so.6"):
        found = subprocess.check_output(["g++", f"-print-file-name={library}"], text=True).strip()
        of_glibc |= set(DEFINED.findall(symbols(found)))
    read, faulty = 0, 0
    for file in files:
        if file.read_bytes()[:4] == b"\x7fELF":
            faults = faults_of(symbols(file), newest, of_glibc)
            read, faulty = read + 1, faulty + bool(faults)
            print("".join(f"{file}: {fault}\n" for fault in faults), end="")
    print(f"{read} files ask for glibc {newest} at most" if not faulty else f"{faulty} of {read} files fail")
    return 1 if faulty or not read else 0


def main() -> int:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    files = []
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(sys.argv[2:]):
            if name.endswith(".whl"):
                unpacked = pathlib.Path(folder) / str(number)
                zipfile.ZipFile(name).extractall(unpacked)
                files += sorted(each for each in unpacked.rglob("*") if each.is_file())
            else:
                files.append(pathlib.Path(name))
        return check(sys.argv[1], files)


if __name__ == "__main__":
    sys.exit(main())
