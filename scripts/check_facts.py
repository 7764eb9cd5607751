#!/usr/bin/env python3
"""Holds what comments claim about the driver against tests/driver_facts.

A comment in src/ or a paragraph of docs/ cites `fact: Topic.Name`. Each that is cited must be a
test there, and each test must be cited in src/ or in docs/cuda_notes.md: a claim without a test
and a test without a claim are faults. Prints them and exits 1 if there are any.
"""

import pathlib
import re
import sys

TEST = re.compile(r"^TEST_F\((\w+),\s*(\w+)\)", re.M)
CITATION = re.compile(r"\bfact: (\w+\.\w+)")
WRAPPED = re.compile(r"[ \t]*\n[ \t]*(?://+[<!]?|\*)?[ \t]*")
OURS = {".hpp", ".cpp", ".h", ".cu", ".cuh"}
FOLDERS = {"src": OURS, "vcache/native/src": OURS, "include": OURS, "docs": {".md"}}


def cited_in(text: str) -> set[str]:
    """A comment may break its line behind the colon."""
    return set(CITATION.findall(WRAPPED.sub(" ", text)))


def check(root: pathlib.Path) -> list[str]:
    tests = set()
    for file in sorted((root / "tests/driver_facts").glob("*.cpp")):
        tests |= {f"{topic}.{name}" for topic, name in TEST.findall(file.read_text())}
    faults, cited = [], set()
    for folder, suffixes in FOLDERS.items():
        for file in sorted((root / folder).rglob("*")):
            if file.suffix not in suffixes:
                continue
            path, found = file.relative_to(root).as_posix(), cited_in(file.read_text())
            faults += [f"{path}: no test shows {fact}" for fact in sorted(found - tests)]
            if folder.endswith("src") or path == "docs/cuda_notes.md":
                cited |= found
    return faults + [f"tests/driver_facts: nothing cites {fact}" for fact in sorted(tests - cited)]


if __name__ == "__main__":
    problems = check(pathlib.Path(__file__).resolve().parent.parent)
    print("\n".join(problems) if problems else "facts: ok")
    sys.exit(1 if problems else 0)
