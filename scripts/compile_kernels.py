#!/usr/bin/env python3
"""Compiles the library's kernels with NVRTC from the CUDA 12 wheels.

One cubin per sm_*, PTX per compute_*. All sources are one translation unit. Needs no GPU, no
driver and no toolkit.
"""

import argparse
import ctypes
import pathlib
import sys


class Nvrtc:
    def __init__(self, wheels: pathlib.Path):
        library = wheels / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"
        try:
            self.lib = ctypes.CDLL(str(library))  # finds its builtins by rpath
        except OSError as error:
            sys.exit(f"compile_kernels: {error}; run ./dev setup")
        self.lib.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *args) -> None:
        code = getattr(self.lib, name)(*args)
        if code != 0:
            sys.exit(f"compile_kernels: {name}: {self.lib.nvrtcGetErrorString(code).decode()}")

    def bytes_of(self, kind: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{kind}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{kind}", program, buffer)
        return buffer.raw

    def compile(self, text: str, arch: str, includes: list[str]) -> bytes:
        options = [f"--gpu-architecture={arch}", "--std=c++17"] + [f"-I{path}" for path in includes]
        c_options = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        program = ctypes.c_void_p()
        self.call(
            "nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None
        )
        failed = self.lib.nvrtcCompileProgram(program, len(options), c_options) != 0
        log = self.bytes_of("ProgramLog", program).rstrip(b"\0\n").decode(errors="replace")
        if log:
            print(log, file=sys.stderr)
        if failed:
            sys.exit(f"compile_kernels: {arch}: NVRTC found errors")
        image = (
            self.bytes_of("CUBIN", program)
            if arch.startswith("sm_")
            else self.bytes_of("PTX", program).rstrip(b"\0")
        )
        self.call("nvrtcDestroyProgram", ctypes.byref(program))
        return image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--include", action="append", default=[])
    parser.add_argument("--arch", nargs="+", required=True)
    parser.add_argument("--source", nargs="+", type=pathlib.Path, required=True)
    args = parser.parse_args()

    text = "".join(f'#include "{source.resolve()}"\n' for source in sorted(args.source))
    nvidia = args.wheels / "nvidia"
    includes = args.include + [f"{nvidia}/cuda_runtime/include", f"{nvidia}/cuda_cccl/include"]
    nvrtc = Nvrtc(args.wheels)
    args.out.mkdir(parents=True, exist_ok=True)
    for arch in args.arch:
        image = nvrtc.compile(text, arch, includes)
        suffix = "cubin" if arch.startswith("sm_") else "ptx"
        (args.out / f"{arch}.{suffix}").write_bytes(image)


if __name__ == "__main__":
    main()
