#!/usr/bin/env python3
"""Says of each test that failed why, for readers of the end of a log.

    tell_failures.py CTEST.xml       what `ctest --output-junit CTEST.xml` has written

Of gtest's output the names of the tests that failed, and the first failures and sanitizers' reports
with the lines after them; of any other output its last lines.
"""

import itertools
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

LINES = 8
REPORT_LINES = 24  # of a sanitizer: two stacks
FAILURES = 3  # of one program
COLUMNS = 240
NAME = re.compile(r"\[  FAILED  \] ([^ ,]+)")
REPORT = re.compile(r"(Thread|Address|Leak|Memory)Sanitizer[:,]|: runtime error: ")
FAILURE = re.compile(rf": (Failure|error:)|{REPORT.pattern}")


def reasons(output: str) -> list[str]:
    lines = output.splitlines()
    failures = [i for i, line in enumerate(lines) if FAILURE.search(line)]
    names = dict.fromkeys(found[1] for line in lines if (found := NAME.match(line)))
    told = [f"[  FAILED  ] {name}" for name in names if "." in name]
    if not failures:
        return told + lines[-LINES:]
    for i in failures[:FAILURES]:
        # Up to the line with the test's name.
        most = REPORT_LINES if REPORT.search(lines[i]) else LINES
        ended = itertools.takewhile(lambda line: not line.startswith("[ RUN"), lines[i:][:most])
        told += [line[:COLUMNS] for line in ended]
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
