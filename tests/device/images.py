"""all_primitives.cu through the compilers that users have: NVRTC of the wheels, and nvcc."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests/device/all_primitives.cu"
sys.path.insert(0, str(ROOT / "scripts"))
import compile_kernels  # noqa: E402


def by_nvrtc(wheels: pathlib.Path, arch: str) -> bytes:
    """As C++17. Ends the program with the compiler's errors."""
    nvidia = wheels / "nvidia"
    includes = [ROOT / "include", nvidia / "cuda_runtime/include", nvidia / "cuda_cccl/include"]
    return compile_kernels.Nvrtc(wheels).compile(
        f'#include "{SOURCE}"\n', arch, [str(path) for path in includes]
    )


def by_nvcc(nvcc: str, arch: str, standard: str = "c++17") -> bytes:
    """Warnings are errors."""
    kind = "-cubin" if arch.startswith("sm_") else "-ptx"
    with tempfile.TemporaryDirectory() as folder:
        image = pathlib.Path(folder) / "image"
        command = [nvcc, kind, f"-arch={arch}", f"-std={standard}", "-Werror=all-warnings"]
        subprocess.run(
            [*command, f"-I{ROOT / 'include'}", "-o", str(image), str(SOURCE)], check=True
        )
        return image.read_bytes()


def compiler(arguments: list[str]):
    """nvrtc WHEELS | nvcc NVCC -> a function of an architecture and, for nvcc, a standard."""
    kind, where = arguments
    if kind == "nvrtc":
        return lambda arch, _="": by_nvrtc(pathlib.Path(where), arch)
    return lambda arch, standard="c++17": by_nvcc(where, arch, standard)
