#!/usr/bin/env python3
"""The verbs between hosts over loopback: serve, bench --to, and doctor's network.

hosts_cli_test.py TOOL MODE    MODE: cpu (no driver) or simulated; LINKSPAN_CUDA_LIBRARY says the same
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import unittest

TOOL, MODE = os.path.abspath(sys.argv[1]), sys.argv[2]
GPUS = {"cpu": 0, "simulated": 2}[MODE]
TIMEOUT_S = 100
STREAMS = {"LINKSPAN_TCP_STREAMS": "2"}
# `ethtool -K one tso off`, where there is no ethtool: SIOCETHTOOL, ETHTOOL_STSO.
TSO_OFF = """
import array, fcntl, socket, struct
value = array.array("I", [0x1F, 0])
request = struct.pack("16sP8x", b"one", value.buffer_info()[0])
fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8946, request)
"""


def run(*arguments: str):
    return subprocess.run(
        [TOOL, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        env={**os.environ, **STREAMS},
    )


class Bench(unittest.TestCase):
    def serve(self, *arguments: str):
        """The process, and its HOST:PORT."""
        server = subprocess.Popen(
            [TOOL, "serve", "--listen", "127.0.0.1:0", "--for", "250", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **STREAMS},
        )
        self.addCleanup(self.end, server)
        line = server.stdout.readline()
        self.assertRegex(line, r"^serve at tcp:127\.0\.0\.1:\d+\n$")
        return server, line.strip().removeprefix("serve at tcp:")

    def end(self, server):
        server.kill()
        server.communicate(timeout=TIMEOUT_S)

    def test_between_hosts(self):
        _, address = self.serve()
        for _ in range(2):
            ran = run("bench", "--to", address, "--quick", "--json", "-")
            self.assertEqual(ran.returncode, 0, ran.stderr)
            told = json.loads(ran.stdout)
            self.assertEqual(
                [row["id"] for row in told["rows"]],
                ["pageable_pageable.1MiB", "pageable_pageable.64x4KiB.pages",
                 "pageable_pageable.8B.notify.one_way.p50"],
            )  # fmt: skip
            for row in told["rows"]:
                self.assertTrue(row["verified"], row)
                self.assertTrue(row["path"].startswith("tcp"), row)
                self.assertGreater(row["value"], 0)
        ran = run("bench", "--to", address, "--sizes", "100KiB,9MiB", "--op", "both", "--runs", "3")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("4 rows, 4 verified, 0 failed", ran.stdout)

    @unittest.skipUnless(GPUS, "needs a GPU")
    def test_memories_of_gpus(self):
        what = ["--kinds", "device0,host", "--sizes", "3MiB", "--runs", "2"]
        _, address = self.serve("--gpu", "0")
        ran = run("bench", "--to", address, *what)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn("4 rows, 4 verified, 0 failed", ran.stdout)

    def test_who_is_not_there(self):
        ran = run("bench", "--to", "127.0.0.1:1", "--timeout", "1", "--quick")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("is `linkspan serve", ran.stdout)


@unittest.skipUnless(os.geteuid() == 0, "needs root: it makes a mount namespace")
class Names(unittest.TestCase):
    """A name has two addresses, of which the first takes SYNs in silence."""

    NAME, ADDRESSES = "two-addresses.test", ("127.0.0.2", "127.0.0.3")

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.hosts = os.path.join(folder.name, "hosts")
        with open(self.hosts, "w", encoding="utf-8") as file:
            file.writelines(f"{each} {self.NAME}\n" for each in self.ADDRESSES)
        order = self.there(
            sys.executable, "-c",
            f"import socket; print(*(a[4][0] for a in socket.getaddrinfo({self.NAME!r}, 1, type=1)))",
        ).stdout.split()  # fmt: skip
        self.assertEqual(sorted(order), sorted(self.ADDRESSES))
        self.silent, self.live = order

    def there(self, *command: str):
        """Runs it where the name has both addresses."""
        mount = 'mount --bind "$0" /etc/hosts && exec "$@"'
        return subprocess.run(
            ["unshare", "-m", "sh", "-ec", mount, self.hosts, *command],
            capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
            env={**os.environ, **STREAMS},
        )  # fmt: skip

    def serve(self, *arguments: str) -> int:
        server = subprocess.Popen([TOOL, *arguments], stdout=subprocess.PIPE, text=True)
        self.addCleanup(server.wait, TIMEOUT_S)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.kill)
        port = int(server.stdout.readline().split(",")[0].rsplit(":", 1)[1])
        self.be_silent_at(port)
        return port

    def be_silent_at(self, port: int):
        """Listens there with a full queue."""
        listener = socket.socket()
        self.addCleanup(listener.close)
        listener.bind((self.silent, port))
        listener.listen(0)
        for _ in range(5):
            one = socket.socket()
            self.addCleanup(one.close)
            one.setblocking(False)
            one.connect_ex((self.silent, port))

    def test_a_store_is_asked_at_the_second(self):
        port = str(self.serve("store", "--host", self.live, "--port", "0", "--for", "250"))
        ask = (TOOL, "store", "--host", self.NAME, "--port", port, "--timeout", "3")
        for operation in (("set", "k", "v"), ("get", "k")):
            ran = self.there(*ask, *operation)
            self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(ran.stdout, "v\n")

    def test_an_engine_is_met_at_the_second(self):
        port = self.serve("serve", "--listen", f"{self.live}:0", "--for", "250")
        what = ("--sizes", "4KiB", "--op", "write", "--runs", "2", "--timeout", "3")
        ran = self.there(TOOL, "bench", "--to", f"{self.NAME}:{port}", *what)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)


class Arguments(unittest.TestCase):
    def test_they_are_named_with_the_remedy(self):
        for arguments, told in (
            (["push", "a", "127.0.0.1:1"], "no verb \"push\""),
            (["serve", "--folder", "."], "--folder"),
            (["serve", "--for", "0"], '"0"'),
            (["serve", "--security", "tls"], '"tls"'),
            (["bench", "--to", "127.0.0.1:1", "--with-ceiling"], "--with-ceiling"),
            (["bench", "--suite", "hosts"], "--to"),
        ):
            ran = run(*arguments)
            self.assertEqual((ran.returncode, ran.stdout), (2, ""), arguments)
            self.assertIn(told, ran.stderr)
        ran = run("serve", "--for", "1", "--security", "encrypted")
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))
        self.assertIn("needs a secret, and there is none", ran.stderr)
        ran = run("serve", "--listen", "0.0.0.0:0", "--for", "1", "--security", "insecure")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("insecure: everybody", ran.stdout)
        ran = run("serve", "--help")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertIn("Usage", ran.stdout)


class Doctor(unittest.TestCase):
    LIMITS = ("net.core.rmem_max", "net.core.wmem_max", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem")

    def checks(self, *before: str, code: int = 0, **environment: str) -> dict[str, dict]:
        ran = subprocess.run(
            [*before, TOOL, "doctor", "--json", "-"],
            capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
            env={**os.environ, **environment},
        )  # fmt: skip
        self.assertEqual(ran.returncode, code, ran.stderr)
        return {c["name"]: c for c in json.loads(ran.stdout)["checks"] if c["area"] == "network"}

    def test_the_network_is_told(self):
        checks = self.checks()
        self.assertRegex(checks["lo"]["found"], r"127\.0\.0\.1.*, MTU \d+, loopback")
        self.assertEqual(checks["lo"]["level"], "ok")
        for name in self.LIMITS:
            check = checks[name]
            self.assertRegex(check["found"], r"^(at most \d+[KMG]?i?B|unknown: .*)$")
            if check["level"] == "warn":
                self.assertIn(f'sysctl -w {name}="', check["remedy"])
        self.assertEqual({c["level"] for c in checks.values()} - {"ok", "warn"}, set())

    @unittest.skipUnless(os.geteuid() == 0, "needs root: it makes a network namespace")
    def test_small_buffers_and_offloads_that_are_off(self):
        make = (
            'echo "4096 131072 4194304" > /proc/sys/net/ipv4/tcp_rmem; '
            'echo "4096 16384 33554432" > /proc/sys/net/ipv4/tcp_wmem; '
            "ip link add one type veth peer name two && ip link set one up && ip link set two up; "
            'ip address add 10.9.8.7/24 dev one; "$0" -c "$1"; shift; exec "$@"'
        )
        checks = self.checks("unshare", "-n", "sh", "-ec", make, sys.executable, TSO_OFF)
        small, large = checks["net.ipv4.tcp_rmem"], checks["net.ipv4.tcp_wmem"]
        self.assertEqual((small["level"], small["found"]), ("warn", "at most 4MiB"))
        self.assertIn('`sysctl -w net.ipv4.tcp_rmem="4096 131072 16777216"`', small["remedy"])
        self.assertEqual((large["level"], large["found"]), ("ok", "at most 32MiB"))
        self.assertRegex(checks["one"]["found"], r"^10\.9\.8\.7.*, MTU 1500, .*, TSO off, GRO \w+$")
        self.assertIn("`ethtool -K one tso on", checks["one"]["remedy"])

    @unittest.skipUnless(os.geteuid() == 0, "needs root: it makes a network namespace")
    def test_interfaces_for_streams(self):
        make = (
            "ip link set lo up; ip link add one type veth peer name two; "
            "ip link add three mtu 9000 type veth peer name four mtu 9000; "
            "ip address add 10.9.8.7/24 dev one; ip address add 10.9.9.7/24 dev three; "
            'for each in three four $0; do ip link set $each up; done; exec "$@"'
        )
        name = "LINKSPAN_TCP_INTERFACES"

        def check(up: str, names: str, code: int = 0):
            before = ("unshare", "-n", "sh", "-ec", make, up)
            return self.checks(*before, code=code, **{name: names})[name]

        both = "one two"  # ends of the cable
        good = check(both, "one")
        self.assertEqual((good["level"], good["found"]), ("ok", "one 10.9.8.7, MTU 1500"))
        unequal = check(both, "three,one")
        self.assertEqual(unequal["level"], "warn")
        self.assertEqual(unequal["found"], "three 10.9.9.7, MTU 9000; one 10.9.8.7, MTU 1500")
        self.assertIn("`ip link set dev NAME mtu 9000` for those that have less", unequal["remedy"])
        self.assertNotIn("up`", unequal["remedy"])
        self.assertIn("no stream goes by one", check("one", "three,one")["remedy"])
        self.assertIn("no stream goes by one", check("two", "one")["remedy"])
        bad = check(both, "one,two", 1)
        self.assertEqual(bad["level"], "FAIL")
        self.assertIn('interface "two" has no address', bad["found"])
        self.assertIn("usable are one, three", bad["found"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
