#!/usr/bin/env python3
"""Fetches what integrations/ is tested beside, once, by integrations/versions.txt.

    fetch_integrations.py NAME...              the pinned wheels, into the cache
    fetch_integrations.py --newest NAME...     the newest ones, beside them; says which they are

Each is unpacked into $XDG_CACHE_HOME/linkspan/integrations/NAME (newest/NAME), and is installed
nowhere. What cannot be had is said, and its tests skip. To be run by the Python that will use it.
"""

import argparse
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
FOLDER = CACHE / "linkspan/integrations"
LIMIT_S = 1200
# Imports of Ray, which the tests start. Of the others they read the source.
NEEDED = {
    "ray": ["click==8.5.1", "filelock==4.3.1", "jsonschema==4.26.0", "msgpack==1.2.4",
            "packaging==26.4", "protobuf==7.36.2", "pyyaml==6.0.4", "requests==2.34.2"],
}  # fmt: skip


def pins(file: pathlib.Path = ROOT / "integrations/versions.txt") -> dict[str, str]:
    """Returns each line of the form `name==version  sha256:... [as folder]` by its folder, which is
    its name if there is none."""
    lines = [line.split("#")[0].strip() for line in file.read_text().splitlines()]
    return {
        line.split(" as ")[-1].strip() if " as " in line else line.split("==")[0]: line
        for line in lines
        if line
    }


def pip(*arguments: str) -> bool:
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-compile",
               "--disable-pip-version-check", "--only-binary", ":all:", *arguments]  # fmt: skip
    try:
        return subprocess.run(command, timeout=LIMIT_S).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def fetch(name: str, line: str) -> bool:
    """Returns whether the pinned wheel is there."""
    folder = FOLDER / name
    pin = folder / "pin"
    if pin.is_file() and pin.read_text() == line:
        return True
    print(f"== fetching {line.split()[0]}", flush=True)
    requirement, *hashes = line.split(" as ")[0].split()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as work:
        listed = pathlib.Path(work) / "list.txt"
        listed.write_text(" ".join([requirement, *(f"--hash={each}" for each in hashes)]))
        site, needed = f"{work}/site", NEEDED.get(name)
        fetched = pip("--no-deps", "--require-hashes", "--target", site, "-r", str(listed))
        if not fetched or needed and not pip("--target", site, *needed):
            print(f"== {requirement} could not be fetched: its tests are skipped", flush=True)
            return False
        (pathlib.Path(site) / "pin").write_text(line)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(site, folder)
    return True


def fetch_newest(name: str, line: str) -> None:
    folder = FOLDER / "newest" / name
    shutil.rmtree(folder, ignore_errors=True)
    if not pip("--no-deps", "--target", str(folder), name):
        print(f"== the newest {name} could not be fetched", flush=True)
        return
    (found,) = importlib.metadata.distributions(name=name, path=[str(folder)])
    print(f"== the newest {name} is {found.version}, pinned is {line.split()[0]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--newest", action="store_true")
    parser.add_argument("names", nargs="+")
    options = parser.parse_args()
    known = pins()
    for name in options.names:
        if name not in known:
            sys.exit(f"{name} has no line in integrations/versions.txt: {', '.join(known)}")
        if options.newest:
            fetch_newest(name, known[name])
        else:
            fetch(name, known[name])


if __name__ == "__main__":
    main()
