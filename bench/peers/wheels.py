"""Others' libraries from PyPI, small enough to travel: fetched, stripped, packed into parts.

Nothing is installed: on the other machine the parts become a folder that goes on sys.path.
"""

from __future__ import annotations

import itertools
import lzma
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

MIB = 1 << 20
PART = "peers.tar.xz."  # then a number of three digits
# For CUDA 13. What each has beside the library that is measured, and is left out.
PACKAGES = {
    "nixl-cu13==1.5.1": [
        "nixl_ep_cu13",
        "nixl_cu13.scripts",
        "nixl_cu13-*.data",
        "nixl_cu13.libs/ucx/libucx_perftest*",
    ],
    "mooncake-transfer-engine-cuda13==0.3.14": [
        "mooncake/libmooncake_*",
        "mooncake/pg_*",
        "mooncake/_ep.*",
        "mooncake/*store*",
        "mooncake/mooncake_*",
        "mooncake/transfer_engine_bench",
        "mooncake/transfer_engine_topo*",
        "mooncake/libetcd_wrapper.so",
    ],
    "libucx-cu13==1.22.0": [
        "libucx/bin",
        "libucx/share",
        "libucx/include",
        "libucx/lib/*.a",
        "libucx/lib/ucx/*.a",
        "libucx/lib/ucx/libucx_perftest*",
        "libucx/lib/cmake",
        "libucx/lib/pkgconfig",
    ],
    "nvidia-cuda-runtime==13.0.*": ["nvidia/cu13/include", "nvidia/cu13/lib/*.a"],
    "numpy>=2,<3": ["numpy/*/tests", "numpy/tests", "numpy/_core/lib", "numpy/_core/include"],
}
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 26, 27, 28, 34)]


def fetch(folder: pathlib.Path, python: str, part_mib: int) -> list[pathlib.Path]:
    """RuntimeError: pip's last lines. Returns the parts, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        site, whole = pathlib.Path(name) / "site", pathlib.Path(name) / "peers.tar.xz"
        download(site, python)
        subprocess.run(
            ["tar", "-C", str(site), "-I", "xz -1", "-cf", str(whole), "."], check=True, timeout=900
        )
        return split(whole, folder, part_mib * MIB)


def download(site: pathlib.Path, python: str) -> None:
    """RuntimeError: pip's last lines. Writes what the parts have into the folder `site`."""
    with tempfile.TemporaryDirectory() as downloads:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            downloads,
            "--only-binary=:all:",
            "--python-version",
            python,
        ]
        for platform in PLATFORMS:
            command += ["--platform", platform]
        pip = subprocess.run(
            [*command, *PACKAGES], capture_output=True, text=True, timeout=900, check=False
        )
        if pip.returncode != 0:
            raise RuntimeError(f"pip download: {pip.stderr[-600:]}")
        for wheel in pathlib.Path(downloads).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
    for unwanted in itertools.chain(*PACKAGES.values()):
        for path in site.glob(unwanted):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    drop_copies(site)
    strip(site)


def drop_copies(site: pathlib.Path) -> None:
    """Of libucx's libx.so, libx.so.0 and libx.so.0.0.0, which are one file three times, keeps
    libx.so.0, which the others name."""
    for path in site.glob("libucx/lib/**/*.so*"):
        if not path.name.endswith(".so.0"):
            path.unlink()


def strip(site: pathlib.Path) -> None:
    """Of symbols that the loader does not need. A file that strip does not take stays as it is."""
    for path in site.rglob("*.so*"):
        if path.is_file() and not path.is_symlink():
            subprocess.run(
                ["strip", "--strip-unneeded", str(path)],
                capture_output=True,
                timeout=60,
                check=False,
            )


def split(whole: pathlib.Path, folder: pathlib.Path, most: int) -> list[pathlib.Path]:
    """In the place of the parts of an earlier call."""
    for old in folder.glob(f"{PART}*"):
        old.unlink()
    parts = []
    with whole.open("rb") as source:
        while piece := source.read(most):
            parts.append(folder / f"{PART}{len(parts):03}")
            parts[-1].write_bytes(piece)
    return parts


def unpack(folder: pathlib.Path, site: pathlib.Path) -> pathlib.Path:
    """RuntimeError: a part is missing, or there is none. Returns the folder for sys.path: `site`, or
    the folder itself where it has no parts but what was in them."""
    if (folder / "numpy").is_dir():
        name_libraries(folder)
        return folder
    parts = sorted(folder.glob(f"{PART}*"))
    numbers = [int(part.name.removeprefix(PART)) for part in parts]
    if not parts or numbers != list(range(len(parts))):
        raise RuntimeError(f"{folder} has the parts {numbers}: carry all that run.py --fetch wrote")
    whole = site.with_name(f"{site.name}.tar.xz")
    with whole.open("wb") as target:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, target)
    try:
        with lzma.open(whole) as unpacked:
            with tarfile.open(fileobj=unpacked, mode="r|") as archive:
                archive.extractall(site)
            while unpacked.read(MIB):  # the archive may end before its last part does
                pass
    except (tarfile.TarError, EOFError) as error:
        raise RuntimeError(f"{folder}: {error}; the last part is missing, carry all") from None
    finally:
        whole.unlink()
    name_libraries(site)
    return site


def name_libraries(site: pathlib.Path) -> None:
    """Gives libraries the names that Mooncake wants, in `system`: the machine's libibverbs, which one
    without RDMA has not and NIXL brings, and its own libetcd_wrapper, which is there twice."""
    system = site / "system"
    system.mkdir(exist_ok=True)
    for name, found in (
        ("libibverbs.so.1", "nixl_cu*.libs/libibverbs-*"),
        ("libmlx5.so.1", "nixl_cu*.libs/libmlx5-*"),
        ("libetcd_wrapper.so", "mooncake_transfer_engine*.libs/libetcd_wrapper-*"),
    ):
        for path in site.glob(found):
            (system / name).unlink(missing_ok=True)
            (system / name).symlink_to(path.resolve())


def library_paths(site: pathlib.Path) -> str:
    """Behind the machine's own. NIXL's folder has what its libibverbs needs."""
    own = [site / "system", site / "nvidia/cu13/lib", *site.glob("nixl_cu*.libs")]
    return ":".join(map(str, own))
