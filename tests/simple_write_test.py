#!/usr/bin/env python3
"""examples/device/2proc/simple_write as its users run it: two processes, in either order.

Usage: simple_write_test.py PROGRAM cpu|simulated|gpu [TEST...]
SIMPLE_WRITE_UNDER: what each process runs under, such as compute-sanitizer with its options.
"""

import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
import unittest

from support.free_port import free_port

PROGRAM, MODE = "", ""
UNDER = shlex.split(os.environ.get("SIMPLE_WRITE_UNDER", ""))
SIZE = 70001  # odd, and above 64 KiB, where many CTAs put


class Pair:
    """An initiator and a target, each with its own options behind the common ones."""

    def __init__(self, *common: str, initiator=(), target=(), first="initiator", between=0.0):
        self.port = free_port()
        common = ("--port", str(self.port), "--timeout", "20", "--iterations", "20", *common)
        own = {"initiator": initiator, "target": target}
        self.processes = {}
        for mode in sorted(own, key=lambda each: each != first):
            self.processes[mode] = subprocess.Popen(
                [*UNDER, PROGRAM, "--mode", mode, *common, *own[mode]],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            time.sleep(between)

    def end(self) -> dict[str, tuple[int, str]]:
        ends = {}
        for mode, process in self.processes.items():
            try:
                text = process.communicate(timeout=120)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                text = process.communicate()[0] + "\n(killed by the test)"
            ends[mode] = (process.returncode, text)
        return ends


def run(*options: str) -> tuple[int, str]:
    done = subprocess.run(
        [PROGRAM, *options], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


class Usage(unittest.TestCase):
    def test_help(self):
        code, text = run("--help")
        self.assertEqual(code, 0)
        for option in ("--mode", "--size", "--scope", "--force-proxy", "--listen"):
            self.assertIn(option, text)

    def test_bad_usage(self):
        for options, named in [
            (("--frobnicate",), "--frobnicate"),
            (("--mode", "both"), "both"),
            (("--size", "0"), '"0"'),
            (("--size", "12x"), "12x"),
            (("--scope", "grid"), "thread, warp, block"),
            (("--port", "70000"), "70000"),
            (("stray",), "stray"),
        ]:
            with self.subTest(options):
                code, text = run(*options)
                self.assertEqual(code, 2, text)
                self.assertIn(named, text)


class WithoutCuda(unittest.TestCase):
    def test_says_so(self):
        if MODE != "cpu":
            self.skipTest("only where there is no CUDA device")
        code, text = run()
        self.assertEqual(code, 2, text)
        self.assertIn("no CUDA device", text)


class TwoProcesses(unittest.TestCase):
    def setUp(self):
        if MODE == "cpu":
            self.skipTest("needs a CUDA device")

    def passes(self, pair: Pair) -> str:
        ends = pair.end()
        for mode, (code, text) in ends.items():
            self.assertEqual(code, 0, f"{mode}:\n{text}")
        self.assertRegex(ends["initiator"][1], r"(?m)^ +\d+ +\d+ .* ok$")
        self.assertNotIn("WRONG", ends["initiator"][1])
        self.assertIn("verified", ends["target"][1])
        return ends["initiator"][1]

    def test_either_order_and_every_scope(self):
        for scope in ("thread", "warp", "block"):
            for first in ("initiator", "target"):
                with self.subTest(scope=scope, first=first):
                    pair = Pair("--scope", scope, "--size", str(SIZE), first=first, between=0.5)
                    self.assertIn("window: mapped", self.passes(pair))

    def test_sizes(self):
        sizes = [(1, 0), (7, 3), (4096, 16), (1 << 20, 0), ((1 << 20) + 1, 5)]
        if MODE == "gpu" and not UNDER:
            sizes.append((1 << 30, 0))
        for size, offset in sizes:
            with self.subTest(size=size, offset=offset):
                text = self.passes(Pair("--size", str(size), "--offset", str(offset)))
                self.assertRegex(text, rf"(?m)^ +{size} ")

    def test_proxy(self):
        for scope in ("thread", "block"):
            with self.subTest(scope):
                text = self.passes(Pair("--force-proxy", "--scope", scope, "--size", str(SIZE)))
                self.assertIn("window: proxy", text)

    def test_by_tcp(self):
        listen = ("--listen", "tcp:127.0.0.1:0")
        for first in ("initiator", "target"):
            with self.subTest(first=first):
                pair = Pair("--size", str(SIZE), target=listen, first=first, between=0.5)
                text = self.passes(pair)
                self.assertIn("window: proxy: tcp maps nothing", text)
        text = self.passes(Pair("--size", str((3 << 20) + 1), "--iterations", "5", target=listen))
        self.assertIn("window: proxy", text)

    def test_one_side_by_proxy(self):
        self.passes(Pair("--size", "5000", initiator=("--force-proxy",)))

    def test_one_gpu(self):
        text = self.passes(Pair("--device", "0", "--size", "5000"))
        self.assertIn("MPS", text)

    def test_a_flipped_byte_is_found(self):
        ends = Pair("--size", "5000", initiator=("--flip-byte",)).end()
        for mode, (code, text) in ends.items():
            self.assertEqual(code, 1, f"{mode}:\n{text}")
            self.assertIn("MISMATCH", text)

    def test_sizes_that_differ(self):
        ends = Pair(initiator=("--size", "100"), target=("--size", "200")).end()
        for mode, (code, text) in ends.items():
            self.assertEqual(code, 1, f"{mode}:\n{text}")
        self.assertRegex(ends["initiator"][1], "100.*200")

    def test_nobody_comes(self):
        begin = time.monotonic()
        code, text = run("--port", str(free_port()), "--timeout", "1", "--mode", "target")
        self.assertEqual(code, 1, text)
        self.assertRegex(text, "timed_out|initiator")
        self.assertLess(time.monotonic() - begin, 30)

    def test_the_partner_dies(self):
        for victim, other, options in (
            ("target", "initiator", ()),
            ("initiator", "target", ()),
            ("target", "initiator", ("--listen", "tcp:127.0.0.1:0")),
        ):
            with self.subTest(victim, options=options):
                pair = Pair("--size", str(64 << 20), "--iterations", "100000", target=options)
                seen = pair.processes[other].stdout.readline
                while "connected" not in (line := seen()):
                    self.assertNotEqual(line, "")
                time.sleep(0.7)
                pair.processes[victim].send_signal(signal.SIGKILL)
                begin = time.monotonic()
                code, text = pair.end()[other]
                self.assertEqual(code, 1, text)
                self.assertRegex(text, "disconnected|timed_out")
                self.assertLess(time.monotonic() - begin, 25)
                self.passes(Pair("--size", "5000"))  # the GPUs are as they were


if __name__ == "__main__":
    PROGRAM, MODE = str(pathlib.Path(sys.argv[1]).resolve()), sys.argv[2]
    del sys.argv[1:3]
    unittest.main(verbosity=1)
