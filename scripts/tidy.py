#!/usr/bin/env python3
"""clang-tidy over src, tools, bench and python.

A file whose preprocessed text was clean before is not read again.
Usage: tidy.py BUILD_FOLDER CACHE_FOLDER   (the build was configured with clang)
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHECKED = [str(ROOT / top) + "/" for top in ("src", "tools", "bench", "python")]


def preprocess(entry: dict) -> bytes:
    args = shlex.split(entry["command"])
    if pathlib.Path(args[0]).name == "ccache":
        del args[0]
    at = args.index("-o")
    del args[at : at + 2]
    args[args.index("-c")] = "-E"
    # Comments are kept: NOLINT is one. Paths are not: another checkout finds its own results.
    return subprocess.run(
        args + ["-C", "-P"], cwd=entry["directory"], check=True, capture_output=True
    ).stdout


def main() -> int:
    build, cache = sys.argv[1], pathlib.Path(sys.argv[2])
    cache.mkdir(parents=True, exist_ok=True)
    version = subprocess.run(["clang-tidy", "--version"], check=True, capture_output=True).stdout
    config = (ROOT / ".clang-tidy").read_bytes()

    def check(entry: dict) -> tuple[bool, str]:
        """(was it read, what is wrong)"""
        try:
            text = preprocess(entry)
        except subprocess.CalledProcessError as error:
            return True, error.stderr.decode(errors="replace")
        name = os.path.relpath(entry["file"], ROOT).encode()
        key = cache / hashlib.sha256(b"\0".join([version, config, name, text])).hexdigest()
        if key.exists():
            key.touch()
            return False, ""
        run = subprocess.run(
            ["clang-tidy", "-quiet", "-p", build, entry["file"]],
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode == 0:
            key.touch()
        return True, "" if run.returncode == 0 else run.stdout + run.stderr

    entries = [
        entry
        for entry in json.loads((pathlib.Path(build) / "compile_commands.json").read_text())
        if entry["file"].endswith(".cpp") and entry["file"].startswith(tuple(CHECKED))
    ]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(check, entries))
    faults = [fault for _, fault in results if fault]
    for fault in faults:
        print(fault)
    anew = sum(read for read, _ in results)
    print(f"clang-tidy: {len(entries)} files, {anew} read anew, {len(faults)} with faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
