#!/usr/bin/env python3
"""Says of each test that failed why, for who reads only the end of a log.

    tell_failures.py CTEST.xml       what `ctest --output-junit CTEST.xml` has written

Of gtest's output each failure with the lines after it, of any other output its last lines.
"""

import itertools
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

LINES = 12
FAILURES = 5  # of one program


def reasons(output: str) -> list[str]:
    lines = output.splitlines()
    failures = [i for i, line in enumerate(lines) if re.search(r": (Failure|error:)", line)]
    if not failures:
        return lines[-LINES:]
    told: list[str] = []
    for i in failures[:FAILURES]:
        # Up to the line with the test's name.
        ended = itertools.takewhile(lambda line: not line.startswith("[ RUN"), lines[i:][:LINES])
        told += ended
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
