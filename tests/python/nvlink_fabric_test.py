"""What explain() says of two processes whose GPUs stand in one NVLink fabric, as in racks of several
hosts. The simulated driver and its NVML say so; no such machine was tried."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import REPOSITORY

CLUSTER, OTHER = "00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100"
NAME = "NVLink across hosts"
LIMIT_S = 60

needs_simulated = pytest.mark.skipif(
    "fake_cuda" not in os.environ.get("LINKSPAN_CUDA_LIBRARY", ""), reason="needs the simulated driver"
)

COMMON = """
import sys
import linkspan
from cuda_memory import Driver, Gpu

driver = Driver()
memory = Gpu(driver, 0, bytes(4096))
engine = linkspan.Engine(security="loopback_only")
region = engine.register_memory((memory.address, memory.bytes))
"""
OWNER = COMMON + """
engine.publish("pages", region)
print(engine.listen("tcp:127.0.0.1:0"), flush=True)
sys.stdin.read()
"""
ASKER = COMMON + """
peer = engine.connect(sys.argv[1])
remote = peer.lookup("pages")
for refused in peer.explain("write", region, remote, bytes=8).refused:
    print(f"{refused.path}: {refused.reason}")
"""


def explained(here: str | None, there: str | None) -> str:
    """Returns the refused paths between GPUs of these fabrics, a line each."""

    def start(program: str, fabric: str | None, *arguments: str) -> subprocess.Popen[str]:
        path = f"{REPOSITORY}/tests/support:{os.environ.get('PYTHONPATH', '')}"
        return subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env=os.environ | {"PYTHONPATH": path} | ({"FAKE_CUDA_FABRIC": fabric} if fabric else {}),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    with start(OWNER, there) as owner:
        assert owner.stdout is not None
        address = owner.stdout.readline().strip()
        with start(ASKER, here, address) as asker:
            told = asker.communicate(timeout=LIMIT_S)[0]
            assert asker.returncode == 0
        owner.communicate(timeout=LIMIT_S)
        assert owner.returncode == 0
    return told


@needs_simulated
def test_nvlink_across_hosts_is_refused_by_name() -> None:
    told = explained(f"{CLUSTER}:7", f"{CLUSTER}:7")
    assert told.startswith(f"{NAME}: ")
    assert "clique 7" in told
    assert "within a host only" in told


@needs_simulated
@pytest.mark.parametrize(
    ("here", "there"),
    [
        (None, None),
        (f"{CLUSTER}:7", None),
        (None, f"{CLUSTER}:7"),
        (f"{CLUSTER}:7", f"{CLUSTER}:8"),
        (f"{CLUSTER}:7", f"{OTHER}:7"),
        (f"{'0' * 32}:7", f"{'0' * 32}:7"),
    ],
)
def test_gpus_that_nvlink_does_not_join_have_no_such_path(here: str | None, there: str | None) -> None:
    assert NAME not in explained(here, there)
