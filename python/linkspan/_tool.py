"""The command-line tool that comes with the package."""

from __future__ import annotations

import importlib
import os
import pathlib
import subprocess
import sys

_TOOL = pathlib.Path(__file__).parent / "bin" / "linkspan"


def doctor() -> int:
    """Prints what works on this machine, what does not, and what to do; the exit code of
    `linkspan doctor`."""
    said = subprocess.run([_TOOL, "doctor"], capture_output=True, text=True, timeout=120)
    print(said.stdout + said.stderr, end="")
    return said.returncode


def main() -> None:
    """`linkspan ...` and `python -m linkspan ...`: becomes the tool. `linkspan nixl` and
    `linkspan nccl` are Python's."""
    if sys.argv[1:2] in (["nixl"], ["nccl"]):
        command = importlib.import_module(f".{sys.argv[1]}", __package__)
        sys.exit(command.main(sys.argv[2:]))
    os.execv(_TOOL, ["linkspan", *sys.argv[1:]])
