#!/usr/bin/env python3
"""Says of each test that failed why, for readers of the end of a log.

    tell_failures.py CTEST.xml       what `ctest --output-junit CTEST.xml` has written

Of gtest's output the names of the tests that failed, and the first failures with the lines after
them; of a sanitizer's report what it found and our own frames of its stacks; of any other output its
last lines.
"""

import itertools
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

LINES = 8
FRAMES = 3  # of one of a sanitizer's stacks
REPORT_LINES = 12
FAILURES = 3  # of one program
COLUMNS = 240
NAME = re.compile(r"\[  FAILED  \] ([^ ,]+)")
REPORT = re.compile(r"(WARNING|ERROR): \w+Sanitizer: |: runtime error: ")
END_OF_REPORT = re.compile(r"SUMMARY: |\[ RUN")
FRAME = re.compile(r" *#\d+ ")
OUR_FRAME = re.compile(r" *#\d+ (.*?) \S*?((?:bench|include|integrations|src|tests|tools)/[^\s:]+:\d+)")
ALLOCATOR = "tests/unit/no_memory.cpp:"  # the frames of each allocation of linkspan_unit
FAILURE = re.compile(rf": (Failure|error:)|{REPORT.pattern}")


def brief(report: list[str]) -> list[str]:
    """Returns what a sanitizer found, with the first of our frames of each stack, by file and line."""
    told, frames = [], 0
    for line in itertools.takewhile(lambda line: not END_OF_REPORT.match(line), report):
        if not FRAME.match(line):
            frames = 0
            told += [line] if line.strip() else []
        elif ALLOCATOR not in line and (found := OUR_FRAME.match(line)) and frames < FRAMES:
            frames += 1
            told.append(f"    {found[2]} {found[1]}")
    return told[:REPORT_LINES]


def reasons(output: str) -> list[str]:
    lines = output.splitlines()
    failures = [i for i, line in enumerate(lines) if FAILURE.search(line)]
    names = dict.fromkeys(found[1] for line in lines if (found := NAME.match(line)))
    told = [f"[  FAILED  ] {name}" for name in names if "." in name]
    if not failures:
        return told + lines[-LINES:]
    for i in failures[:FAILURES]:
        # Up to the line with the test's name.
        after = itertools.takewhile(lambda line: not line.startswith("[ RUN"), lines[i:][:LINES])
        found = brief(lines[i:]) if REPORT.search(lines[i]) else after
        told += [line[:COLUMNS] for line in found]
    return told


def main(file: pathlib.Path) -> None:
    for case in ElementTree.parse(file).iter("testcase"):
        if case.get("status") != "fail":
            continue
        print(f"FAILED {case.get('name')}")
        for line in reasons(case.findtext("system-out") or ""):
            print(f"    {line}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
