"""`linkspan nccl`, and the wheel that has the plugin alone. LINKSPAN_NCCL_PLUGIN names the plugin."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import zipfile

FOLDER = pathlib.Path(__file__).resolve().parents[1]
PLUGIN = os.environ.get("LINKSPAN_NCCL_PLUGIN") or str(
    FOLDER.parents[1] / "out/release/nccl/libnccl-net-linkspan.so"
)
LIMIT_S = 60


def run(*arguments: str | pathlib.Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | more, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def test_it_names_the_plugin() -> None:
    ran = run("-m", "linkspan", "nccl")
    assert os.path.realpath(ran.stdout.strip()) == os.path.realpath(PLUGIN), ran.stderr


def test_it_moves_bytes_through_the_plugin() -> None:
    ran = run("-m", "linkspan", "nccl", "--check", NCCL_SOCKET_IFNAME="lo")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0] == "over lo 127.0.0.1"
    assert ran.stdout.splitlines()[-1] == "8 MiB moved and verified"


def test_it_says_what_is_wrong() -> None:
    ran = run("-m", "linkspan", "nccl", "--check", NCCL_SOCKET_IFNAME="nowhere0")
    assert ran.returncode == 1 and '"nowhere0" names no interface' in ran.stderr


def test_it_shows_as_many_devices_as_it_is_told() -> None:
    program = "import linkspan.nccl._rank as r, sys; print(r.Rank(sys.argv[1]).devices())"
    for devices, said in (("1", "1\n"), ("4", "4\n")):
        ran = run("-c", program, PLUGIN, NCCL_SOCKET_IFNAME="lo", LINKSPAN_NCCL_DEVICES=devices)
        assert ran.stdout == said, ran.stderr
    ran = run("-c", program, PLUGIN, NCCL_SOCKET_IFNAME="lo", LINKSPAN_NCCL_DEVICES="17")
    assert 'LINKSPAN_NCCL_DEVICES="17": set a whole number from 1 to 16' in ran.stderr


def test_the_wheel_puts_it_beside_nccl(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "linkspan-0.1.0-cp312-abi3-manylinux_2_36_x86_64.whl"
    ran = run(FOLDER / "wheel/make_wheel.py", source, PLUGIN, tmp_path)
    made = tmp_path / "linkspan_nccl-0.1.0-py3-none-manylinux_2_36_x86_64.whl"
    assert ran.stdout == f"{made}\n", ran.stderr
    site = tmp_path / "site"
    with zipfile.ZipFile(made) as wheel:
        wheel.extractall(site)
    # Found there where linkspan's own package has none.
    found = run(
        "-c", "import linkspan.nccl as n, sys; n.__file__ = '/'; print(n.plugin())",
        PYTHONPATH=os.pathsep.join([os.environ["PYTHONPATH"], str(site)]),
    )  # fmt: skip
    assert found.stdout.strip() == str(site / "nvidia/nccl/lib/libnccl-net-linkspan.so"), ran.stderr
