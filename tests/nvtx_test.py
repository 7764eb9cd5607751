#!/usr/bin/env python3
"""The ranges that a profiler is given: nvtx_test.py TOOL RECORDER

A small library takes the profiler's place. Real processes move real bytes.
"""

from __future__ import annotations

import collections
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL, RECORDER = "", ""


def ranges(**environment: str) -> tuple[list[list[str]], list[list[str]]]:
    """Returns what began and what ended in the processes of a demo."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "ranges"
        out.touch()
        subprocess.run(
            [TOOL, "demo", "--quick"],
            env=os.environ
            | {"NVTX_INJECTION64_PATH": RECORDER, "LINKSPAN_TEST_NVTX_OUT": str(out)}
            | environment,
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=50,
        )
        lines = [line.split(" ") for line in out.read_text().splitlines()]
    return [line[1:] for line in lines if line[0] == "begin"], [
        line[1:] for line in lines if line[0] == "end"
    ]


class Nvtx(unittest.TestCase):
    def test_each_transfer_is_a_range(self) -> None:
        begun, ended = ranges(LINKSPAN_NVTX="1")
        names = collections.Counter(name for _, _, name, _ in begun)
        self.assertLessEqual({"write", "read"}, set(names))
        self.assertEqual({domain for _, domain, _, _ in begun}, {"linkspan"})
        self.assertTrue(all(int(size) > 0 for _, _, _, size in begun))
        self.assertEqual(sorted(each[:2] for each in begun), sorted(ended))

    def test_there_are_none_unless_asked_for(self) -> None:
        self.assertEqual(ranges(), ([], []))


if __name__ == "__main__":
    TOOL, RECORDER = sys.argv[1:]
    unittest.main(argv=sys.argv[:1], verbosity=2)
