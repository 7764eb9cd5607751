"""The examples, each as a user starts it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from typing import Sequence

import pytest
from conftest import REPOSITORY
from two_hosts import ADDRESSES, TwoHosts, may_make_namespaces

EXAMPLES = REPOSITORY / "examples"
LIMIT = 120  # seconds; the machine may be busy, and a sanitizer slow


def run_example(name: str, *options: str, before: Sequence[str] = ()) -> str:
    """Runs an example by the command `before`. Returns what it prints, which ends "verified"."""
    environment = dict(os.environ)
    if "LINKSPAN_CUDA_LIBRARY" in environment:
        environment["CUDA_VISIBLE_DEVICES"] = ""  # torch would find GPUs that this driver has not
    with subprocess.Popen(
        [*before, sys.executable, EXAMPLES / name, "--quick", *options],
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


def sent_whole_by(path: str, printed: str) -> bool:
    """Returns whether a whole request was one transfer to each of three ranks, by this path."""
    line = rf"^whole_request: \d+ bytes in 3 transfers, .* by {path}, verified$"
    return re.search(line, printed, re.MULTILINE) is not None


def test_connector_of_one_host() -> None:
    printed = run_example("kv_connector/main.py")
    assert sent_whole_by(r"\S+", printed), printed


@pytest.mark.skipif(
    not may_make_namespaces(), reason="needs root and `ip`: it makes two network namespaces"
)
def test_connector_of_two_hosts() -> None:
    hosts = TwoHosts()
    try:
        options = ["--tcp", ADDRESSES["far"], "--by", " ".join(hosts.by("far"))]
        printed = run_example("kv_connector/main.py", *options, before=hosts.by("near"))
    finally:
        hosts.end()
    assert sent_whole_by("tcp", printed), printed


def test_connector_says_what_fails() -> None:
    with pytest.raises(AssertionError, match="bind to 192.0.2.1:0: Cannot assign"):
        run_example("kv_connector/main.py", "--tcp", "192.0.2.1")


def test_each_is_short_enough_to_be_read() -> None:
    for file in [*EXAMPLES.glob("python/*.py"), *EXAMPLES.glob("kv_connector/*")]:
        if file.is_file():
            assert len(file.read_text().splitlines()) < 150, file
