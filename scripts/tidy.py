#!/usr/bin/env python3
"""Runs clang-tidy over src, tools, bench, python, vcache/native and the plugins of
integrations.

    tidy.py BUILD_FOLDER          files whose preprocessed text is not in scripts/tidy.ok
    tidy.py BUILD_FOLDER --all    every file, its functions analyzed to any depth

BUILD_FOLDER was configured with clang. scripts/tidy.ok has a line for each file that was found
clean: its path and the hash of its preprocessed text without comments but for those of NOLINT, of
.clang-tidy and of the version of clang-tidy. It is written anew by each run; commit it with the
change that it belongs to.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLEAN = ROOT / "scripts/tidy.ok"
FOLDERS = ("src", "tools", "bench", "python", "vcache/native/src", "vcache/native/bench",
           "integrations/nixl/src", "integrations/nccl/src")
CHECKED = [str(ROOT / top) + "/" for top in FOLDERS]
# Finds most of what the analyzer finds, in a fifth of the time for the largest files.
SHALLOW = [f"--extra-arg={arg}" for arg in ("-Xclang", "-analyzer-config", "-Xclang", "mode=shallow")]


def preprocess(entry: dict) -> bytes:
    args = shlex.split(entry["command"])
    if pathlib.Path(args[0]).name == "ccache":
        del args[0]
    at = args.index("-o")
    del args[at : at + 2]
    args[args.index("-c")] = "-E"

    def run(*options: str) -> bytes:
        command = [*args, *options]
        return subprocess.run(
            command, cwd=entry["directory"], check=True, capture_output=True
        ).stdout

    exempt = b"\n".join(line for line in run("-C", "-P").split(b"\n") if b"NOLINT" in line)
    # Another checkout has other paths, and finds its own results.
    return (run("-P") + exempt).replace(str(ROOT).encode(), b"")


def sources(build: pathlib.Path) -> list[dict]:
    """Returns an entry for each checked file; compiled together, files have their batch's flags."""
    entries = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        files = [entry["file"]]
        if "/Unity/" in entry["file"]:
            text = pathlib.Path(entry["file"]).read_text()
            files = re.findall(r'^#include "(.+)"$', text, re.M)
        for file in files:
            if file.endswith(".cpp") and file.startswith(tuple(CHECKED)):
                command = entry["command"].replace(entry["file"], file)
                entries[file] = {**entry, "file": file, "command": command}
    return list(entries.values())


def main() -> int:
    build, deep = pathlib.Path(sys.argv[1]), "--all" in sys.argv[2:]
    version = subprocess.run(["clang-tidy", "--version"], check=True, capture_output=True).stdout
    version = re.search(rb"version \d+", version)[0]
    config = (ROOT / ".clang-tidy").read_bytes()
    known = set(CLEAN.read_text().splitlines()) if CLEAN.exists() else set()
    entries = sources(build)
    lines, faults, anew = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "compile_commands.json").write_text(json.dumps(entries))

        def check(entry: dict) -> tuple[str, bool, str]:
            """Returns the file's line, whether it was read, and what is wrong with it."""
            try:
                text = preprocess(entry)
            except subprocess.CalledProcessError as error:
                return "", True, error.stderr.decode(errors="replace")
            name = os.path.relpath(entry["file"], ROOT)
            key = hashlib.sha256(b"\0".join([version, config, name.encode(), text])).hexdigest()
            line = f"{name} {key[:32]}"
            if line in known and not deep:
                return line, False, ""
            run = subprocess.run(
                ["clang-tidy", "-quiet", "-p", folder, *([] if deep else SHALLOW), entry["file"]],
                capture_output=True,
                text=True,
                check=False,
            )
            return line, True, "" if run.returncode == 0 else run.stdout + run.stderr

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for line, read, fault in pool.map(check, entries):
                anew += read
                if fault:
                    faults.append(fault)
                else:
                    lines.append(line)
    CLEAN.write_text("\n".join(sorted(lines)) + "\n")
    for fault in faults:
        print(fault)
    print(f"clang-tidy: {len(entries)} files, {anew} read anew, {len(faults)} with faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
