"""How many GPUs this machine has, without a package of Python's."""

from __future__ import annotations

import subprocess


def gpus() -> int:
    try:
        lines = subprocess.check_output(["nvidia-smi", "-L"], text=True, timeout=30).splitlines()
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in lines)
