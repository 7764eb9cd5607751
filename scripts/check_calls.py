#!/usr/bin/env python3
"""Holds the calls of threads that serve several peers against docs/threading.md.

Runs each gtest program with LIBRARY (tests/support/thread_calls) preloaded and its filter, and
compares the rows that its processes have written, (thread, call, kind of descriptor), with the table
under HEADING: a row of it allows each of its threads each of its calls on each of its kinds. Fails
for a call that it does not allow and for a thread of it that was never seen; says which threads are
not in it and which of its calls did not occur.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HEADING = "## What threads that serve several peers may call"
NOTHING = "nothing"  # a call without a descriptor

Call = tuple[str, str, str]  # thread, call, kind


def table_of(page: str) -> set[Call]:
    """All that the table allows. A cell has its names in backticks."""
    allowed: set[Call] = set()
    text = page.split(HEADING, 1)[1].split("\n## ", 1)[0]
    for line in [each for each in text.splitlines() if each.startswith("|")][2:]:
        threads, calls, kinds = (re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[1:4])
        allowed |= {(t, c, k) for t in threads for c in calls for k in kinds or [NOTHING]}
    return allowed


def calls_of(folder: pathlib.Path) -> set[Call]:
    seen: set[Call] = set()
    for file in folder.iterdir():
        for line in file.read_text().splitlines():
            thread, call, kind = line.split("\t")
            seen.add((thread, call, kind or NOTHING))
    return seen


def compare(seen: set[Call], allowed: set[Call]) -> list[str]:
    threads = {thread for thread, _, _ in allowed}
    faults = [
        f"{thread} calls {call} on {kind}: {HEADING[3:]!r} does not allow it"
        for thread, call, kind in sorted(seen - allowed)
        if thread in threads
    ]
    missing = sorted(threads - {thread for thread, _, _ in seen})
    return faults + [f"{thread}: no test has run a thread of this name" for thread in missing]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=pathlib.Path, required=True)
    parser.add_argument("--preload", type=pathlib.Path, required=True)
    parser.add_argument("--run", nargs=2, metavar=("PROGRAM", "FILTER"), action="append")
    options = parser.parse_args()
    allowed = table_of(options.table.read_text())
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "LD_PRELOAD": str(options.preload),
            "LINKSPAN_CALLS_FILE": f"{folder}/calls",
        }
        for program, tests in options.run:
            subprocess.run([program, f"--gtest_filter={tests}"], env=environment, check=True)
        seen = calls_of(pathlib.Path(folder))
    faults = compare(seen, allowed)
    threads = {thread for thread, _, _ in allowed}
    for thread in sorted({thread for thread, _, _ in seen} - threads):
        print(f"{thread}: not in the table, so it may call anything")
    for thread, call, kind in sorted(allowed - seen):
        print(f"did not occur: {thread}, {call}, on {kind}")
    print("\n".join(faults) if faults else f"calls: ok, {len(seen)} kinds of them")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
