#!/usr/bin/env python3
"""p2p/tcpx and `linkspan tcpx` over the test plugin: two processes, the documented lines, every
unpack, many bytes, and what has to fail.

tcpx_test.py BUILD_FOLDER cpu|simulated|gpu
"""

import os
import pathlib
import re
import subprocess
import sys
import unittest

from support.free_port import free_port

MODE = "cpu"
BUILD = pathlib.Path()
TIMEOUT = "20"

# Word for word as the documents of GPUDirect-TCPX's users have them.
SERVER = [
    r"\[DEBUG\] === TCPX GPU-to-GPU transfer test ===",
    r"\[DEBUG\] Running in SERVER mode",
    r"\[DEBUG\] Listening on device 0",
    r"\[DEBUG\] Connection accepted; recv_comm=0x[0-9a-f]+",
    r"\[DEBUG\] Registered server receive buffer ptr=0x[0-9a-f]+, bytes=4096",
    r"\[DEBUG\] Waiting for client data, expected bytes=23",
    r"\[DEBUG\] Request metadata: frag_count=\d+",
    r"\[DEBUG\] descriptor\[0\] src_off=\d+ len=\d+ dst_off=0",
    r"\[DEBUG\] Launching device unpack \((D2D copies|host gather|one kernel)\), total_bytes=23",
    r"\[DEBUG\] Device unpack completed successfully",
    r"\[DEBUG\] Received data matches expected payload",
    r"\[DEBUG\] ✓ Test PASSED",
]
CLIENT = [
    r"\[DEBUG\] === TCPX GPU-to-GPU transfer test ===",
    r"\[DEBUG\] Running in CLIENT mode",
    r"\[DEBUG\] Connecting to server at 127\.0\.0\.1",
    r"\[DEBUG\] Connection established; send_comm=0x[0-9a-f]+",
    r"\[DEBUG\] Registered client send buffer ptr=0x[0-9a-f]+, bytes=4096",
    r"\[DEBUG\] Sending 23 bytes",
    r"\[DEBUG\] ✓ Test PASSED",
]
UNPACKS = {"d2d": "D2D copies", "host": "host gather", "kernel": "one kernel"}


def plugin(version: str = "") -> str:
    return str(BUILD / f"libnccl-net-linkspan-test{version}.so")


class Pair:
    """Both sides of a program, and what they said."""

    def __init__(self, server, client, options=(), *, version="", settings=None, name=None):
        environment = dict(os.environ, LINKSPAN_NCCL_NET_PLUGIN=name or plugin(version))
        port = ["--port", str(free_port()), "--timeout", TIMEOUT, *options]
        started = []
        for side, command in (("server", server), ("client", client)):
            mine = dict(environment, **((settings or {}).get(side, {})))
            started.append(
                subprocess.Popen(
                    [str(word) for word in [*command, *port]],
                    env=mine,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            )
        self.texts, self.codes = [], []
        for process in started:
            try:
                text, _ = process.communicate(timeout=90)
            except subprocess.TimeoutExpired:
                process.kill()
                text = process.communicate()[0] + "\nDID NOT END"
            self.texts.append(text)
            self.codes.append(process.returncode)
        self.server, self.client = self.texts

    def __str__(self):
        return "\n".join(f"--- {code}\n{text}" for code, text in zip(self.codes, self.texts))


def programs(**options):
    program = BUILD / "test_tcpx_transfer"
    return Pair([program, "server"], [program, "client", "127.0.0.1"], **options)


def tool(*options, what="transfer", **more):
    linkspan = BUILD / "linkspan"
    return Pair(
        [linkspan, "tcpx", what, "server"], [linkspan, "tcpx", what, "127.0.0.1"], options, **more
    )


class Case(unittest.TestCase):
    def says(self, text: str, wanted: list[str]):
        """In this order, other lines between them."""
        lines = iter(text.splitlines())
        for pattern in wanted:
            self.assertTrue(
                any(re.fullmatch(pattern, line) for line in lines), f"no line {pattern}\n{text}"
            )

    def passes(self, pair: Pair):
        self.assertEqual(pair.codes, [0, 0], str(pair))

    def fails(self, pair: Pair, why: str):
        self.assertEqual(pair.codes, [1, 1], str(pair))
        self.assertRegex(pair.server, why, str(pair))


class Tcpx(Case):
    def test_connects(self):
        program = BUILD / "test_connection"
        self.passes(Pair([program, "server"], [program, "client", "127.0.0.1"]))
        self.passes(tool(what="connection"))

    def test_host_memory_of_every_version(self):
        for version in (5, 6, 8, 9, 10, 11, 12):
            with self.subTest(version=version):
                self.passes(
                    tool("--host-memory", "--bytes", "100001", version=f"-v{version}")
                )

    def test_bad_usage(self):
        program = BUILD / "test_tcpx_transfer"
        for command in (
            [program],
            [program, "client"],
            [program, "server", "twice"],
            [program, "server", "--port", "70000"],
            [BUILD / "linkspan", "tcpx", "transfer"],
            [BUILD / "linkspan", "tcpx", "send", "server"],
            [BUILD / "linkspan", "tcpx", "transfer", "server", "--unpack", "magic"],
        ):
            with self.subTest(command=command):
                ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
                self.assertEqual(ended.returncode, 2, ended.stderr)

    def test_without_a_plugin(self):
        for name, why in (
            ("/nonexistent/libnccl-net.so", "LINKSPAN_NCCL_NET_PLUGIN"),
            (plugin("-none"), "ncclNetPlugin_v5"),
            (plugin("-v4"), "ncclNetPlugin_v5"),
        ):
            with self.subTest(name=name):
                pair = programs(name=name)
                self.fails(pair, why)

    def test_the_doctor_looks(self):
        ended = subprocess.run(
            [BUILD / "linkspan", "doctor"],
            env=dict(
                os.environ,
                LINKSPAN_NCCL_NET_PLUGIN=plugin(),
                NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX="/nonexistent",
                NCCL_GPUDIRECTTCPX_SOCKET_IFNAME="lo,eth77",
            ),
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertRegex(ended.stdout, r"(?m)^ok +tcpx +plugin .*ncclNetPlugin_v7")
        self.assertRegex(ended.stdout, r"(?m)^warn +tcpx +gpumemd .*/nonexistent")
        self.assertRegex(ended.stdout, r"(?m)^warn +tcpx +interfaces .*eth77")

    def test_nobody_comes(self):
        program = BUILD / "test_tcpx_transfer"
        ended = subprocess.run(
            [program, "server", "--port", str(free_port()), "--timeout", "1"],
            env=dict(os.environ, LINKSPAN_NCCL_NET_PLUGIN=plugin()),
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual(ended.returncode, 1)
        self.assertIn("no client has come", ended.stdout)


class TcpxOnGpu(Case):
    """With memory of a GPU, which the plugin's fragments are unpacked into."""

    def setUp(self):
        if MODE == "cpu":
            self.skipTest("needs a GPU or the simulated driver")

    def test_the_documented_lines(self):
        for unpack, words in UNPACKS.items():
            with self.subTest(unpack=unpack):
                pair = programs(settings={"server": {"UCCL_TCPX_UNPACK_IMPL": unpack}})
                self.passes(pair)
                self.says(pair.server, SERVER)
                self.says(pair.client, CLIENT)
                self.assertIn(f"({words})", pair.server)
                self.assertIn("Received bytes: 48 65 6c 6c 6f", pair.server)
        pair = programs()
        self.assertIn("(D2D copies)", pair.server, "the default")
        both = {"UCCL_TCPX_UNPACK_IMPL": "d2d", "LINKSPAN_UNPACK": "host"}
        self.assertIn("(host gather)", programs(settings={"server": both}).server, "ours wins")

    def test_many_bytes_by_each_unpack(self):
        for unpack in UNPACKS:
            with self.subTest(unpack=unpack):
                pair = tool("--bytes", "9000001", "--iterations", "3", "--unpack", unpack)
                self.passes(pair)
                self.assertRegex(pair.server, r"GB/s, [1-9]\d* fragments, verified")

    def test_gpu_memory_without_an_unpack(self):
        for version in (6, 12):
            with self.subTest(version=version):
                self.passes(tool("--bytes", "3000001", version=f"-v{version}"))

    def test_what_is_wrong_is_found_and_named(self):
        for fault, why in (
            ({"LINKSPAN_TEST_PLUGIN_CORRUPT": "1"}, "corrupted data: byte"),
            ({"LINKSPAN_TEST_PLUGIN_LIST": "lost:1"}, "a gap: bytes"),
            ({"LINKSPAN_TEST_PLUGIN_LIST": "overlap:1"}, "overlap|a gap"),
            ({"LINKSPAN_TEST_PLUGIN_LIST": "outside:1"}, "pool"),
        ):
            with self.subTest(fault=fault):
                self.fails(
                    programs(settings={"server": dict(fault, LINKSPAN_TEST_PLUGIN_FRAGMENT="8")}),
                    why,
                )

    def test_a_wrong_length(self):
        linkspan = BUILD / "linkspan"
        pair = Pair(
            [linkspan, "tcpx", "transfer", "server", "--bytes", "5000"],
            [linkspan, "tcpx", "transfer", "127.0.0.1", "--bytes", "4999"],
        )
        self.fails(pair, "wrong length: 4999 bytes came, 5000 were expected")

    def test_an_unknown_unpack(self):
        pair = programs(settings={"server": {"UCCL_TCPX_UNPACK_IMPL": "magic"}})
        self.assertEqual(pair.codes[0], 1)
        self.assertRegex(pair.server, "magic.*d2d.*host.*kernel")

    def test_a_dead_peer(self):
        pair = tool(
            "--bytes", "9000001", settings={"client": {"LINKSPAN_TEST_PLUGIN_DIE_AFTER": "1"}}
        )
        self.assertEqual(pair.codes, [1, 1], str(pair))
        self.assertNotIn("DID NOT END", str(pair))


if __name__ == "__main__":
    BUILD, MODE = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
