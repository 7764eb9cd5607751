#!/usr/bin/env python3
"""Every primitive of the device headers in every scope, for every architecture that we promise.

compile_test.py nvrtc WHEELS | nvcc NVCC
"""

import sys

import images

ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]


def main() -> int:
    kind, where = sys.argv[1:]
    compile_for = images.compiler([kind, where])
    for arch in ARCHITECTURES:
        image = compile_for(arch)
        if image[:4] != b"\x7fELF":
            print(f"{kind} {arch}: no cubin came of it")
            return 1
        print(f"{kind} {arch}: {len(image)} bytes")
    if kind == "nvcc":
        images.by_nvcc(where, "sm_90", "c++20")
    return 0


if __name__ == "__main__":
    sys.exit(main())
