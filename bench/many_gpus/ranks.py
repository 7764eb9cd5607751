"""The processes of rank.py, or of a program like it."""

from __future__ import annotations

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from child import Child  # noqa: E402


def child_of(
    name: str, count: int, gpus: int, program: pathlib.Path = HERE / "rank.py"
) -> Child:
    """Starts a rank of `count`, which has one GPU of `gpus`, or "bare"."""
    command = [sys.executable, str(program)]
    return Child(lambda pipe: [*command, str(pipe), name, str(count), str(gpus)], dict(os.environ))
