#!/usr/bin/env python3
"""The verbs between hosts over loopback: serve, push, pull, bench --to, and doctor's network.

hosts_cli_test.py TOOL MODE    MODE: cpu (no driver) or simulated; LINKSPAN_CUDA_LIBRARY says the same
"""

import contextlib
import hashlib
import json
import os
import pathlib
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

TOOL, MODE = os.path.abspath(sys.argv[1]), sys.argv[2]
GPUS = {"cpu": 0, "simulated": 2}[MODE]
TIMEOUT_S = 100
MIB = 1 << 20
STREAMS = {"LINKSPAN_TCP_STREAMS": "2"}
# `ethtool -K one tso off`, where there is no ethtool: SIOCETHTOOL, ETHTOOL_STSO.
TSO_OFF = """
import array, fcntl, socket, struct
value = array.array("I", [0x1F, 0])
request = struct.pack("16sP8x", b"one", value.buffer_info()[0])
fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8946, request)
"""


def data_of(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def run(*arguments: str, cwd: str | None = None, file_limit: int | None = None, **environment: str):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

    return subprocess.run(
        [TOOL, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        cwd=cwd,
        env={**os.environ, **STREAMS, **environment},
        preexec_fn=limit if file_limit else None,
        restore_signals=not file_limit,  # SIGXFSZ stays ignored, and the write fails
    )


def until(what, message: str):
    limit = time.monotonic() + TIMEOUT_S
    while not (found := what()):
        if time.monotonic() > limit:
            raise AssertionError(f"waited in vain: {message}")
        time.sleep(0.02)
    return found


class Proxy:
    """Between a client and a server. What goes to the server stops behind `budget` bytes, and takes
    `pause` seconds for each 64 KiB; `flip` changes one byte within the first such run of bytes."""

    def __init__(
        self, port: int, budget: int | None = None, flip: bytes | None = None, pause: float = 0
    ):
        self.port_there, self.flip, self.pause = port, flip, pause
        self.budget = budget
        self.lock = threading.Lock()
        self.closed = threading.Event()
        self.sockets: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.port_there))
                with self.lock:
                    self.sockets += [near, far]
                for pair in ((near, far, True), (far, near, False)):
                    thread = threading.Thread(target=self.pump, args=pair)
                    thread.start()
                    self.threads.append(thread)

    def pump(self, source: socket.socket, sink: socket.socket, to_server: bool):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if to_server:
                    time.sleep(self.pause)
                    data = self.changed(data)
                    if not self.may_pass(len(data)):
                        self.closed.wait()
                        return
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def changed(self, data: bytes) -> bytes:
        with self.lock:
            at = data.find(self.flip) if self.flip else -1
            if at < 0:
                return data
            self.flip = None
            at += 10
            return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    def may_pass(self, count: int) -> bool:
        with self.lock:
            if self.budget is None:
                return True
            self.budget -= count
            return self.budget >= 0

    def close(self):
        self.closed.set()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        with self.lock:
            for each in self.sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
        for thread in self.threads:
            thread.join(TIMEOUT_S)


class Hosts(unittest.TestCase):
    def setUp(self):
        # fsync on a disk that others write to takes its time.
        folder = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.here, self.there = self.folder / "here", self.folder / "there"
        self.here.mkdir()
        self.there.mkdir()

    def serve(self, *arguments: str, folder: bool = True, file_limit: int | None = None):
        """The process, and its HOST:PORT."""

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

        where = ["--folder", str(self.there)] if folder else []
        server = subprocess.Popen(
            [TOOL, "serve", "--listen", "127.0.0.1:0", "--for", "250", *where, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **STREAMS},
            preexec_fn=limit if file_limit else None,
            restore_signals=not file_limit,
        )
        self.addCleanup(self.end, server)
        line = server.stdout.readline()
        self.assertRegex(line, r"^serve at tcp:127\.0\.0\.1:\d+, ")
        return server, line.split(", ")[0].removeprefix("serve at tcp:")

    def end(self, server):
        server.kill()
        server.communicate(timeout=TIMEOUT_S)

    def proxy(self, address: str, **options) -> Proxy:
        out = Proxy(int(address.rsplit(":", 1)[1]), **options)
        self.addCleanup(out.close)
        return out

    def put(self, name: str, data: bytes, folder: pathlib.Path | None = None) -> str:
        path = (folder or self.here) / name
        path.write_bytes(data)
        return str(path)

    def moved(self, *arguments: str) -> dict:
        ran = run(*arguments, "--json", "-", cwd=str(self.here))
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return json.loads(ran.stdout)

    def fails(self, *arguments: str, told: str, **options):
        ran = run(*arguments, cwd=str(self.here), **options)
        self.assertEqual(ran.returncode, 1, f"{arguments}: {ran.stdout}{ran.stderr}")
        self.assertIn(told, ran.stderr, arguments)
        self.assertEqual(ran.stdout, "")
        return ran

    def same(self, folder: pathlib.Path, name: str, data: bytes):
        """Complete, ours alone, and nothing is left beside it."""
        self.assertTrue((folder / name).read_bytes() == data, f"{name} differs")
        self.assertEqual((folder / name).stat().st_mode & 0o777, 0o600)
        self.assertFalse((folder / f"{name}.part").exists())


class Files(Hosts):
    def test_sizes_both_ways(self):
        server, address = self.serve()
        for size in (0, 1, 70001, 2 * MIB, 5 * MIB + 3, 20 * MIB + 1):
            data, name = data_of(size, size), f"f{size}"
            told = self.moved("push", self.put(name, data), address, "--as", f"to {name}")
            self.assertEqual((told["bytes"], told["resumed_at"]), (size, 0))
            self.assertEqual(told["sha256"], hashlib.sha256(data).hexdigest())
            self.same(self.there, f"to {name}", data)
            told = self.moved("pull", f"to {name}", address, "--to", f"back {name}")
            self.assertEqual(told["sha256"], hashlib.sha256(data).hexdigest())
            self.same(self.here, f"back {name}", data)
        self.moved("push", self.put("f1", b"new"), address, "--as", "to f1")
        self.same(self.there, "to f1", b"new")
        self.moved("pull", "to f1", address)
        self.same(self.here, "to f1", b"new")
        server.send_signal(signal.SIGINT)
        _, log = server.communicate(timeout=TIMEOUT_S)
        self.assertEqual(server.returncode, 0, log)
        self.assertIn("push 70001 to f70001: done\n", log)

    def test_several_at_once(self):
        _, address = self.serve()
        data = {f"f{i}": data_of(3 * MIB + i, i) for i in range(4)}
        with contextlib.ExitStack() as stack:
            for name, bytes_ in data.items():
                command = [TOOL, "push", self.put(name, bytes_), address]
                process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL))
                stack.callback(lambda p=process: self.assertEqual(p.wait(TIMEOUT_S), 0))
        for name, bytes_ in data.items():
            self.same(self.there, name, bytes_)

    @unittest.skipUnless(GPUS, "needs a GPU")
    def test_through_gpus(self):
        _, address = self.serve("--gpu", "1")
        data = data_of(21 * MIB + 5)
        file = self.put("f", data)
        self.moved("push", file, address, "--gpu", "0")
        self.same(self.there, "f", data)
        for to, gpu in (("g", ["--gpu", "1"]), ("h", [])):
            self.moved("pull", "f", address, "--to", to, *gpu)
            self.same(self.here, to, data)

    def test_a_gpu_that_is_not_there(self):
        _, address = self.serve()
        self.fails("push", self.put("f", b"x"), address, "--gpu", "9", told="no gpu9")
        self.assertEqual(os.listdir(self.there), [])

    def test_once(self):
        for name, code in (("f", 0), ("../f", 1)):
            server, address = self.serve("--once")
            ran = run("push", self.put("f", b"abc"), address, "--as", name)
            self.assertEqual(ran.returncode, code, ran.stderr)
            self.assertEqual(server.wait(TIMEOUT_S), code)


class Resume(Hosts):
    def test_what_is_right_is_not_sent_again(self):
        _, address = self.serve()
        data = data_of(5 * MIB + 3)
        file = self.put("f", data)
        for part in (1, 2 * MIB, 3 * MIB + 7, len(data)):
            self.put("f.part", data[:part], self.there)
            self.assertEqual(self.moved("push", file, address)["resumed_at"], part)
            self.same(self.there, "f", data)
            self.put("g.part", data[:part])
            self.assertEqual(
                self.moved("pull", "f", address, "--to", "g")["resumed_at"], part
            )
            self.same(self.here, "g", data)

    def test_what_is_not_right_is_sent_again(self):
        _, address = self.serve()
        data = data_of(3 * MIB + 3)
        file = self.put("f", data)
        wrong = data[: 2 * MIB - 1] + bytes([data[2 * MIB - 1] ^ 1])
        for part in (wrong, wrong + data[2 * MIB :], bytes(1), data_of(9 * MIB, 2)):
            self.put("f.part", part, self.there)
            self.assertEqual(self.moved("push", file, address)["resumed_at"], 0)
            self.same(self.there, "f", data)
            self.put("g.part", part)
            self.assertEqual(self.moved("pull", "f", address, "--to", "g")["resumed_at"], 0)
            self.same(self.here, "g", data)

    def test_a_client_that_was_killed(self):
        _, address = self.serve()
        data = data_of(40 * MIB)
        file, part = self.put("f", data), self.there / "f.part"
        proxy = self.proxy(address, budget=24 * MIB)
        client = subprocess.Popen(
            [TOOL, "push", file, f"127.0.0.1:{proxy.port}"],
            stdout=subprocess.DEVNULL, env={**os.environ, **STREAMS},
        )  # fmt: skip
        until(lambda: part.exists() and part.stat().st_size >= 2 * MIB, "the first pieces")
        client.kill()
        client.wait(TIMEOUT_S)
        proxy.close()

        def again():
            ran = run("push", file, address, "--json", "-")
            busy = "somebody else writes f.part" in ran.stderr
            return None if busy else ran  # the server has yet to see that the other has gone

        ran = until(again, "the server to let go of f.part")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertGreaterEqual(json.loads(ran.stdout)["resumed_at"], 2 * MIB)
        self.same(self.there, "f", data)


class Failures(Hosts):
    def test_names_that_are_no_names(self):
        _, address = self.serve()
        secret, file = self.put("secret", b"s", self.folder), self.put("f", b"abc")
        names = ["../secret", "/etc/passwd", secret, ".", "..", ".hidden", "a/b", "a\nb", "a\x1b[2J",
                 "a\x7f", "x.part", "n" * 251]  # fmt: skip
        for name in names:
            ran = self.fails("push", file, address, "--as", name, told="is no name for a file")
            self.assertNotIn("\x1b", ran.stderr)
            self.fails("pull", name, address, "--to", "got", told="is no name for a file")
        self.assertEqual(os.listdir(self.there), [])
        self.assertEqual(sorted(os.listdir(self.folder)), ["here", "secret", "there"])
        self.assertEqual(os.listdir(self.here), ["f"])
        self.moved("push", file, address, "--as", "n" * 250)
        self.same(self.there, "n" * 250, b"abc")

    def test_what_is_no_file_of_ours(self):
        _, address = self.serve()
        secret, file = self.put("secret", b"s", self.folder), self.put("f", b"abc")
        (self.there / "link").symlink_to(secret)
        (self.there / "a.part").symlink_to(secret)
        os.link(secret, self.there / "b.part")
        os.mkfifo(self.there / "c.part")
        os.mkfifo(self.there / "pipe")
        (self.there / "folder").mkdir()
        for name in "abc":
            self.fails("push", file, address, "--as", name, told=f"{name}.part")
        for name in ("link", "pipe", "folder"):
            self.fails("pull", name, address, told=name)
        self.assertEqual(pathlib.Path(secret).read_bytes(), b"s")
        self.fails("push", file, address, "--as", "folder", told="folder")
        self.moved("push", file, address, "--as", "link")  # the link itself is replaced
        self.same(self.there, "link", b"abc")

    def test_what_is_not_there(self):
        server, address = self.serve()
        self.fails("push", "none", address, told="none: No such file")
        self.fails("push", str(self.here), address, told="no regular file")
        self.fails("pull", "none", address, told="none: No such file")
        self.fails("pull", "none", address, "--to", "no/such/file", told="no/such: No such")
        self.assertEqual(os.listdir(self.here) + os.listdir(self.there), [])
        self.end(server)
        file = self.put("f", b"abc")
        self.fails("push", file, address, "--timeout", "1", told="is `linkspan serve --listen")
        _, address = self.serve(folder=False)
        self.fails("push", file, address, told="--folder")
        self.fails("pull", "f", address, told="--folder")
        self.fails("push", file, "10.0.0.1:1", "--timeout", "1", told="insecure")
        ran = run("serve", "--listen", "0.0.0.0:0")
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))
        self.assertIn("insecure", ran.stderr)

    def test_a_byte_that_changes_on_the_way(self):
        _, address = self.serve()
        data = b"\x5a" * (5 * MIB)
        proxy = self.proxy(address, flip=b"\x5a" * 1024)
        self.fails("push", self.put("f", data), f"127.0.0.1:{proxy.port}", told="wrong checksum")
        self.assertIsNone(proxy.flip)
        self.assertEqual(os.listdir(self.there), [])

    def test_a_file_that_changes_while_it_is_sent(self):
        _, address = self.serve()
        file, part = self.put("f", data_of(20 * MIB)), self.there / "f.part"
        proxy = self.proxy(address, pause=0.01)
        client = subprocess.Popen(
            [TOOL, "push", file, f"127.0.0.1:{proxy.port}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **STREAMS},
        )  # fmt: skip
        until(lambda: part.exists() and part.stat().st_size >= MIB, "the first pieces")
        with open(file, "r+b") as changed:
            changed.write(b"?")
        _, log = client.communicate(timeout=TIMEOUT_S)
        self.assertEqual(client.returncode, 1, log)
        self.assertIn("has changed while it was read", log)
        self.assertEqual(os.listdir(self.there), ["f.part"])

    def test_a_client_that_stands_still(self):
        server, address = self.serve("--once", "--timeout", "1")
        file, part = self.put("f", data_of(40 * MIB)), self.there / "f.part"
        proxy = self.proxy(address, budget=24 * MIB)
        client = subprocess.Popen(
            [TOOL, "push", file, f"127.0.0.1:{proxy.port}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **STREAMS},
        )  # fmt: skip
        self.addCleanup(client.wait)
        self.addCleanup(client.kill)
        until(lambda: part.exists() and part.stat().st_size >= 2 * MIB, "the first pieces")
        client.send_signal(signal.SIGSTOP)
        self.assertEqual(server.wait(TIMEOUT_S), 1)

    def test_a_full_disk(self):
        server, address = self.serve(file_limit=3 * MIB)
        file = self.put("f", data_of(30 * MIB))
        self.fails("push", file, address, told="make room there")
        self.assertEqual((self.there / "f.part").stat().st_size, 3 * MIB)
        self.assertEqual(os.listdir(self.there), ["f.part"])
        self.put("g", data_of(30 * MIB), self.there)
        self.fails("pull", "g", address, told="make room there", file_limit=3 * MIB)
        self.assertEqual((self.here / "g.part").stat().st_size, 3 * MIB)
        self.assertEqual(sorted(os.listdir(self.here)), ["f", "g.part"])
        self.assertIsNone(server.poll())

    def test_a_server_that_ends_in_the_midst(self):
        data = data_of(40 * MIB)
        file, part = self.put("f", data), self.there / "f.part"
        for number, told in ((signal.SIGKILL, "run it again"), (signal.SIGSTOP, "waited in vain")):
            server, address = self.serve()
            proxy = self.proxy(address, budget=24 * MIB)
            client = subprocess.Popen(
                [TOOL, "push", file, f"127.0.0.1:{proxy.port}", "--timeout", "5"],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                env={**os.environ, **STREAMS},
            )  # fmt: skip
            until(lambda: part.exists() and part.stat().st_size >= 2 * MIB or client.poll(),
                  "the first pieces")  # fmt: skip
            server.send_signal(number)
            _, log = client.communicate(timeout=TIMEOUT_S)
            self.assertEqual(client.returncode, 1, log)
            self.assertIn(told, log)
            self.assertFalse((self.there / "f").exists())
            self.end(server)
            part.unlink()


class Bench(Hosts):
    def test_between_hosts(self):
        _, address = self.serve(folder=False)
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
        _, address = self.serve("--gpu", "0", folder=False)
        ran = run("bench", "--to", address, *what)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn("4 rows, 4 verified, 0 failed", ran.stdout)

    def test_who_is_not_there(self):
        ran = run("bench", "--to", "127.0.0.1:1", "--timeout", "1", "--quick")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("is `linkspan serve", ran.stdout)


class Arguments(unittest.TestCase):
    def test_they_are_named_with_the_remedy(self):
        for arguments, told in (
            (["push"], "FILE HOST:PORT"),
            (["pull", "a"], "NAME HOST:PORT"),
            (["push", "a", "b", "c"], "FILE HOST:PORT"),
            (["serve", "--folder", "/nonexistent"], "/nonexistent"),
            (["serve", "--for", "0"], '"0"'),
            (["bench", "--to", "127.0.0.1:1", "--with-ceiling"], "--with-ceiling"),
            (["bench", "--suite", "hosts"], "--to"),
        ):
            ran = run(*arguments)
            self.assertEqual((ran.returncode, ran.stdout), (2, ""), arguments)
            self.assertIn(told, ran.stderr)
        for verb in ("serve", "push", "pull"):
            ran = run(verb, "--help")
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
