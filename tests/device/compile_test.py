#!/usr/bin/env python3
"""Every primitive of the device headers in every scope, for every architecture that we promise.

compile_test.py nvrtc WHEELS | nvcc NVCC
"""

import sys

import images

STANDARDS = {"sm_80": "c++17", "sm_90": "c++17", "sm_100": "c++20"}  # NVRTC takes C++17 alone


def main() -> int:
    kind, where = sys.argv[1:]
    compile_for = images.compiler([kind, where])
    for arch, standard in STANDARDS.items():
        image = compile_for(arch, standard)
        if image[:4] != b"\x7fELF":
            print(f"{kind} {arch}: no cubin came of it")
            return 1
        print(f"{kind} {arch}: {len(image)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
