#!/usr/bin/env python3
"""Applies each of tests/mutants/*.patch to a copy of the sources; its named test must turn red.

    mutants.py [NAME...]    build and run; all without names; --times N runs each mutant N times
    mutants.py --check      only whether every patch applies

A patch begins with lines that say what it breaks, which test must notice, and over which driver
(`fake`, the simulated one, or `none`):

    # what: Each copy writes one byte more.
    # red: linkspan_unit --gtest_filter=GpuCopies.CopiesExactlyThePieces
    # driver: fake

The copy lies in out/mutants with a build folder of its own, which is kept, so that a second run
compiles what a patch touches and nothing else. The tests must be green there without any patch.
"""

import argparse
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PATCHES = ROOT / "tests/mutants"
TREE = ROOT / "out/mutants"
BUILD = TREE / "out/release"
TIMEOUT_S = 120


@dataclasses.dataclass
class Mutant:
    file: pathlib.Path
    what: str
    target: str
    arguments: list[str]
    driver: str

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def touched(self) -> list[str]:
        return re.findall(r"^\+\+\+ b/(\S+)$", self.file.read_text(), re.M)


class Wrong(Exception):
    """Why a mutant shows nothing."""


def read(file: pathlib.Path) -> Mutant:
    head = dict(re.findall(r"^# (what|red|driver): (.+)$", file.read_text(), re.M))
    missing = {"what", "red", "driver"} - head.keys()
    if missing:
        raise Wrong(f"its head lacks {', '.join(sorted(missing))}")
    target, *arguments = head["red"].split()
    if head["driver"] not in ("fake", "none"):
        raise Wrong(f"\"{head['driver']}\" is no driver")
    if not arguments or not arguments[0].startswith("--gtest_filter="):
        raise Wrong("it names no test")
    return Mutant(file, head["what"], target, arguments, head["driver"])


def apply(patch: pathlib.Path, tree: pathlib.Path, *options: str) -> None:
    # A folder inside a repository: git is not to look for that one, whose paths are others.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    ran = subprocess.run(
        ["git", "apply", *options, patch],
        cwd=tree, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode != 0:
        raise Wrong(f"it does not apply: {ran.stderr.strip()}")


def sources() -> set[str]:
    listed = ["git", "ls-files", "-coz", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in names.split("\0") if name and (ROOT / name).is_file()}


def refresh(names: set[str]) -> None:
    """Writes what differs and nothing else, for ninja looks at times."""
    for name in names:
        ours, theirs = ROOT / name, TREE / name
        if theirs.is_file() and theirs.read_bytes() == ours.read_bytes():
            continue
        theirs.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ours, theirs)


def copy_sources() -> None:
    names = sources()
    TREE.mkdir(parents=True, exist_ok=True)
    for folder in ("src", "include", "tests", "tools", "bench", "vcache"):
        for file in (TREE / folder).rglob("*"):
            if file.is_file() and file.relative_to(TREE).as_posix() not in names:
                file.unlink()
    refresh(names)


def build(targets: set[str]) -> None:
    environment = {**os.environ, "CCACHE_BASEDIR": str(TREE), "CCACHE_NOHASHDIR": "1"}
    log = TREE / "out/build.log"
    log.parent.mkdir(exist_ok=True)
    commands = [["cmake", "--build", BUILD, f"-j{os.cpu_count()}", "--target", *sorted(targets)]]
    if not (BUILD / "build.ninja").exists():
        commands.insert(0, ["cmake", "--preset", "release"])
    with log.open("w") as out:
        for command in commands:
            code = subprocess.call(command, cwd=TREE, env=environment, stdout=out, stderr=out)
            if code != 0:
                lines = log.read_text().splitlines()[-20:]
                raise Wrong("it does not compile:\n" + "\n".join(lines))


def run(mutant: Mutant) -> subprocess.CompletedProcess:
    driver = BUILD / "libfake_cuda.so" if mutant.driver == "fake" else "/nonexistent/libcuda.so.1"
    try:
        return subprocess.run(
            [BUILD / mutant.target, *mutant.arguments],
            cwd=TREE, env={**os.environ, "LINKSPAN_CUDA_LIBRARY": str(driver)},
            capture_output=True, text=True, errors="replace", check=False, timeout=TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Wrong(f"its test did not end within {TIMEOUT_S} s") from None


def expect_green(mutant: Mutant) -> None:
    build({mutant.target})  # without the one before
    ran = run(mutant)
    if ran.returncode != 0:
        raise Wrong(f"its test is red without it:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    if "[       OK ]" not in ran.stdout:
        raise Wrong("its test did not run, or was skipped")


def expect_red(mutant: Mutant, times: int) -> None:
    apply(mutant.file, TREE)
    try:
        build({mutant.target})
        for number in range(1, times + 1):
            ran = run(mutant)
            crashed = ran.returncode < 0 and "[ RUN      ]" in ran.stdout
            if not crashed and "[  FAILED  ]" not in ran.stdout:
                raise Wrong(f"its test stayed green (run {number} of {times})")
    finally:
        refresh(set(mutant.touched))


def chosen(names: list[str]) -> list[pathlib.Path]:
    files = {file.stem: file for file in sorted(PATCHES.glob("*.patch"))}
    unknown = set(names) - files.keys()
    if unknown or not files:
        sys.exit(f"no such mutant: {', '.join(sorted(unknown))}; there are {', '.join(files)}")
    return [files[name] for name in names or files]


def main() -> int:
    parser = argparse.ArgumentParser(usage="mutants.py [--check] [--times N] [NAME...]")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--times", type=int, default=1)
    arguments = parser.parse_args()

    wrong: dict[str, str] = {}
    mutants = []
    for file in chosen(arguments.names):
        try:
            mutants.append(read(file))
            apply(file, ROOT, "--check")
        except Wrong as why:
            wrong[file.stem] = str(why)
    if not arguments.check and not wrong:
        copy_sources()
        print("building without a mutant", flush=True)
        try:
            build({mutant.target for mutant in mutants} | {"fake_cuda"})
        except Wrong as why:
            sys.exit(str(why))
        for mutant in mutants:
            try:
                expect_green(mutant)
                expect_red(mutant, arguments.times)
                print(f"red    {mutant.name}: {' '.join(mutant.arguments)}", flush=True)
            except Wrong as why:
                wrong[mutant.name] = str(why)
                print(f"WRONG  {mutant.name}", flush=True)
    for name, why in wrong.items():
        print(f"tests/mutants/{name}.patch: {why}")
    if not wrong:
        print(f"mutants: {len(mutants)} {'apply' if arguments.check else 'turned their tests red'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
