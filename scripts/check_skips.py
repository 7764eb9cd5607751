#!/usr/bin/env python3
"""Holds gtest's and pytest's results against tests/allowed_skips.txt.

    check_skips.py --mode cpu --xml RESULT.xml --run PROGRAM [ARGS]   run, then check
    check_skips.py ... --parts 3 --run PROGRAM            one of three parts, by FAKE_CUDA_SEED
    check_skips.py ... --pytest --run PYTHON -m pytest [ARGS]
    check_skips.py --report RESULT.xml...     what ran, what was skipped and why, what failed

A test may skip only if a line `name glob | reason` lists it and the message holds that reason. A run
without any test fails.
Without a driver (--mode cpu) a listed test that "needs a GPU" and ran all the same is a failure too.
"""

import argparse
import fnmatch
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

ALLOWED = pathlib.Path(__file__).resolve().parent.parent / "tests/allowed_skips.txt"


def read_allowed(file: pathlib.Path) -> list[tuple[str, str]]:
    lines = [line.strip() for line in file.read_text().splitlines()]
    entries = [line.split("|", 1) for line in lines if line and not line.startswith("#")]
    if any(len(entry) != 2 for entry in entries):
        sys.exit(f"{file}: each line is `test name glob | reason`")
    return [(glob.strip(), reason.strip()) for glob, reason in entries]


def read_results(file: pathlib.Path) -> tuple[list[str], dict[str, str], list[str]]:
    """Names that ran, {skipped name: why}, names that failed."""
    ran, skips, failed = [], {}, []
    for case in ElementTree.parse(file).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        skipped = case.find("skipped")
        if skipped is not None:
            message = skipped.get("message") or ""
            if message in ("", "collection skipped"):  # pytest, of a whole file
                message = skipped.text or ""
            skips[name] = " ".join(
                message.split("\n", 1)[-1].split()
            )  # the first line is file:line
        elif case.get("status", "run") == "run":  # pytest has none
            ran.append(name)
            if case.find("failure") is not None or case.find("error") is not None:
                failed.append(name)
    return ran, skips, failed


def faults_of(
    ran: list[str], skips: dict[str, str], allowed: list[tuple[str, str]], mode: str
) -> list[str]:
    faults = []
    for name, why in skips.items():
        if not any(fnmatch.fnmatchcase(name, glob) and reason in why for glob, reason in allowed):
            faults.append(f"{name} skipped and is not listed for that: {why}")
    if mode == "cpu":
        for name in ran:
            if any(
                fnmatch.fnmatchcase(name, glob) and "needs a GPU" in reason
                for glob, reason in allowed
            ):
                faults.append(f"{name} is listed as needing a GPU and ran without one")
    return faults


def part_of(parts: int) -> int:
    """Which of the parts runs; all of them where LINKSPAN_LONG is set: 0."""
    if parts <= 1 or os.environ.get("LINKSPAN_LONG"):
        return 0
    return int(os.environ.get("FAKE_CUDA_SEED") or 0) % parts + 1


def report(files: list[pathlib.Path]) -> None:
    all_failed = []  # told last, where who reads only the end of a log finds them
    for file in files:
        ran, skips, failed = read_results(file)
        all_failed += [f"FAILED {file.parent.parent.name}.{file.stem}: {name}" for name in failed]
        part = ElementTree.parse(file).getroot().get("part")
        print(
            f"{file.parent.parent.name}.{file.stem}: "
            + (f"part {part}, " if part else "")
            + f"{len(ran)} ran, {len(failed)} failed, {len(skips)} skipped"
        )
        by_reason: dict[str, list[str]] = {}
        for name, why in skips.items():
            by_reason.setdefault(why, []).append(name)
        for why, names in by_reason.items():
            # Facts that the simulated driver does not show are all told.
            told = names if "not simulated" in why else names[:3]
            more = f" and {len(names) - len(told)} more" if len(names) > len(told) else ""
            print(f"    skipped, {why}: {', '.join(told)}{more}")
    for line in all_failed:
        print(line)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--allowed", type=pathlib.Path, default=ALLOWED)
    parser.add_argument("--mode", choices=["cpu", "simulated", "gpu"], default="cpu")
    parser.add_argument("--xml", type=pathlib.Path)
    parser.add_argument("--report", nargs="+", type=pathlib.Path)
    parser.add_argument("--pytest", action="store_true")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--run", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if args.report:
        report(args.report)
        return 0

    code = 0
    if args.run:
        args.xml.unlink(missing_ok=True)
        # Both make the folder of the file.
        result = f"--junitxml={args.xml}" if args.pytest else f"--gtest_output=xml:{args.xml}"
        if part := part_of(args.parts):
            os.environ.update(GTEST_TOTAL_SHARDS=str(args.parts), GTEST_SHARD_INDEX=str(part - 1))
        code = subprocess.run(args.run + [result], check=False).returncode
        if part and args.xml.exists():
            tree = ElementTree.parse(args.xml)
            tree.getroot().set("part", f"{part} of {args.parts}")
            tree.write(args.xml)
    if not args.xml.exists():
        print(f"no result file: the program ended early with {code}")
        return 1
    ran, skips, _ = read_results(args.xml)
    faults = faults_of(ran, skips, read_allowed(args.allowed), args.mode)
    if not ran and not skips and args.parts == 1:  # one of several parts may have no test
        faults.append("no test ran: does the filter match?")
    print("\n".join(faults) or f"{len(ran)} ran, {len(skips)} skipped as listed")
    return 1 if code or faults else 0


if __name__ == "__main__":
    sys.exit(main())
