#!/usr/bin/env python3
"""Runs the fuzzers, two at a time: 30 s each, or 5 minutes each with LINKSPAN_LONG=1.

    run_fuzzers.py BUILD_FOLDER FUZZER...

Seeds are tests/fuzz/corpus/NAME; what is new goes to BUILD_FOLDER/corpus/NAME, and an input that
fails to BUILD_FOLDER/found, with the command that runs it again.
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys

SEEDS = pathlib.Path(__file__).resolve().parent.parent / "tests/fuzz/corpus"
AT_ONCE = 2
GRACE = 60  # to load the seeds and to end


def run(program: pathlib.Path, build: pathlib.Path, seconds: int) -> tuple[int, str]:
    name = program.name.removesuffix("_fuzz")
    corpus, found = build / "corpus" / name, build / "found"
    corpus.mkdir(parents=True, exist_ok=True)
    found.mkdir(exist_ok=True)
    command = [program, f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=2048",
               "-max_len=16384", "-print_final_stats=1", f"-artifact_prefix={found}/{name}-",
               corpus, SEEDS / name]
    if name == "frames":  # its threads are at work between two inputs
        command.insert(1, "-detect_leaks=0")
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=seconds + GRACE, check=False)
    except subprocess.TimeoutExpired as late:
        return 1, (late.stdout or b"").decode(errors="replace") + "\nit does not end"
    return done.returncode, done.stdout.decode(errors="replace")


def main() -> int:
    build, programs = pathlib.Path(sys.argv[1]), [pathlib.Path(p) for p in sys.argv[2:]]
    seconds = 300 if os.environ.get("LINKSPAN_LONG") == "1" else 30
    if not programs or not all((SEEDS / p.name.removesuffix("_fuzz")).is_dir() for p in programs):
        sys.exit("no fuzzers, or one without seeds")
    failed = False
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for program, (code, text) in zip(programs,
                                         pool.map(lambda p: run(p, build, seconds), programs)):
            runs = [line for line in text.splitlines() if "number_of_executed_units" in line]
            print(f"{program.name}: {'ok' if code == 0 else f'FAILED ({code})'}, {seconds} s,",
                  runs[-1].split()[-1] if runs else "no", "inputs", flush=True)
            if code != 0:
                failed = True
                print("\n".join(text.splitlines()[-80:]))
                print(f"again: {program} INPUT (the line `Test unit written to` names it)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
