#!/usr/bin/env python3
"""Every operation of a store between torch.distributed.TCPStore and linkspan's, both in both roles.

    store_torch_test.py --tool PATH_OF_linkspan [--need-torch]

Runs with whatever torch is importable, and says which. 0: all is well, or there is no torch to import
and --need-torch does not say that this is a failure. Needs Python 3.10, and no GPU.
"""

import argparse
import datetime
import json
import pathlib
import signal
import subprocess
import sys
import time
import traceback
import xml.etree.ElementTree as ElementTree

from support.free_port import free_port

try:
    import torch
    import torch.distributed as dist
except ImportError:
    dist = None

ANSWER_S = 30
MIB = bytes(range(256)) * 4096


class Missing(Exception):
    """That peer has no such operation."""


class Failed(Exception):
    """code: linkspan's, or "torch"."""

    def __init__(self, code: str, what: str):
        super().__init__(f"{code}: {what}")
        self.code = code


class Linkspan:
    """A client of ours, by `linkspan store -`."""

    kind = "linkspan"

    def __init__(self, port: int, *options: str):
        self.process = subprocess.Popen(
            [TOOL, "store", "--port", str(port), *options, "-"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, op: str, keys=(), values=(), number=0, timeout_s: float = ANSWER_S) -> dict:
        told = {"op": op, "keys": list(keys), "values": [v.hex() for v in values], "number": number,
                "timeout_ms": int(timeout_s * 1000)}  # fmt: skip
        print(json.dumps(told), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())
        if answer["code"] == "unsupported":
            raise Missing(op)
        if answer["code"] != "ok":
            raise Failed(answer["code"], answer["what"])
        answer["values"] = [bytes.fromhex(value) for value in answer["values"]]
        return answer

    def set(self, key, value):
        self.ask("set", [key], [value])

    def get(self, key, timeout_s=ANSWER_S):
        return self.ask("get", [key], timeout_s=timeout_s)["values"][0]

    def add(self, key, number):
        return self.ask("add", [key], number=number)["number"]

    def wait(self, keys, timeout_s=ANSWER_S):
        self.ask("wait", keys, timeout_s=timeout_s)

    def check(self, keys):
        return self.ask("check", keys)["number"] == 1

    def delete(self, key):
        return self.ask("delete", [key])["number"] == 1

    def compare_set(self, key, expected, desired):
        return self.ask("compare_set", [key], [expected, desired])["values"][0]

    def append(self, key, value):
        self.ask("append", [key], [value])

    def multi_set(self, keys, values):
        self.ask("multi_set", keys, values)

    def multi_get(self, keys):
        return self.ask("multi_get", keys)["values"]

    def num_keys(self):
        return self.ask("num_keys")["number"]

    def queue_push(self, queue, value):
        self.ask("queue_push", [queue], [value])

    def queue_pop(self, queue, timeout_s=ANSWER_S):
        return self.ask("queue_pop", [queue], timeout_s=timeout_s)["values"][0]

    def queue_length(self, queue):
        return self.ask("queue_length", [queue])["number"]

    def close(self):
        self.process.stdin.close()
        self.process.wait(ANSWER_S)


class Torch:
    """A client of torch, or its server with a client."""

    kind = "torch"

    def __init__(self, port: int, master: bool = False, libuv: bool | None = None, **options):
        if libuv is not None:
            options["use_libuv"] = libuv
        options.setdefault("wait_for_workers", False)
        options.setdefault("timeout", datetime.timedelta(seconds=ANSWER_S))
        self.open = lambda: dist.TCPStore("127.0.0.1", port, is_master=master, **options)
        self.store = self.open()

    def call(self, name, *arguments):
        if not hasattr(self.store, name):
            raise Missing(name)
        try:
            return getattr(self.store, name)(*arguments)
        except NotImplementedError as none:
            raise Missing(name) from none
        except Exception as error:
            raise Failed("torch", str(error).splitlines()[0]) from error

    def set(self, key, value):
        self.call("set", key, value)

    def get(self, key, timeout_s=ANSWER_S):
        if timeout_s != ANSWER_S:
            self.wait([key], timeout_s)
        return self.call("get", key)

    def add(self, key, number):
        return self.call("add", key, number)

    def wait(self, keys, timeout_s=ANSWER_S):
        try:
            self.call("wait", keys, datetime.timedelta(seconds=timeout_s))
        except Failed:
            if not MODERN:  # its connection is out of step: the answer may come at any time
                self.store = self.open()
            raise

    def check(self, keys):
        return self.call("check", keys)

    def delete(self, key):
        return self.call("delete_key", key)

    def compare_set(self, key, expected, desired):
        return self.call("compare_set", key, expected, desired)

    def append(self, key, value):
        self.call("append", key, value)

    def multi_set(self, keys, values):
        self.call("multi_set", keys, values)

    def multi_get(self, keys):
        return self.call("multi_get", keys)

    def num_keys(self):
        return self.call("num_keys")

    def list_keys(self):
        return self.call("list_keys")

    def queue_push(self, queue, value):
        self.call("queue_push", queue, value)

    def queue_pop(self, queue, timeout_s=ANSWER_S):
        if timeout_s == 0:
            return self.call("queue_pop", queue, False)
        return self.call("queue_pop", queue)

    def queue_length(self, queue):
        return self.call("queue_len", queue)

    def close(self):
        self.store = None


class LinkspanServer:
    """`linkspan store`."""

    def __init__(self, *options: str):
        command = [TOOL, "store", "--port", "0", "--for", "600", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("store at tcp:127.0.0.1:"), line
        self.port = int(line.split(":")[2].split(",")[0])

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(ANSWER_S) == 0


# ---- what holds between any two clients of one server ----------------------------------------------


def same(a, b):
    assert a == b, f"{a!r:.200} is not {b!r:.200}"


def fails(call, *codes: str):
    begin = time.monotonic()
    try:
        value = call()
    except Failed as error:
        assert error.code in (*codes, "torch"), error
        assert time.monotonic() - begin < ANSWER_S / 2, "it failed, but late"
        return
    raise AssertionError(f"it did not fail: {value!r}")


def values_cross(a, b, name):
    for i, value in enumerate((b"", b"x", b"\0\xff\0", b"12", MIB)):
        a.set(f"{name}/{i}", value)
        same(a.get(f"{name}/{i}"), value)  # a set has no answer; this one comes after it
        same(b.get(f"{name}/{i}"), value)
    a.set(f"{name}/0", b"again")
    same(a.get(f"{name}/0"), b"again")
    same(b.get(f"{name}/0"), b"again")


def counters(a, b, name):
    same(a.add(name, 5), 5)
    same(b.add(name, -7), -2)
    same(a.get(name), b"-2")
    same(b.add(name, 2**62), 2**62 - 2)
    same(a.add(name, 0), 2**62 - 2)
    a.set(name, b"41")
    same(a.add(name, 1), 42)
    same(b.get(name), b"42")


def waits(a, b, name):
    fails(lambda: a.wait([f"{name}/no"], 0.3), "timed_out")
    fails(lambda: a.get(f"{name}/no", 0.3), "timed_out")
    b.set(f"{name}/1", b"1")
    same(b.get(f"{name}/1"), b"1")
    a.wait([f"{name}/1"])
    fails(lambda: a.wait([f"{name}/1", f"{name}/no"], 0.3), "timed_out")
    same(a.add(f"{name}/n", 1), 1)  # after a time-out the connection is in order
    b.add(f"{name}/2", 1)
    a.wait([f"{name}/1", f"{name}/2", f"{name}/1"])


def checks(a, b, name):
    b.add(f"{name}/1", 1)
    same(a.check([f"{name}/1"]), True)
    same(a.check([f"{name}/2"]), False)
    same(a.check([f"{name}/1", f"{name}/2"]), False)
    b.add(f"{name}/2", 1)
    same(a.check([f"{name}/1", f"{name}/2"]), True)


def deletes(a, b, name):
    before = a.num_keys()
    b.add(name, 1)
    same(a.num_keys(), before + 1)
    same(a.delete(name), True)
    same(b.delete(name), False)
    same(a.num_keys(), before)
    fails(lambda: b.get(name, 0.3), "timed_out")


def compare_sets(a, b, name):
    same(a.compare_set(name, b"no", b"x"), b"no")  # no key, and expected is not empty
    fails(lambda: b.get(name, 0.3), "timed_out")
    same(a.compare_set(name, b"", b"one"), b"one")
    same(b.compare_set(name, b"", b"two"), b"one")  # a key, and expected is empty
    same(b.compare_set(name, b"one", b"t\0wo"), b"t\0wo")
    same(a.compare_set(name, b"one", b"three"), b"t\0wo")
    same(a.get(name), b"t\0wo")


def appends(a, b, name):
    a.append(name, b"a\0b")
    same(a.get(name), b"a\0b")
    b.append(name, b"cd")
    same(b.get(name), b"a\0bcd")


def many(a, b, name):
    keys = [f"{name}/{i}" for i in range(500)]
    values = [str(i).encode() * (i % 7) for i in range(500)]
    a.multi_set(keys, values)
    same(a.multi_get(keys), values)
    same(b.multi_get(keys[::-1]), values[::-1])
    same(b.get(keys[3]), values[3])


def queues(a, b, name):
    same(a.queue_length(name), 0)
    a.queue_push(name, b"1")
    a.queue_push(name, b"\0" * 1000)
    a.queue_push(name, b"3")
    same(a.queue_length(name), 3)
    same(b.queue_length(name), 3)
    same(b.queue_pop(name), b"1")
    same(a.queue_pop(name), b"\0" * 1000)
    b.wait([name])
    same(b.check([name]), True)
    same(b.queue_pop(name, 0), b"3")
    fails(lambda: b.queue_pop(name, 0), "timed_out")
    same(b.check([name]), False)


def lists(a, b, name):
    b.add(f"{name}/1", 1)
    b.add(f"{name}/2", 1)
    found = [key for key in a.list_keys() if key.startswith(name)]
    same(sorted(found), [f"{name}/1", f"{name}/2"])


OPERATIONS = [values_cross, counters, waits, checks, deletes, compare_sets, appends, many, queues]


def exercise(title: str, a, b, but: set) -> list[str]:
    """All operations by two clients of one server; what one of them does not have."""
    missing = []
    for operation in OPERATIONS + ([lists] if a.kind == "torch" else []):
        if operation in but:
            continue
        name = f"{title}/{a.kind}-{b.kind}/{operation.__name__}"
        try:
            operation(a, b, name)
        except Missing as none:
            missing.append(operation.__name__)
            print(f"  {operation.__name__:13} {a.kind} and {b.kind}: {none} is not known there")
            continue
        print(f"  {operation.__name__:13} {a.kind} and {b.kind}: ok")
    return missing


def roles(port: int, *ours: str, but: set = frozenset()) -> set[str]:
    """Each kind of client beside each; the operations that one of them does not have."""
    first, second = ([Torch(port), Linkspan(port, *ours)] for _ in range(2))
    missing = set()
    for a in first:
        for b in second:
            if (a.kind, b.kind) != ("torch", "torch"):  # which is not ours to test
                missing.update(exercise(" ".join(ours), a, b, but))
    for each in first + second:
        each.close()
    return missing


def workers():
    """torch's world_size with wait_for_workers, and our count of them."""
    server = subprocess.Popen([TOOL, "store", "--port", "0", "--for", "60"], stdout=subprocess.PIPE,
                              text=True)  # fmt: skip
    port = int(server.stdout.readline().split(":")[2])
    both = [Torch(port, world_size=2, wait_for_workers=True),
            Linkspan(port, "--workers", "2")]  # fmt: skip
    both[1].set("here", b"1")
    same(both[0].get("here"), b"1")
    for each in both:
        each.close()
    server.terminate()
    same(server.wait(ANSWER_S), 0)
    print("  workers       torch's client is content with our server: ok")

    ours = Linkspan(torch_port := free_port(), "--workers", "2")  # before there is a server
    master = Torch(torch_port, master=True, world_size=2, wait_for_workers=True)
    ours.set("there", b"2")
    same(master.get("there"), b"2")
    print("  workers       torch's server waits for our client, which came first: ok")
    ours.close()


def death(libuv: bool | None):
    """A server that is killed: our client says disconnected, and at once."""
    code = ("import sys, datetime, torch.distributed as d; o = eval(sys.argv[1]);"
            "s = d.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False, **o);"
            "print(s.port, flush=True); sys.stdin.read()")  # fmt: skip
    options = {} if libuv is None else {"use_libuv": libuv}
    server = subprocess.Popen([sys.executable, "-c", code, repr(options)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)  # fmt: skip
    client = Linkspan(int(server.stdout.readline()))
    client.set("k", b"v")
    same(client.get("k"), b"v")
    server.kill()
    server.wait()
    fails(lambda: client.get("k"), "disconnected")
    fails(lambda: client.add("k", 1), "disconnected")
    client.close()
    print("  death         our client is told: ok")


class Results:
    """Of the steps, for people and, as gtest writes them, for scripts/check_skips.py."""

    def __init__(self, xml: str | None):
        self.xml = xml and pathlib.Path(xml.removeprefix("xml:"))
        self.suite = ElementTree.Element("testsuite", name="StoreTorch")
        self.faults = 0

    def add(self, title: str, what: str = "", why: str = "") -> None:
        case = ElementTree.SubElement(
            self.suite, "testcase", classname="StoreTorch", name=title, status="run"
        )
        if what:
            ElementTree.SubElement(case, what, message=why)
        self.faults += what == "failure"

    def step(self, title: str, run) -> None:
        print(title, flush=True)
        try:
            run()
            self.add(title)
        except Exception:
            self.add(title, "failure", traceback.format_exc())
            print(traceback.format_exc() + f"FAILED: {title}")

    def end(self) -> int:
        if self.xml:
            self.xml.parent.mkdir(parents=True, exist_ok=True)
            root = ElementTree.Element("testsuites")
            root.append(self.suite)
            ElementTree.ElementTree(root).write(self.xml)
        return 1 if self.faults else 0


def main() -> int:
    global TOOL, MODERN
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", required=True, help="the program `linkspan`")
    parser.add_argument("--need-torch", action="store_true", help="fail without torch")
    parser.add_argument("--gtest_output", help="xml:FILE")
    arguments = parser.parse_args()
    TOOL = arguments.tool
    results = Results(arguments.gtest_output)
    if dist is None or not dist.is_available():
        why = f"needs torch, which {sys.executable} cannot import"
        print(why)
        results.add("AllOperations", "failure" if arguments.need_torch else "skipped", why)
        return results.end()
    MODERN = "use_libuv" in (dist.TCPStore.__init__.__doc__ or "")
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {TOOL}")

    # What this torch's own client lacks, and so its server.
    lacks = set() if MODERN else {"checks", "appends", "many", "queues", "lists"}

    def our_server():
        server = LinkspanServer()
        same(roles(server.port), lacks)
        server.close()

    def torch_server(libuv):
        master = Torch(0, master=True, libuv=libuv)
        # Without libuv its server hangs up on who asks for a queue.
        but = {queues} if libuv is False else set()
        same(roles(master.store.port, but=but), lacks if libuv is None else set())
        if libuv is None:
            roles(master.store.port, "--dialect", "older")
        if libuv is False:
            client = Linkspan(master.store.port)
            fails(lambda: client.queue_length("q"), "disconnected")
            client.close()

    results.step("our server", our_server)
    for libuv in [True, False] if MODERN else [None]:
        named = {True: "libuv", False: "without libuv", None: "its only backend"}[libuv]
        results.step(f"torch's server, {named}", lambda libuv=libuv: torch_server(libuv))
        results.step(f"torch's server dies, {named}", lambda libuv=libuv: death(libuv))
    results.step("workers", workers)
    print(f"{'FAILED' if results.faults else 'ok'} ({results.faults} faults)")
    return results.end()


if __name__ == "__main__":
    sys.exit(main())
