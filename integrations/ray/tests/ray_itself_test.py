"""The example beside Ray itself: two actors and the driver, and the death of an actor."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import linkspan
import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[1]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
RAY = CACHE / "linkspan/integrations/ray"
PACKAGES = str(pathlib.Path(linkspan.__file__).parents[1])
DEBIAN = "/usr/bin/python3"  # of Debian's python3-torch
LIMIT_S = 240  # Ray starts its own daemons, and its workers are nice


def has_torch(python: str) -> bool:
    probe = "import torch, numpy, sys; sys.exit(sys.version_info[:2] != (%d, %d))"
    command = [python, "-c", probe % sys.version_info[:2]]
    return os.path.exists(python) and subprocess.run(
        command, capture_output=True, timeout=LIMIT_S
    ).returncode == 0  # fmt: skip


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_example(library: str) -> None:
    if not (RAY / "pin").is_file():
        pytest.skip("needs Ray, which ./dev test fetches")
    python = sys.executable
    if library == "torch":
        python = next((each for each in (python, DEBIAN) if has_torch(each)), "")
        if not python:
            pytest.skip("needs torch")
    with tempfile.TemporaryDirectory(prefix="lsr") as folder:  # short: it has Ray's sockets
        environment = os.environ | {
            "HOME": folder,
            "RAY_TMPDIR": folder,
            "RAY_AUTH_MODE": "disabled",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "LINKSPAN_SOCKET_DIR": f"{folder}/linkspan",
            "PYTHONPATH": os.pathsep.join((PACKAGES, str(RAY))),
        }
        with subprocess.Popen(
            [python, FOLDER / "example.py"],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        ) as running:  # fmt: skip
            try:
                printed, _ = running.communicate(timeout=LIMIT_S)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 0, printed
    assert printed.splitlines()[-1] == f"{library}: verified", printed
    assert "RayDirectTransportError" in printed, printed
