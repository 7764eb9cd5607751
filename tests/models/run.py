#!/usr/bin/env python3
"""Checks the models of how threads sleep and wake each other, with spin.

Searches each *.pml whole, then again with each BROKEN_... that it names, which is a mistake that
the library avoids: a model in which spin does not find that mistake shows nothing. Prints one line
for each search. Exits 1 if a model fails, a mistake is not found or a search was not complete.
Needs spin and cc. To see the steps of an error: spin -a [-DBROKEN_...] MODEL.pml, cc -DSAFETY
-DREACH pan.c, ./a.out -i, spin -t -p -g [-DBROKEN_...] MODEL.pml.

Usage: run.py [MODEL...]     (default: all)
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
DEPTH, LOG2_OF_HASH = 20_000, 20


def run(*command, cwd):
    done = subprocess.run(
        command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]}: {done.stdout}")
    return done.stdout


def search(model, broken):
    """Returns whether spin has found what it should, and the line that says so."""
    with tempfile.TemporaryDirectory() as folder:
        defines = [f"-D{broken}"] if broken else []
        run("spin", "-a", *defines, model, cwd=folder)
        run("cc", "-O0", "-w", "-DSAFETY", "-o", "pan", "pan.c", cwd=folder)
        told = run("./pan", f"-m{DEPTH}", f"-w{LOG2_OF_HASH}", "-n", cwd=folder)
    errors = int(re.search(r"errors: (\d+)", told)[1])
    states = int(re.search(r"(\d+) states, stored", told)[1])
    found = re.search(r"pan:\d+: (.*) \(at depth", told)
    what = found[1] if found else "nothing is lost"
    cut_short = re.search("max search depth too small|Search not completed", told)
    complete = bool(broken) or not cut_short
    well = complete and (errors != 0) == bool(broken)
    end = "" if well else ": the search is not complete" if not complete else ": WRONG"
    return well, f"{model.stem} {broken or 'as it is'}: {states} states, {what}{end}"


def main():
    models = [HERE / f"{name}.pml" for name in sys.argv[1:]] or sorted(HERE.glob("*.pml"))
    searches = []
    for model in models:
        mistakes = sorted(set(re.findall(r"\bBROKEN_\w+", model.read_text())))
        if not mistakes:
            sys.exit(f"{model.name} names no mistake, so its search shows nothing")
        searches += [(model, broken) for broken in ["", *mistakes]]
    well = bool(searches)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for each_well, line in pool.map(search, *zip(*searches)):
            print(line, flush=True)
            well &= each_well
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
