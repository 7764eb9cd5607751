"""The command `linkspan nixl`, and what the plugin shows of itself."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import zipfile

import linkspan.nixl
import pytest
from agents import NEWEST, OLDEST, PLUGINS, WHEELS, FOLDER, idle_processes, start  # noqa: F401

LIMIT_S = 60
PACKAGES = str(PLUGINS.parents[1])
LIBRARY = PLUGINS / "libplugin_LINKSPAN.so"


def run(*arguments: str, path: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "linkspan", "nixl", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (PACKAGES, path)))} | more,
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip


def test_folder() -> None:
    assert run("--folder").stdout == run().stdout == f"{PLUGINS}\n"


def test_folder_of_another_name(start, tmp_path: pathlib.Path) -> None:  # noqa: F811
    for _ in range(2):
        ran = run("--as", "UCX", XDG_CACHE_HOME=str(tmp_path))
    folder = pathlib.Path(ran.stdout.strip())
    assert {each.name for each in folder.iterdir()} == {"libplugin_UCX.so", "liblinkspan.so.0"}
    process = start(backend="UCX", plugins=folder)
    process.ask("open", "a", num_threads="4")
    ran = run("--as", "ucx/..", XDG_CACHE_HOME=str(tmp_path))
    assert ran.returncode == 2 and "'ucx/..' is no name of a backend" in ran.stderr


def test_folder_beside_what_a_killed_process_left(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = pathlib.Path(linkspan.nixl.folder_as("UCX"))
    left = place / f"new-{os.getpid()}"  # or what another container's process of this pid makes
    left.symlink_to("anywhere")
    (place / "libplugin_UCX.so").unlink()
    assert linkspan.nixl.folder_as("UCX") == str(place)
    assert (place / "libplugin_UCX.so").resolve() == LIBRARY.resolve() and left.is_symlink()


def test_install_and_check(tmp_path: pathlib.Path) -> None:
    site = WHEELS / NEWEST
    if not (site / "nixl_cu12").is_dir():
        pytest.skip("needs NIXL, which ./dev test fetches")
    stand_in = str(FOLDER / "tests" / "stand_in")
    for wheel in (NEWEST, OLDEST):
        ran = run("--check", path=os.pathsep.join((str(WHEELS / wheel), stand_in)))
        assert "plugin interface 1: 1 MiB moved and verified" in ran.stdout, ran.stderr
    (tmp_path / "nixl_cu12").mkdir()
    (tmp_path / "nixl_cu12/__init__.py").touch()
    (tmp_path / ".nixl_cu12.mesonpy.libs/plugins").mkdir(parents=True)
    ran = run("--install", path=str(tmp_path))
    link = tmp_path / ".nixl_cu12.mesonpy.libs/plugins/libplugin_LINKSPAN.so"
    assert ran.stdout == f"{link}\n" and link.resolve() == LIBRARY.resolve()
    assert link.with_name("liblinkspan.so.0").resolve() == (PLUGINS.parent / "lib/liblinkspan.so.0").resolve()


@pytest.mark.parametrize("wheel", [OLDEST, NEWEST])
def test_the_example(wheel: str, tmp_path: pathlib.Path) -> None:
    if not (WHEELS / wheel / "nixl_cu12").is_dir():
        pytest.skip("needs NIXL, which ./dev test fetches")
    packages = PACKAGES, str(WHEELS / wheel), str(FOLDER / "tests" / "stand_in")
    environment = {
        "PYTHONPATH": os.pathsep.join(packages),
        "NIXL_PLUGIN_DIR": str(PLUGINS),
        "LINKSPAN_SOCKET_DIR": str(tmp_path),
    }
    ran = subprocess.run(
        [sys.executable, FOLDER / "example.py"],
        env=os.environ | environment, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert ran.returncode == 0 and "request 7: 8 pages have arrived" in ran.stdout, ran.stderr


def test_the_wheel_that_only_has_the_plugin(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "linkspan-0.1.0-cp312-abi3-manylinux_2_36_x86_64.whl"
    with zipfile.ZipFile(source, "w") as wheel:
        wheel.writestr("linkspan/nixl/libplugin_LINKSPAN.so", b"the plugin")
    command = [sys.executable, FOLDER / "wheel/make_wheel.py", source, tmp_path]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    made = tmp_path / "linkspan_nixl-0.1.0-py3-none-manylinux_2_36_x86_64.whl"
    assert ran.stdout == f"{made}\n", ran.stderr
    with zipfile.ZipFile(made) as wheel:
        for cuda in ("cu12", "cu13"):
            name = f".nixl_{cuda}.mesonpy.libs/plugins/libplugin_LINKSPAN.so"
            assert wheel.read(name) == b"the plugin"
        metadata = wheel.read("linkspan_nixl-0.1.0.dist-info/METADATA").decode()
    assert "Requires-Dist: linkspan==0.1.0" in metadata.splitlines()
    source.rename(tmp_path / "other-1.whl")
    command[2] = tmp_path / "other-1.whl"
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert ran.returncode == 1 and "other-1.whl is not named as a wheel" in ran.stderr


def test_without_nixl() -> None:
    for option in ("--install", "--check"):
        ran = run(option)
        assert ran.returncode == 1 and "pip install --no-deps nixl-cu12" in ran.stderr


def test_the_plugin_needs_nothing_of_nixl() -> None:
    def symbols(*options: str) -> list[str]:
        command = ["nm", "-D", *options, LIBRARY]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        return ran.stdout.splitlines()

    exported = {line.split()[-1] for line in symbols("--defined-only") if line}
    assert exported == {"nixl_plugin_init", "nixl_plugin_fini"}
    assert not [line for line in symbols("--undefined-only") if "nixl" in line or "GLIBCXX" in line]
