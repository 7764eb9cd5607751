"""The examples, each as a user starts it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from conftest import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
LIMIT = 120  # seconds; the machine may be busy, and a sanitizer slow


@pytest.mark.parametrize(
    "name", ["python/kv_pages.py", "python/weights.py", "python/offload.py", "kv_connector/main.py"]
)
def test_example(name: str) -> None:
    environment = dict(os.environ)
    if "LINKSPAN_CUDA_LIBRARY" in environment:
        environment["CUDA_VISIBLE_DEVICES"] = ""  # torch would find GPUs that this driver has not
    with subprocess.Popen(
        [sys.executable, EXAMPLES / name, "--quick"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            said, _ = running.communicate(timeout=LIMIT)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)  # what it has spawned, too
    assert running.returncode == 0, said
    assert "verified" in said.splitlines()[-1], said


def test_each_is_short_enough_to_be_read() -> None:
    for file in [*EXAMPLES.glob("python/*.py"), *EXAMPLES.glob("kv_connector/*")]:
        if file.is_file():
            assert len(file.read_text().splitlines()) < 150, file
