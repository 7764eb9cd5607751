#!/usr/bin/env python3
"""The command line as users and scripts meet it: exit codes, texts, JSON.

cli_test.py TOOL MODE    MODE: cpu (no driver) or simulated; LINKSPAN_CUDA_LIBRARY says the same
"""

import contextlib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOL, MODE = sys.argv[1:3]
GPUS = {"cpu": 0, "simulated": 2}[MODE]
TIMEOUT_S = 60
# Of `bench --suite host --quick`, which are smaller than what they stand for.
CPU_LATENCIES = {
    "cpu_cpu.private.8B.submit_to_done.p50",
    "cpu_cpu.private.4KiB.submit_to_done.p50",
    "cpu_cpu.private.1MiB.submit_to_done.p50",
    "cpu_cpu.shared.8B.submit_to_done.p50",
}
HOST_ROWS = {
    "gpu_gpu.1MiB",
    "gpu_gpu.bidir.1MiB",
    "pages.64x4KiB",
    "pages.64x4KiB.prepared",
    "pages.64x4KiB.gpu_indices",
    "captured_post.64x4KiB",
    "pages.64x16KiB",
    "pages.16x64KiB",
    "pages.64x256B",
    "pages.4x64.sets",
    "pages.4x64.triples",
    "blocks.16x64KiB",
    "blocks.100xodd",
    "gpu_gpu.8B.submit_to_done.p50",
    "gpu_gpu.4KiB.submit_to_done.p50",
    "gpu_gpu.8B.low_latency.p50",
    "gpu_gpu.4KiB.low_latency.p50",
    "gpu_gpu.1MiB.submit_to_done.p50",
    "gpu_gpu.1MiB.depth16",
    "gpu_gpu.8B.notify.one_way.p50",
    "gpu_gpu.8B.notify.low_latency.one_way.p50",
    "pinned_gpu.1MiB.other_process",
    "gpu_pinned.1MiB.other_process",
    "pageable_gpu.1MiB",
    "pageable_gpu.1MiB.read",
    "gpu_pageable.1MiB",
    "gpu_pageable.1MiB.read",
    "cpu_cpu.shared.1MiB",
    "cpu_cpu.private.1MiB",
    *CPU_LATENCIES,
    "host_gpu.two_links.32MiB",
}


def run(*arguments: str, few_descriptors: bool = False, **environment: str):
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    return subprocess.run(
        [TOOL, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        env={**os.environ, **environment},
        preexec_fn=limit if few_descriptors else None,
    )


def texts_of(svg: pathlib.Path) -> list[str]:
    return [e.text or "" for e in xml.etree.ElementTree.parse(svg).iter()]


class Doctor(unittest.TestCase):
    def checks(self, *arguments: str, code: int = 0, **options) -> list[dict]:
        ran = run("doctor", "--json", "-", *arguments, **options)
        self.assertEqual(ran.returncode, code, ran.stderr)
        told = json.loads(ran.stdout)
        self.assertEqual(told["pass"], code == 0)
        self.assertEqual(sum(told["counts"].values()), len(told["checks"]))
        for check in told["checks"]:
            self.assertTrue(check["found"], check)
            if check["level"] != "ok":
                self.assertTrue(check["remedy"], check)
        return told["checks"]

    def find(self, checks: list[dict], area: str, name: str) -> dict:
        found = [c for c in checks if c["area"] == area and c["name"] == name]
        self.assertEqual(len(found), 1, f"{area} {name} in {checks}")
        return found[0]

    def test_the_machine_is_well(self):
        checks = self.checks()
        for name in ("memfd_create", "pidfd_open", "socket folder"):
            self.assertEqual(self.find(checks, "host", name)["level"], "ok")
        paths = {c["name"]: c for c in checks if c["area"] == "2 processes"}
        self.assertIn("memfd", paths["shared -> shared"]["found"])
        self.assertIn("gpu0 -> gpu1" if GPUS else "pageable -> pageable", paths)
        driver = self.find(checks, "driver", "CUDA")
        if GPUS:
            self.assertIn("libfake_cuda.so", driver["found"])
            self.assertIn("4 KiB arrived", self.find(checks, "link", "gpu0 -> gpu1")["found"])
            self.assertIn("GPU-", self.find(checks, "gpu", "gpu0")["found"])
        else:
            self.assertEqual(driver["level"], "warn")

    def test_a_gpu_can_be_required(self):
        if GPUS:
            self.checks("--gpu")
        else:
            checks = self.checks("--gpu", code=1)
            self.assertEqual(self.find(checks, "driver", "CUDA")["level"], "FAIL")

    @unittest.skipUnless(GPUS, "needs a GPU")
    def test_gpus_that_a_variable_hides(self):
        for value, shown in (("7", "no GPU"), ("0,7", "1 of the GPUs"), ("GPU-none", "no GPU")):
            checks = self.checks(CUDA_VISIBLE_DEVICES=value)
            check = self.find(checks, "gpu", "CUDA_VISIBLE_DEVICES")
            self.assertEqual(check["level"], "warn")
            for text in (f'"{value}" shows {shown}', "there are 0 (Simulated", "1 (Sim", "GPU-"):
                self.assertIn(text, check["found"])
            self.assertIn("unset CUDA_VISIBLE_DEVICES", check["remedy"])
        names = [each["name"] for each in self.checks(CUDA_VISIBLE_DEVICES="1,0")]
        self.assertNotIn("CUDA_VISIBLE_DEVICES", names)

    def test_a_setting_that_makes_no_sense(self):
        checks = self.checks(code=1, LINKSPAN_LOG_LEVEL="loud")
        check = self.find(checks, "settings", "LINKSPAN_LOG_LEVEL")
        self.assertEqual(check["level"], "FAIL")
        self.assertIn('"loud"', check["found"])
        self.assertIn("WARNING", check["found"])

    def test_a_setting_with_which_no_engine_opens(self):
        for name, value, told in (
            ("LINKSPAN_METRICS", "garbage", "10.0.0.7:9400"),
            ("LINKSPAN_METRICS_RANK", "x", "whole number"),
            ("LINKSPAN_SECRET", "short", "5 bytes"),
            ("LINKSPAN_SECRET_FILE", "/nonexistent", "not there"),
            ("LINKSPAN_SECURITY", "authenticated", "needs a secret"),
        ):
            with self.subTest(name):
                checks = self.checks(code=1, **{"LINKSPAN_METRICS": "9400", name: value})
                check = self.find(checks, "settings", name)
                self.assertEqual(check["level"], "FAIL")
                self.assertIn(told, check["found"])
                self.assertEqual([c for c in checks if c["area"] == "2 processes"], [])
                others = {"LINKSPAN_METRICS", "LINKSPAN_SECURITY"} - {name}
                for other in others:
                    self.assertEqual(self.find(checks, "settings", other)["level"], "ok")

    def test_settings_and_where_they_come_from(self):
        checks = self.checks(LINKSPAN_CPU_THREADS="3", LINKSPAN_CPU_TREADS="4")
        given = self.find(checks, "settings", "LINKSPAN_CPU_THREADS")["found"]
        self.assertEqual(given, '"3" (environment)')
        default = self.find(checks, "settings", "LINKSPAN_TRANSFER_DEADLINE_MS")["found"]
        self.assertEqual(default, "30000 (default)")
        self.assertEqual(self.find(checks, "settings", "LINKSPAN_CPU_TREADS")["level"], "warn")

    def test_a_runtime_folder_that_is_not_there(self):
        gone = "/run/user/4242424"
        checks = self.checks(code=1, XDG_RUNTIME_DIR=gone, LINKSPAN_SOCKET_DIR="")
        found = self.find(checks, "host", "socket folder")["found"]
        for text in (f'XDG_RUNTIME_DIR="{gone}"', f"make {gone}", "set LINKSPAN_SOCKET_DIR"):
            self.assertIn(text, found)

    def test_socket_folders(self):
        with tempfile.TemporaryDirectory() as folder:
            absent = pathlib.Path(folder) / "absent"
            self.checks(LINKSPAN_SOCKET_DIR=str(absent))
            self.assertFalse(absent.exists(), "the doctor leaves nothing behind")
            os.chmod(folder, 0o777)
            checks = self.checks(code=1, LINKSPAN_SOCKET_DIR=folder)
            self.assertEqual(self.find(checks, "host", "socket folder")["level"], "FAIL")
            os.chmod(folder, 0o700)
            self.checks(LINKSPAN_SOCKET_DIR=folder)
            self.assertEqual(os.listdir(folder), [])

    def test_few_descriptors(self):
        checks = self.checks(few_descriptors=True)
        self.assertEqual(self.find(checks, "host", "RLIMIT_NOFILE")["level"], "warn")

    def test_rdma_devices(self):
        none = self.find(self.checks(LINKSPAN_VERBS_LIBRARY="libno-such-library.so"), "rdma", "devices")
        self.assertEqual(none["level"], "ok")
        self.assertIn("no libibverbs", none["found"])
        fake = str(pathlib.Path(TOOL).parent / "libfake_verbs.so")
        found = self.find(self.checks(LINKSPAN_VERBS_LIBRARY=fake), "rdma", "devices")["found"]
        self.assertRegex(found, r"fake0 port 1 \(RoCE, GID [0-9a-f.:]+, MTU 1024\), fake1 port 1 ")
        checks = self.checks(code=1, LINKSPAN_VERBS_LIBRARY=fake, LINKSPAN_VERBS_DEVICES="mlx5_9")
        self.assertIn('"mlx5_9"', self.find(checks, "rdma", "devices")["found"])

    def test_secret_stays_one(self):
        ran = run("doctor", LINKSPAN_SECRET="nobody is to see this")
        self.assertRegex(ran.stdout, r"(?m)^ok +settings +LINKSPAN_SECRET +set \(environment\)")
        self.assertNotIn("nobody is to see", ran.stdout + ran.stderr)

    def test_text(self):
        ran = run("doctor")
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assertRegex(ran.stdout, r"(?m)^ok +host +memfd_create ")
        self.assertRegex(ran.stdout, r"\d+ ok, \d+ to look at \(warn\), 0 that must")


class Bench(unittest.TestCase):
    kinds = ["host", "shared"] + (["device0", "device1", "pinned"] if GPUS else [])

    def rows(self, *arguments: str, code: int = 0) -> list[dict]:
        ran = run("bench", "--json", "-", *arguments)
        self.assertEqual(ran.returncode, code, ran.stderr)
        return json.loads(ran.stdout)["rows"]

    def test_rows(self):
        what = ["--sizes", "8,100KiB,2MiB", "--kinds", ",".join(self.kinds), "--op", "both"]
        rows = self.rows(*what, "--runs", "3", "--with-ceiling")
        self.assertEqual(len(rows), 3 * len(self.kinds) ** 2 * 2)
        self.assertEqual(len({row["id"] for row in rows}), len(rows))
        for row in rows:
            self.assertTrue(row["verified"], row)
            self.assertEqual((row["runs"], row["depth"]), (3, 1))
            self.assertGreater(row["value"], 0, row)
            ratio = row["value"] / row["ceiling"]
            self.assertAlmostEqual(row["ratio"], ratio, delta=0.01 * ratio)
            self.assertGreaterEqual(row["p99_us"], row["value"] if row["unit"] == "us" else 0)
            self.assertTrue(row["ceiling_how"] and row["path"])
            small = ".8B." in row["id"] or ".100KiB." in row["id"]
            self.assertEqual(row["unit"], "us" if small else "GB/s")
            self.assertEqual(".submit_to_done.p50" in row["id"], small)
        ids = [row["id"] for row in rows]
        self.assertIn("pageable_shared.2MiB.read", ids)
        if GPUS:
            self.assertIn("gpu_gpu.8B.submit_to_done.p50", ids)

    def test_depth_without_ceiling(self):
        shared = ["--sizes", "2MiB", "--kinds", "shared", "--runs", "5"]
        (row,) = self.rows(*shared, "--depth", "64")
        self.assertEqual(row["id"], "shared_shared.2MiB.depth64")
        self.assertEqual((row["unit"], row["depth"]), ("GB/s", 64))
        self.assertIsNone(row["ceiling"])
        self.assertIsNone(row["ratio"])
        one = max(self.rows(*shared)[0]["value"] for _ in range(3))  # a busy machine's are too small
        self.assertLess(row["value"], 40 * one, "64 transfers cannot take one's time")

    def test_unverified_rows_say_so(self):
        (row,) = self.rows("--sizes", "8", "--kinds", "shared", "--runs", "2", "--no-verify")
        self.assertFalse(row["verified"])

    def test_foundation(self):
        suite = ["--suite", "foundation", "--quick", "--with-ceiling"]
        if not GPUS:
            ran = run("bench", *suite)
            self.assertEqual(ran.returncode, 1)
            self.assertIn("needs two GPUs; this machine shows none", ran.stdout)
            self.assertIn("Nothing was measured", ran.stdout)
            return
        rows = {row["id"]: row for row in self.rows(*suite)}
        self.assertEqual(len(rows), 6)
        small = rows["gpu_gpu.8B.submit_to_done.p50"]
        self.assertEqual(small["bar"], 1.25)
        self.assertEqual(small["pass"], small["ratio"] <= 1.25)
        hosts = [row for row in rows if "pinned" in row]
        self.assertEqual(len([row for row in hosts if row.endswith(".read")]), 2)
        self.assertEqual(len({rows[row]["executor"] for row in hosts}), 2)

    def test_host(self):
        ran = run("bench", "--suite", "host", "--quick", "--runs", "3", "--with-ceiling",
                  "--json", "-")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        told = json.loads(ran.stdout)
        rows = {row["id"]: row for row in told["rows"]}
        absent = {row["id"]: row["why"] for row in told.get("absent", [])}
        self.assertEqual(len(rows), len(told["rows"]), "an id is one row's")
        self.assertEqual(rows.keys() | absent.keys(), HOST_ROWS)
        self.assertEqual(len(rows) + len(absent), len(HOST_ROWS))
        for row in rows.values():
            self.assertTrue(row["verified"], row)
            self.assertIn(row["runs"], range(1, 4))  # fewer where 4 s were over
            self.assertGreater(min(row["value"], row["ceiling"], row["ratio"]), 0, row)
            self.assertTrue(row["ceiling_how"], row)
            self.assertGreaterEqual(row["max_us"], row["p99_us"])
            self.assertEqual(row["unit"], "us" if row["id"].endswith(".p50") else "GB/s")
        if not GPUS:
            self.assertEqual(rows.keys(), {"cpu_cpu.shared.1MiB", "cpu_cpu.private.1MiB"} | CPU_LATENCIES)
            self.assertIn("needs two GPUs", absent["pages.64x4KiB"])
            self.assertIn("needs a GPU", absent["pageable_gpu.1MiB"])
            return
        self.assertEqual(absent, {})
        self.assertEqual(rows["pages.64x4KiB"]["path"], "cuda_ipc+sm_kernel")
        self.assertIn("indices in mapped memory", rows["pages.64x4KiB.prepared"]["ceiling_how"])
        self.assertIn("in the GPU's memory", rows["pages.64x4KiB.gpu_indices"]["ceiling_how"])
        for row in ("pages.4x64.sets", "pages.4x64.triples"):
            self.assertEqual(rows[row]["path"], "cuda_ipc+sm_kernel")
            self.assertEqual(rows[row]["executor"], "here")
            self.assertIn("one list of all regions in the GPU's", rows[row]["ceiling_how"])
        for row in ("pageable_gpu.1MiB", "gpu_pageable.1MiB.read"):
            self.assertIn("8 threads with pinned slots", rows[row]["ceiling_how"])
            self.assertIn("cuStreamSynchronize", rows[row]["beside"][-1]["how"])
        small = rows["gpu_gpu.8B.submit_to_done.p50"]
        self.assertEqual((small["bar"], small["pass"]), (1.1, small["ratio"] <= 1.1))
        self.assertGreaterEqual(small["beside"][0]["value"], small["ceiling"], "the faster one")
        two_links = rows["host_gpu.two_links.32MiB"]
        self.assertIn("half through another GPU", two_links["ceiling_how"])
        self.assertEqual(len(two_links["beside"]), 1, "fetched and pushed")
        notify = rows["gpu_gpu.8B.notify.one_way.p50"]
        self.assertEqual((notify["bar"], notify["bar_unit"]), (7.4, "us"))
        self.assertEqual(notify["pass"], notify["value"] <= 7.4)

    @unittest.skipUnless(GPUS, "over one GPU")
    def test_host_with_one_gpu(self):
        ran = run("bench", "--suite", "host", "--quick", "--runs", "3", "--json", "-",
                  CUDA_VISIBLE_DEVICES="0")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        told = json.loads(ran.stdout)
        self.assertEqual({row["why"] for row in told["absent"]},
                         {"needs two GPUs; this machine shows one"})  # fmt: skip
        self.assertIn("pinned_gpu.1MiB.other_process", {row["id"] for row in told["rows"]})

    def test_many_pieces(self):
        what = ["--kinds", ",".join(self.kinds), "--sizes", "1,257,4KiB", "--runs", "2"]
        for shape, ending in (("--blocks", "33x4KiB"), ("--pages", "33x4KiB.pages")):
            rows = self.rows(*what, shape, "33", "--op", "both", "--depth", "2", "--with-ceiling")
            self.assertEqual(len({row["id"] for row in rows}), 3 * len(self.kinds) ** 2 * 2)
            for row in rows:
                self.assertTrue(row["verified"], row)
                self.assertEqual((row["unit"], row["depth"]), ("GB/s", 2))
                self.assertIsNone(row["ceiling"], "no bare call does the like")
            self.assertIn(f"shared_shared.{ending.replace('KiB', 'KiB.depth2', 1)}",
                          {row["id"] for row in rows})  # fmt: skip
        if GPUS:
            (row,) = self.rows("--kinds", "device1", "--sizes", "4KiB", "--pages", "7", "--runs", "3",
                               "--with-ceiling")  # fmt: skip
            self.assertIn("a kernel", row["ceiling_how"])

    def test_against_an_earlier_run(self):
        shared = ["bench", "--sizes", "8,2MiB", "--kinds", "shared", "--runs", "3"]
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "rows.json"
            self.assertEqual(run(*shared, "--json", str(file)).returncode, 0)
            told = json.loads(file.read_text())
            small, large = told["rows"]
            small["value"] = large["value"] = 1e-6  # us, GB/s: no machine is near
            told["rows"].append({"id": "gpu_gpu.1GiB", "value": 1.0, "unit": "GB/s"})
            file.write_text(json.dumps(told))
            ran = run(*shared, "--sizes", "8,2MiB,3MiB", "--baseline", str(file))
            self.assertEqual(ran.returncode, 0, ran.stderr)
            self.assertRegex(ran.stdout, r"(?m)^shared_shared\.8B\S+ .* us +\+\d+\.\d % .*WORSE$")
            self.assertRegex(ran.stdout, r"(?m)^shared_shared\.2MiB .* GB/s +\+\d+\.\d % .*better$")
            self.assertIn("only now: shared_shared.3MiB", ran.stdout)
            self.assertIn("only before: gpu_gpu.1GiB", ran.stdout)
            again = [*shared, "--json", str(file), "--baseline", str(file)]
            self.assertIn("against ", run(*again).stdout, "it is read before it is written")

    def test_a_picture(self):
        with tempfile.TemporaryDirectory() as folder:
            svg = pathlib.Path(folder) / "rows.svg"
            shared = ["--sizes", "8,2MiB", "--kinds", "shared", "--runs", "2", "--with-ceiling"]
            rows = self.rows(*shared, "--svg", str(svg))
            texts = texts_of(svg)
            self.assertEqual([row["id"] for row in rows if row["id"] not in texts], [])
            self.assertEqual(len([t for t in texts if t.endswith("of the bare call")]), 2)
            self.assertIn("us, less is better", texts)

    def test_the_limit_ends_it(self):
        large = ["--kinds", "host", "--sizes", "64MiB,64MiB", "--runs", "1000000"]
        ran = run("bench", *large, "--limit", "1")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("--limit", ran.stdout)
        self.assertIn("absent pageable_pageable.64MiB: not come to", ran.stdout)

    def test_text(self):
        ran = run("bench", "--kinds", "shared", "--sizes", "8", "--runs", "2")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("1 rows, 1 verified, 0 failed", ran.stdout)


class Topo(unittest.TestCase):
    def test_a_matrix(self):
        with tempfile.TemporaryDirectory() as folder:
            svg = pathlib.Path(folder) / "topo.svg"
            ran = run("topo", "--bytes", "100KiB", "--json", "-", "--svg", str(svg))
            self.assertEqual(ran.returncode, 0, ran.stderr)
            names = ["gpu0", "gpu1", "pinned"][: GPUS + 1 if GPUS else 0] + ["pageable", "shared"]
            rows = json.loads(ran.stdout)["rows"]
            self.assertEqual(len(rows), len(names) ** 2)
            self.assertTrue(all(row["verified"] and row["path"] for row in rows))
            self.assertRegex(ran.stderr, rf"(?m)^from \S+ to +{' +'.join(names)}$")
            self.assertRegex(ran.stderr, r"(?m)^shared( +[0-9.]+ [A-Z])+$")
            self.assertRegex(ran.stderr, r"(?m)^[A-Z]  memfd\+cpu_threads$")
            texts = texts_of(svg)
            self.assertEqual([name for name in names if name not in texts], [])
            self.assertEqual(len([t for t in texts if re.fullmatch(r"[0-9.]+ [A-Z]", t)]), len(rows))
            self.assertTrue(any(t.startswith("pageable -> shared: memfd") for t in texts), texts)
            self.assertTrue(any(re.fullmatch(r"[A-Z]  memfd\+cpu_threads", t) for t in texts), texts)

    @unittest.skipUnless(GPUS, "over four GPUs")
    def test_all_gpus(self):
        ran = run("topo", "--bytes", "4KiB", FAKE_CUDA_DEVICES="4")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertRegex(ran.stdout, r"(?m)^gpu3( +[0-9.]+ [A-Z]){7}$")


class PsOfTwo(unittest.TestCase):
    """A process, this one, whose two Engines answer."""

    TEXT, END = 3, 4  # IntrospectionOp

    def answer(self, listening: socket.socket, text: str):
        asked, _ = listening.accept()
        with asked:
            asked.recv(24, socket.MSG_WAITALL)
            for op, payload in ((self.TEXT, text.encode()), (self.END, b"")):
                asked.sendall(struct.pack("<IHHQQ", len(payload), 1, op, 0, 0) + payload)

    def test_metrics_have_one_head_a_family(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            for name in ("a", "b"):
                listening = stack.enter_context(socket.socket(socket.AF_UNIX))
                listening.bind(f"{folder}/linkspan-ps-{name}")
                listening.listen()
                text = ""
                for family in ("linkspan_engine_info", "linkspan_peers"):
                    text += f"# TYPE {family} gauge\n"
                    text += f'{family}{{engine="{name}",pid="{os.getpid()}"}} 1\n'
                threading.Thread(target=self.answer, args=(listening, text), daemon=True).start()
            ran = run("ps", "--metrics", str(os.getpid()), LINKSPAN_SOCKET_DIR=folder)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertEqual(ran.stdout.count("# TYPE linkspan_peers gauge"), 1)
        for name in ("a", "b"):
            self.assertIn(f'linkspan_peers{{engine="{name}",pid="{os.getpid()}"}} 1', ran.stdout)


class Ps(unittest.TestCase):
    """Beside a bench that would run for long: an Engine that connects, its child one that listens."""

    def setUp(self):
        sizes = ",".join(f"{each}MiB" for each in range(16, 31))  # of each it measures for 4 s
        what = ["--kinds", "host", "--sizes", sizes, "--runs", "1000000", "--limit", "60"]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.bench = subprocess.Popen([TOOL, "bench", *what], **pipes)
        limit = time.monotonic() + 20
        while "transfers_ok_total{" not in run("ps", "--metrics", str(self.bench.pid)).stdout:
            self.assertLess(time.monotonic(), limit, run("ps").stdout)

    def tearDown(self):
        self.bench.kill()  # its child ends with it
        self.bench.wait()

    def listed(self) -> dict[str, str]:
        ran = run("ps")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        return dict(line.split("\t") for line in ran.stdout.splitlines() if "\t" in line)

    def told_by(self, pid: int) -> str:
        """What it tells in the end: on a busy machine a process may not answer in ps' 2 s."""
        limit = time.monotonic() + 20
        while (ran := run("ps", str(pid))).returncode != 0 and time.monotonic() < limit:
            pass
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        return ran.stdout

    def test_a_process_is_listed_and_tells(self):
        found = self.listed()
        self.assertRegex(found[str(self.bench.pid)], "^engine .*does not listen")
        told = self.told_by(self.bench.pid)
        self.assertRegex(told, r"(?m)^peer 1 .*: up, .*by local; .*imported ")
        self.assertRegex(told, r"(?m)^region \d+: host memory, ")
        child = int(re.search(r"(?m)^peer 1 .*\(pid (\d+)\)", told)[1])
        self.assertIn("listens at unix:", found[str(child)])
        self.assertRegex(self.told_by(child), r"was sent the keys of region \d+")

    def test_metrics_are_what_prometheus_reads(self):
        text = run("ps", "--metrics", str(self.bench.pid)).stdout
        name, label = r"[a-z_]+", r'[a-z]+="(?:[^"\\]|\\["\\n])*"'
        sample = re.compile(rf"({name})(?:{{{label}(?:,{label})*}})? ([0-9.e+-]+)")
        typed: dict[str, str] = {}
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, family, kind = line.split()
                self.assertNotIn(family, typed)
                typed[family] = kind
            elif not line.startswith("# HELP "):
                found = sample.fullmatch(line)
                self.assertIsNotNone(found, line)
                float(found[2])
                family = re.sub("_(bucket|sum|count)$", "", found[1])
                self.assertTrue({family, found[1]} & typed.keys(), line)
        self.assertEqual(typed["linkspan_transfer_seconds"], "histogram")
        self.assertRegex(text, r'linkspan_bytes_total{engine="[^"]+",pid="\d+",peer="1",name="[^"]+",op="\w+",path="\w+\+\w+"} ')

    def test_watch_shows_what_moves(self):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen([TOOL, "ps", "--watch"], **pipes) as watch:
            row = ""
            moves = re.compile(
                rf" *{self.bench.pid}  \S.*  [0-9.]+ +[1-9]\d* +[0-9.]+ +\d+ +\d+ +0  \w+\+\w+\n"
            )
            limit = time.monotonic() + 20
            while not moves.fullmatch(row) and time.monotonic() < limit:
                row = watch.stdout.readline()
            self.assertRegex(row, moves)
            watch.send_signal(signal.SIGINT)
            _, errors = watch.communicate(timeout=TIMEOUT_S)
            self.assertEqual((watch.returncode, errors), (0, ""))

    def test_all_are_served_by_http(self):
        with subprocess.Popen(
            [TOOL, "ps", "--listen", "0"], stdout=subprocess.PIPE, text=True
        ) as server:
            url = server.stdout.readline().removeprefix("metrics at ").strip()
            self.assertRegex(url, r"^http://127\.0\.0\.1:\d+/metrics$")
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                text = answer.read().decode()
            second = run("ps", "--listen", url.split("/")[2])
            server.send_signal(signal.SIGTERM)
            self.assertEqual(server.wait(TIMEOUT_S), 0)
        self.assertEqual(text.count("# TYPE linkspan_peers gauge"), 1)
        self.assertIn(f'linkspan_peers{{engine="near end",pid="{self.bench.pid}"}} 1', text)
        self.assertRegex(text, r'(?m)^linkspan_peers{engine="far end",pid="\d+"} 1$')
        self.assertEqual(second.returncode, 1)
        self.assertIn("Address already in use", second.stderr)

    def test_one_that_is_stopped_is_named_in_time(self):
        os.kill(self.bench.pid, signal.SIGSTOP)
        os.waitpid(self.bench.pid, os.WUNTRACED)  # all its threads: one might still answer
        begin = time.monotonic()
        ran = run("ps", str(self.bench.pid))
        self.assertEqual(ran.returncode, 1)
        self.assertIn("stopped", ran.stderr)
        self.assertIn("stopped", self.listed()[str(self.bench.pid)])
        self.assertLess(time.monotonic() - begin, 20)

    def test_after_sigkill_nothing_is_left(self):
        self.tearDown()
        self.assertNotIn(str(self.bench.pid), self.listed())
        ran = run("ps", str(self.bench.pid))
        self.assertEqual(ran.returncode, 1)
        self.assertIn(f"there is no process {self.bench.pid}", ran.stderr)

    def test_who_has_none(self):
        ran = run("ps", str(os.getpid()))
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))
        self.assertIn(f"process {os.getpid()} has no Engine open", ran.stderr)

    @unittest.skipUnless(os.geteuid() == 0, "needs root: it asks as another user")
    def test_another_users(self):
        with tempfile.TemporaryDirectory() as folder:  # which that user can enter
            os.chmod(folder, 0o755)
            tool = shutil.copy(TOOL, folder)

            def ask(*arguments: str):
                return subprocess.run(
                    [tool, "ps", *arguments], capture_output=True, text=True, check=False,
                    timeout=TIMEOUT_S, user=65534, cwd="/",
                )  # fmt: skip

            ran = ask(str(self.bench.pid))
            self.assertEqual(ran.returncode, 1)
            self.assertIn("is of uid 0", ran.stderr)
            self.assertNotIn(str(self.bench.pid), ask().stdout)
            self.assertIn("is of uid 0", ask("1").stderr)


class Store(unittest.TestCase):
    def setUp(self):
        serve = [TOOL, "store", "--port", "0", "--for", "60"]
        self.server = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
        line = self.server.stdout.readline()
        self.assertRegex(line, r"^store at tcp:127\.0\.0\.1:\d+\n$")
        self.port = line.strip().rsplit(":", 1)[1]

    def tearDown(self):
        self.server.send_signal(signal.SIGINT)
        self.assertEqual(self.server.communicate(timeout=TIMEOUT_S), ("", None))
        self.assertEqual(self.server.returncode, 0)

    def ask(self, *words: str, code: int = 0) -> str:
        ran = run("store", "--port", self.port, "--timeout", "2", *words)
        self.assertEqual(ran.returncode, code, ran.stderr)
        return ran.stdout if code == 0 else ran.stderr

    def test_operations(self):
        self.assertEqual(self.ask("set", "k", "a value"), "")
        self.assertEqual(self.ask("get", "k"), "a value\n")
        self.assertEqual(self.ask("add", "n", "-3"), "-3\n")
        self.assertEqual(self.ask("check", "k", "n"), "1\n")
        self.assertEqual(self.ask("multi_set", "a", "1", "b", "2"), "")
        self.assertEqual(self.ask("multi_get", "b", "a"), "2\n1\n")
        self.assertEqual(self.ask("num_keys"), "4\n")
        self.assertIn("waited for", self.ask("get", "none", code=1))
        self.assertIn("KEY VALUE", self.ask("set", "k", code=2))
        self.assertIn("compare_set", self.ask("frob", code=2))
        self.assertIn("in use", run("store", "--port", self.port).stderr)

    def test_texts_are_stored_as_they_are(self):
        for text in ("[x]", '["a"]', "[]", "[1,2]", "{}", "%%", "", "topo", "-3", '"q"'):
            self.ask("set", "k", text)
            self.assertEqual(self.ask("get", "k"), f"{text}\n")
        for text in ("-v", "--port", "++"):
            self.ask("--", "set", "k", text)
            self.ask("set", "--", "l", text)
            self.assertEqual(self.ask("multi_get", "k", "l"), f"{text}\n{text}\n")
        self.ask("append", "[k]", "[1]")
        self.ask("append", "[k]", "[2]")
        self.assertEqual(self.ask("get", "[k]"), "[1][2]\n")
        self.assertEqual(self.ask("check", "[k]", "k"), "1\n")

    def test_numbers_of_json_are_whole_and_in_range(self):
        lines = [f'{{"op": "add", "keys": ["n"], "number": {number}}}'
                 for number in ("9223372036854775808", "1e30", "2.9", "true", "-5")]  # fmt: skip
        lines += [f'{{"op": "get", "keys": ["none"], "timeout_ms": {ms}}}'
                  for ms in ("4294967297", "-1", '"5"', "5")]  # fmt: skip
        ran = subprocess.run(
            [TOOL, "store", "--port", self.port, "-"], input="\n".join(lines), capture_output=True,
            text=True, check=False, timeout=TIMEOUT_S,
        )  # fmt: skip
        answers = [json.loads(line) for line in ran.stdout.splitlines()]
        refused = [(a["code"], a["what"]) for a in answers if a["code"] == "invalid_argument"]
        self.assertEqual(len(refused), 7, answers)
        self.assertIn('"number": 9223372036854775808 is no whole number', refused[0][1])
        self.assertIn('"timeout_ms": 4294967297 is no whole number from 0 to 2147483647', refused[4][1])
        self.assertEqual((answers[4]["code"], answers[4]["number"]), ("ok", -5))
        self.assertEqual(answers[8]["code"], "timed_out")

    def serve_for_workers(self, *arguments: str):
        """The process, which waits for three, and its port."""
        server = subprocess.Popen(
            [TOOL, "store", "--port", "0", "--workers", "3", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.addCleanup(server.communicate)
        self.addCleanup(server.kill)
        line = server.stdout.readline()
        self.assertRegex(line, r"^store at tcp:127\.0\.0\.1:\d+\n$")
        return server, line.strip().rsplit(":", 1)[1]

    def test_workers_find_it_and_are_awaited(self):
        server, port = self.serve_for_workers("--timeout", "30", "--for", "1")
        for _ in range(2):
            self.assertIsNone(server.poll())
            ran = run("store", "--port", port, "--workers", "3", "set", "k", "v")
            self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(server.wait(20), 0)

    def test_workers_that_do_not_come_are_counted(self):
        for timeout in ("1", "4", "16"):  # on a slow machine the worker may come too late
            server, port = self.serve_for_workers("--timeout", timeout)
            ran = run("store", "--port", port, "--workers", "3", "set", "k", "v")
            _, errors = server.communicate(timeout=TIMEOUT_S)
            self.assertEqual(server.returncode, 1, errors)
            if "2 of 3" not in errors:
                break
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("1 of 3 workers have not come", errors)

    def test_a_signal_ends_it_while_workers_are_awaited(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            server, _ = self.serve_for_workers("--timeout", "30")
            server.send_signal(number)
            self.assertEqual(server.wait(10), 0)

    def test_beyond_loopback_it_says_so(self):
        ran = run("store", "--host", "0.0.0.0", "--port", "0", "--for", "1")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("insecure", ran.stderr)
        ran = run("store", "--host", "0.0.0.0", "--port", "0", "--for", "1", "--insecure")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("insecure: everybody", ran.stdout)


class BadArguments(unittest.TestCase):
    def refused(self, arguments: list[str], *told: str) -> None:
        ran = run(*arguments)
        self.assertEqual(ran.returncode, 2, f"{arguments}: {ran.stdout}{ran.stderr}")
        for text in told:
            self.assertIn(text, ran.stderr, arguments)
        self.assertEqual(ran.stdout, "")

    def test_they_are_named_with_the_remedy(self):
        self.refused([], "demo", "doctor", "bench", "options")
        self.refused(["frob"], '"frob"', "doctor")
        self.refused(["doctor", "--jsn"], "--jsn", "linkspan doctor --help")
        self.refused(["bench", "--sizes", "8,12Q"], '"12Q"', "4KiB")
        self.refused(["bench", "--sizes", "0"], '"0"')
        self.refused(["bench", "--sizes", "65GiB"], '"65GiB"', "64 GiB")
        self.refused(["bench", "--kinds", "host,gpu"], '"gpu"', "device0")
        self.refused(["bench", "--op", "push"], '"push"', "both")
        self.refused(["bench", "--suite", "all"], '"all"', "foundation")
        self.refused(["bench", "--depth", "257"], '"257"', "256")
        self.refused(["bench", "--depth", "256", "--sizes", "1GiB"], "256 transfers of 1GiB")
        self.refused(["bench", "--runs", "many"], '"many"')
        self.refused(["bench", "--checksum"], "--checksum", "--to")
        self.refused(["bench", "--suite", "foundation", "--sizes", "8"], "leave out --sizes")
        self.refused(["bench", "--suite", "host", "--pages", "8"], "leave out --sizes", "--pages")
        self.refused(["bench", "--only", "1GiB"], "--only", "--suite names one")
        self.refused(["bench", "--suite", "host", "--only", "1TiB"], '"1TiB"', "--suite host")
        self.refused(["bench", "--blocks", "2", "--pages", "2"], "--blocks or --pages")
        self.refused(["bench", "--pages", "70000", "--sizes", "1MiB"], "70000x1MiB")
        self.refused(["bench", "--baseline", "/nonexistent/x"], "/nonexistent/x")
        self.refused(["bench", "--baseline", "/"], "--baseline: / is no file")
        self.refused(["topo", "--svg", "/nonexistent/x"], "--svg", "/nonexistent/x")
        self.refused(["bench", "--baseline", __file__], "no file that --json wrote")
        self.refused(["bench", "--enforce"], "--with-ceiling")
        self.refused(["bench", "--json", "/nonexistent/x"], "/nonexistent/x")
        self.refused(["demo", "--bytes", "-1"], "-1")
        self.refused(["ps", "bench"], '"bench"')
        self.refused(["ps", "0"], '"0"')
        self.refused(["ps", "--metrics"], "PID")
        self.refused(["ps", "--watch", "--listen", "9400"], "exclude each other")
        self.refused(["ps", "--listen", "example.org:9400"], '"example.org:9400" is no address')
        if not GPUS:
            self.refused(["bench", "--kinds", "device0"], '"device0"', "linkspan doctor")


class Others(unittest.TestCase):
    def test_what_cannot_be_written_is_a_failure(self):
        for arguments in (["options"], ["--help"], ["doctor"], ["topo", "--bytes", "8"], ["ps"],
                          ["bench", "--kinds", "shared", "--sizes", "8", "--runs", "1"]):  # fmt: skip
            with self.subTest(arguments), open("/dev/full", "w", encoding="utf-8") as full:
                ran = subprocess.run([TOOL, *arguments], stdout=full, stderr=subprocess.PIPE,
                                     text=True, check=False, timeout=TIMEOUT_S)  # fmt: skip
                self.assertEqual(ran.returncode, 1)
                self.assertIn("stdout", ran.stderr)

    def test_demo_rows_keep_their_ids(self):
        ran = run("demo", "--quick", "--json", "-")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        ids = [row["id"] for row in json.loads(ran.stdout)["rows"]]
        self.assertIn("pageable_shared.1MiB", ids)
        self.assertIn("pageable_shared.8B.submit_to_done.p50", ids)
        if GPUS:
            self.assertIn("gpu_gpu.1MiB", ids)
            self.assertIn("gpu_pinned.1MiB.read", ids)
        self.assertIn("every byte verified", ran.stderr)

    def test_options_are_documented(self):
        ran = run("options", "--markdown")
        written = (ROOT / "docs/options.md").read_text()
        self.assertEqual(ran.stdout, written, "`./dev docs` makes docs/options.md again")
        self.assertIn("LINKSPAN_SOCKET_DIR", run("options").stdout)

    def test_help(self):
        for verb in ([], ["demo"], ["doctor"], ["bench"], ["topo"], ["ps"], ["store"], ["options"]):
            ran = run(*verb, "--help")
            self.assertEqual((ran.returncode, ran.stderr), (0, ""))
            self.assertIn("Usage", ran.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
