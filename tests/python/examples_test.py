"""The examples, each as a user starts it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys

import pytest
from conftest import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
LIMIT = 120  # seconds; the machine may be busy, and a sanitizer slow


def run_example(name: str, *options: str) -> str:
    """Runs an example, and returns what it prints. Its last line says that all is verified."""
    environment = dict(os.environ)
    if "LINKSPAN_CUDA_LIBRARY" in environment:
        environment["CUDA_VISIBLE_DEVICES"] = ""  # torch would find GPUs that this driver has not
    with subprocess.Popen(
        [sys.executable, EXAMPLES / name, "--quick", *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            printed, _ = running.communicate(timeout=LIMIT)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)  # what it has spawned, too
    assert running.returncode == 0, printed
    assert "verified" in printed.splitlines()[-1], printed
    return printed


@pytest.mark.parametrize("name", ["python/kv_pages.py", "python/weights.py", "python/offload.py"])
def test_example(name: str) -> None:
    run_example(name)


@pytest.mark.parametrize(
    "options, path",
    [([], r"\S+"), (["--tcp", "127.0.0.1", "--by", "env LINKSPAN_LOG_LEVEL=ERROR"], "tcp")],
    ids=["unix", "tcp"],
)
def test_connector_sends_a_request_to_each_rank_by_one_transfer(options, path: str) -> None:
    printed = run_example("kv_connector/main.py", *options)
    assert re.search(rf"^whole_request: \d+ bytes in 3 transfers, .* by {path}, ", printed, re.M)


def test_connector_says_what_fails() -> None:
    with pytest.raises(AssertionError, match="bind to 192.0.2.1:0: Cannot assign"):
        run_example("kv_connector/main.py", "--tcp", "192.0.2.1")


def test_each_is_short_enough_to_be_read() -> None:
    for file in [*EXAMPLES.glob("python/*.py"), *EXAMPLES.glob("kv_connector/*")]:
        if file.is_file():
            assert len(file.read_text().splitlines()) < 150, file
