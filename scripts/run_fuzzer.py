#!/usr/bin/env python3
"""Runs one fuzzer for 5 minutes, or over its seeds once.

    run_fuzzer.py [--replay] BUILD_FOLDER FUZZER

Seeds are tests/fuzz/corpus/NAME; what is new goes to BUILD_FOLDER/corpus/NAME, and an input that
fails to BUILD_FOLDER/found, with the command that runs it again.
"""

import pathlib
import subprocess
import sys

SEEDS = pathlib.Path(__file__).resolve().parent.parent / "tests/fuzz/corpus"
GRACE = 60  # to load the seeds and to end


def main() -> int:
    replay = sys.argv[1:2] == ["--replay"]
    build, program = map(pathlib.Path, sys.argv[1 + replay : 3 + replay])
    seconds = 0 if replay else 300
    name = program.name.removesuffix("_fuzz")
    if not (SEEDS / name).is_dir():
        sys.exit(f"{program} has no seeds: {SEEDS / name} is no folder")
    corpus, found = build / "corpus" / name, build / "found"
    corpus.mkdir(parents=True, exist_ok=True)
    found.mkdir(exist_ok=True)
    command = [program, "-runs=0" if replay else f"-max_total_time={seconds}",
               "-timeout=20", "-rss_limit_mb=2048", "-max_len=16384", "-print_final_stats=1",
               "-print_funcs=0",  # a symbolizer's two pipes would count as fds that stay open
               f"-artifact_prefix={found}/{name}-",
               corpus, SEEDS / name]
    if name == "frames":  # its threads are at work between two inputs
        command.insert(1, "-detect_leaks=0")
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=seconds + GRACE, check=False)
        code, text = done.returncode, done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as late:
        code, text = 1, (late.stdout or b"").decode(errors="replace") + "\nit does not end"
    runs = [line for line in text.splitlines() if "number_of_executed_units" in line]
    print(f"{program.name}: {'ok' if code == 0 else f'FAILED ({code})'}, {seconds} s,",
          runs[-1].split()[-1] if runs else "no", "inputs")
    if code == 0:
        return 0
    print("\n".join(text.splitlines()[-80:]))
    print(f"again: {program} INPUT (the line `Test unit written to` names it)")
    return 1


if __name__ == "__main__":
    sys.exit(main())
