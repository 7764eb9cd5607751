#!/usr/bin/env python3
"""The code blocks of KERNEL_GUIDE.md are the tested ones, and compile with the tools of CUDA 12.

Usage: guide_test.py WHEELS      the folder with NVRTC and its headers, of ./dev setup
"""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/device/2proc"
sys.path.insert(0, str(ROOT / "scripts"))
WHEELS = pathlib.Path()


class Guide(unittest.TestCase):
    def test_quotes_what_is_tested(self):
        guide = (EXAMPLE / "KERNEL_GUIDE.md").read_text(encoding="utf-8")
        patterns = (EXAMPLE / "patterns.cuh").read_text(encoding="utf-8")
        quoted = re.findall(r"^```cuda\n(.*?)\n```$", guide, re.DOTALL | re.MULTILINE)
        tested = re.findall(r"^// \[[^\]]+\]\n(.*?)\n// \[end\]$", patterns, re.DOTALL | re.MULTILINE)
        self.assertGreaterEqual(len(quoted), 6)
        self.assertEqual(quoted, tested)

    def test_compiles_for_each_architecture(self):
        from compile_kernels import Nvrtc

        nvidia = WHEELS / "nvidia"
        includes = [str(ROOT / "include"), str(EXAMPLE)]
        includes += [f"{nvidia}/cuda_runtime/include", f"{nvidia}/cuda_cccl/include"]
        nvrtc = Nvrtc(WHEELS)
        for arch in ("sm_80", "sm_90", "sm_100"):
            with self.subTest(arch):
                self.assertTrue(nvrtc.compile('#include "patterns.cuh"\n', arch, includes))


if __name__ == "__main__":
    WHEELS = pathlib.Path(sys.argv.pop(1))
    unittest.main()
