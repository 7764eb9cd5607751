#!/usr/bin/env python3
"""Holds what the documents promise against the tests.

On the pages below each row of a table, each bullet and each paragraph is a claim, but for what is
between `<!-- no claims -->` and `<!-- claims -->`, headings and blocks of code. A claim names its
tests in backticks: `Suite.Name` of gtest (an instance's prefix may stand before it, * is any text),
`file_test.test_name` of Python, a test of ctest, or a fuzzer (`name_fuzz`); or it says [hardware] or
[two hosts], where no machine of CI can show it. Each row of the table "I want to change X" of
docs/architecture.md names a file that exists. Prints each claim without a test, each name that no
test has and each row without its file, and exits 1 if there are any.
"""

import fnmatch
import pathlib
import re
import sys

PAGES = ("docs/faults.md", "docs/security.md", "docs/wire_protocol.md", "docs/operating.md")
CHANGES = ("docs/architecture.md", "## I want to change X")  # the page and heading of the table
GTEST = re.compile(r"^TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)", re.M)
INSTANCE = re.compile(r"INSTANTIATE_TEST_SUITE_P\(\s*(\w+),\s*(\w+)")
PYTHON = re.compile(r"^ *(?:async )?def (test_\w+)\(", re.M)
CTEST = re.compile(r"(?:linkspan_(?:test|gtest)|add_executable)\((\w+)")
NAME = re.compile(r"`((?:\w+/)?[A-Z]\w*\.[\w*]+(?:/[\w*]+)?|\w+_test\.test_\w+)`")
ELSEWHERE = re.compile(r"\[(?:hardware|two hosts)\]")


def tests_of(root: pathlib.Path) -> set[str]:
    names: set[str] = set()
    instances: dict[str, set[str]] = {}
    for file in sorted([*(root / "tests").rglob("*.cpp"), *(root / "vcache").rglob("*.cpp")]):
        text = file.read_text()
        names |= {f"{suite}.{name}" for suite, name in GTEST.findall(text)}
        for prefix, suite in INSTANCE.findall(text):
            instances.setdefault(suite, set()).add(prefix)
    for name in sorted(names):
        suite = name.split(".")[0]
        names |= {f"{prefix}/{name}" for prefix in instances.get(suite, ())}
    for file in sorted(root.rglob("*_test.py")):
        if "out" not in file.relative_to(root).parts:
            names |= {f"{file.stem}.{name}" for name in PYTHON.findall(file.read_text())}
    return names


def ctests_of(root: pathlib.Path) -> set[str]:
    files = sorted((root / "cmake").glob("*.cmake"))
    fuzzers = {file.stem for file in (root / "tests" / "fuzz").glob("*_fuzz.cpp")}
    return fuzzers | {name for file in files for name in CTEST.findall(file.read_text())}


def claims_of(text: str) -> list[tuple[int, str]]:
    """(line, text) of each row, bullet and paragraph."""
    claims, counts, rows, code, goes_on = [], True, 0, False, False
    for number, line in enumerate(text.splitlines(), 1):
        fence, mark = line.startswith("```"), line.strip() in ("<!-- no claims -->", "<!-- claims -->")
        code ^= fence
        if mark:
            counts = line.strip() == "<!-- claims -->"
        rows = rows + 1 if line.startswith("|") else 0
        if not counts or code or fence or mark or not line.strip() or line.startswith("#"):
            goes_on = False
        elif rows == 1 or rows == 2:  # the head and its rule
            goes_on = False
        elif goes_on and rows == 0 and not line.startswith("- "):
            claims[-1] = (claims[-1][0], f"{claims[-1][1]} {line}")
        else:
            claims.append((number, line))
            goes_on = rows == 0
    return claims


def check(root: pathlib.Path) -> list[str]:
    tests, ctests, faults = tests_of(root), ctests_of(root), []
    for page in PAGES:
        for number, claim in claims_of((root / page).read_text()):
            where, named = f"{page}:{number}", NAME.findall(claim)
            of_ctest = [each for each in re.findall(r"`(\w+)`", claim) if each in ctests]
            if not named and not of_ctest and not ELSEWHERE.search(claim):
                faults.append(f"{where}: no test holds this: {claim[:60]}")
            for name in named:
                if not fnmatch.filter(tests, name) and not fnmatch.filter(tests, f"*/{name}"):
                    faults.append(f"{where}: no test is called {name}")
    return faults


def check_files(root: pathlib.Path) -> list[str]:
    """Checks the table of CHANGES: a row ends with one path from the root, in backticks."""
    page, heading = CHANGES
    section = (root / page).read_text().partition(f"\n{heading}\n")[2].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    faults = [] if rows else [f"{page}: no table under {heading!r}"]
    for row in rows:
        path = re.fullmatch(r"`([^`]+)`", row.split("|")[-2].strip())
        if path is None:
            faults.append(f"{page}: a row without one file: {row}")
        elif not (root / path[1]).is_file():
            faults.append(f"{page}: no file {path[1]}")
    return faults


if __name__ == "__main__":
    top = pathlib.Path(__file__).resolve().parent.parent
    problems = check(top) + check_files(top)
    print("\n".join(problems) if problems else "claims: ok")
    sys.exit(1 if problems else 0)
