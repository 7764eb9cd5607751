#!/usr/bin/env python3
"""`./dev bench --peers`: bench/peers/compare.py and table.py, from small JSON, no network."""

import argparse
import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "peers"))
import compare  # noqa: E402
import gpus  # noqa: E402
import table  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def row(id: str, value: float, unit: str = "us", bare: float | None = None, **peers: float) -> dict:
    made = {"id": id, "value": value, "unit": unit}
    made["beside"] = [{"how": f"{name} 1.0: put", "value": each} for name, each in peers.items()]
    return made if bare is None else made | {"ceiling": bare, "ceiling_how": "memcpy", "ratio": 2.0}


def lines_of(rows: list[dict]) -> dict[str, list[str]]:
    """The words of each line of the table, by the first."""
    return {line.split()[0]: line.split()[1:] for line in table.table(rows, []).splitlines()}


class Table(unittest.TestCase):
    def test_the_best_is_marked(self):
        for unit, marked in (("us", ["2", "1.5*"]), ("GB/s", ["2*", "1.5"])):
            line = lines_of([row("r", 2, unit, bare=9 if unit == "GB/s" else 0.1, ucx=1.5)])["r"]
            self.assertEqual([line[0], line[3]], marked)
            self.assertEqual(line[-1], unit)
            self.assertNotIn("*", line[-2])  # a bare call is no peer

    def test_linkspan_alone_is_not_the_best_of_one(self):
        self.assertEqual(lines_of([row("r", 2)])["r"], ["2", *"------", "us"])

    def test_columns_stand_below_each_other(self):
        rows = [row("a.long.name", 1234.5, nixl=2), row("b", 1, nixl=20000, mooncake=3)]
        lines = table.table(rows, []).splitlines()[:3]
        self.assertEqual(len({line.rindex("  ") for line in lines}), 1)

    def test_a_reason_is_told_once(self):
        text = table.table([], [{"id": each, "why": "needs a GPU"} for each in ("a", "b")])
        self.assertIn("absent: a, b: needs a GPU", text)

    def test_of_several_ways_of_a_peer_the_best_counts(self):
        ways = [{"how": f"NCCL's sockets, {n}", "value": n} for n in (3, 5, 4)]
        line = lines_of([{"id": "r", "value": 9, "unit": "GB/s", "beside": ways}])["r"]
        self.assertEqual((line[0], line[4]), ("9*", "5"))

    def test_bare_sockets_are_the_ceiling_of_nccl(self):
        rows = [
            row("sendrecv.8B", 3, bare=2.5, nccl=2.5),
            row("sendrecv.256MiB", 14, "GB/s", nccl=4),
            row("sendrecv.256MiB.vs_default", 14, "GB/s", bare=4),
            row("sendrecv.256MiB.vs_sockets", 14, "GB/s", bare=20),
        ]
        lines = lines_of(table.rows_of_nccl(rows))
        self.assertEqual(lines["nccl.sendrecv.8B"], [*"3---", "2.5*", "-", "-", "us"])
        self.assertEqual(lines["nccl.sendrecv.256MiB"][-2:], ["20", "GB/s"])
        self.assertEqual(len(table.rows_of_nccl(rows)), 2)

    def test_nvshmem_is_a_peer_and_a_bare_kernel_is_not(self):
        for how, cells in (("NVSHMEM put_signal", ["2", "-"]), ("bare kernel", ["-", "2"])):
            rows = [row("put", 1, bare=2) | {"ceiling_how": how, "beside": []}]
            self.assertEqual(lines_of(table.rows_of_device(rows))["device.put"][-3:-1], cells)

    def test_bars_of_other_machines_are_left_out(self):
        self.assertEqual(table.without_bars([{"id": "r", "bar": 1, "pass": False}]), [{"id": "r"}])


class Drawing(unittest.TestCase):
    def test_each_figure_has_a_bar_by_its_size(self):
        rows = [row("a<b", 2, bare=1, nixl=4), row("c", 3, "GB/s")]
        machine = {"gpus": ["H200"] * 2, "driver": "580", "cpus": 16, "kernel": "6.1-x"}
        topic = {"what": "one & two", "date": "today", "machine": machine, "rows": rows}
        root = xml.etree.ElementTree.fromstring(compare.figures.file(topic))
        bars = [(b.get("class"), int(b.get("width"))) for b in root.iter(f"{SVG}rect")]
        self.assertEqual([kind for kind, _ in bars], ["ours", "bare", "other", "ours"])
        self.assertEqual(bars[2][1], 2 * bars[0][1])
        texts = "".join(root.itertext())
        for each in ("one & two", "2 x H200", "a<b", "less is better", "more is better", "nixl 1"):
            self.assertIn(each, texts)
        self.assertIn("prefers-color-scheme: dark", texts)


class Gpus(unittest.TestCase):
    def test_those_that_are_hidden_do_not_count(self):
        listed = "GPU 0: a\n  MIG 1g.10gb Device 0: b\nGPU 1: a\n"
        for visible, count in ((None, 2), ("", 0), ("-1", 0), ("1", 1), ("0,1,2", 2)):
            variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
            with (
                unittest.mock.patch.dict("os.environ", variables),
                unittest.mock.patch.object(subprocess, "check_output", return_value=listed),
            ):
                if visible is None:
                    gpus.os.environ.pop("CUDA_VISIBLE_DEVICES", None)
                self.assertEqual(gpus.gpus(), count, visible)


class Steps(unittest.TestCase):
    """A build folder without programs, and something in the place of run.py."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)
        self.args = argparse.Namespace(
            build=self.root, out=self.root, turns=1, wheels=self.root, cache=self.root, nvshmem=None
        )

    def ran(self, program: str, gpus: int = 0) -> tuple[compare.Steps, str]:
        (self.root / "run.py").write_text(f"import json, pathlib, sys, time\n{program}")
        with (
            unittest.mock.patch.object(compare, "HERE", self.root),
            unittest.mock.patch.object(compare, "gpus", lambda: gpus),
            contextlib.redirect_stdout(io.StringIO()) as said,
        ):
            steps = compare.Steps(self.args, self.root)
            steps.run()
            steps.save()
        return steps, said.getvalue()

    def told(self, rows: list[dict], *absent: tuple[str, str], code: int = 0) -> str:
        """A program that ends with these rows."""
        content = {"rows": rows, "absent": [{"id": id, "why": why} for id, why in absent]}
        file = "pathlib.Path(sys.argv[sys.argv.index('--json') + 1])"
        return f"{file}.write_text({json.dumps(content)!r})\nprint('words')\nsys.exit({code})\n"

    def test_what_others_and_gpus_lack_is_no_failure(self):
        lacks = [("a.nixl", "no such module"), ("b.write", "needs a GPU")]
        steps, said = self.ran(self.told([row("a", 1)], *lacks))
        self.assertEqual(steps.failed, [])
        for each in ("a.nixl: no such module", "b.write, nccl: needs a GPU", "needs two GPUs"):
            self.assertIn(each, said)
        content = json.loads((self.root / "peers.json").read_text())
        self.assertEqual([each["id"] for each in content["rows"]], ["a"])
        xml.etree.ElementTree.parse(self.root / "peers.svg")
        self.assertIn("words", (self.root / "peers.log").read_text())

    def test_a_row_that_linkspan_lacks_is_a_failure(self):
        lacks = ("b.8B", "verify: 3 bytes are wrong")
        steps, _ = self.ran(self.told([row("a", 1)], lacks, code=1))
        self.assertEqual(steps.failed, ["b.8B: verify: 3 bytes are wrong"])

    def test_what_hangs_is_killed_and_leaves_its_rows(self):
        begin = time.monotonic()
        with unittest.mock.patch.dict(compare.LIMITS_S, {"peers": 0.5}):
            hangs = self.told([row("a", 1)]).replace("sys.exit(0)", "time.sleep(60)")
            steps, said = self.ran(hangs)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertIn("peers: not done after 0 s", steps.failed[0])
        self.assertIn("a  ", said)

    def test_a_program_that_dies_says_its_last_words(self):
        steps, _ = self.ran("sys.exit('no linkspan here')")
        self.assertIn("exit code 1", steps.failed[0])
        self.assertIn("no linkspan here", steps.failed[0])

    def test_without_torch_the_rows_of_a_gpu_are_absent(self):
        torch = self.root / "torch.py"
        torch.write_text("raise ImportError('no torch for a test')\n")
        with unittest.mock.patch.dict("os.environ", {"PYTHONPATH": str(self.root)}):
            steps, said = self.ran(self.told([row("a", 1)], ("b", "needs a GPU")), gpus=1)
        self.assertEqual(steps.failed, [])
        self.assertIn("no torch for a test", said)
        self.assertIn("needs torch with CUDA", said)

    def test_two_gpus_run_the_kernels(self):
        program = self.root / "bench" / "device" / "bench_device"
        program.parent.mkdir(parents=True)
        content = {"rows": [row("put", 1, bare=2) | {"ceiling_how": "bare kernel"}]}
        for code, failed in ((0, 0), (1, 1)):
            program.write_text(f"#!/bin/sh\necho '{json.dumps(content)}' >$2\nexit {code}\n")
            program.chmod(0o755)
            steps, said = self.ran(self.told([row("a", 1)]), gpus=2)
            self.assertEqual(len(steps.failed), failed)
            self.assertEqual("device.put" in said, not failed)
            self.assertIn("absent: nvshmem: not built", said)

    def test_without_wheels_linkspan_is_measured_alone(self):
        self.args.wheels = None
        with unittest.mock.patch.object(
            compare.wheels, "download", side_effect=RuntimeError("pip download: no network")
        ):
            steps, said = self.ran("assert '--sides' in sys.argv\n" + self.told([row("a", 1)]))
        self.assertEqual(steps.failed, [])
        self.assertIn("nixl, mooncake, ucx: not fetched: pip download: no network; run", said)

    def test_a_build_without_python_names_the_remedy(self):
        command = [sys.executable, "-B", ROOT / "bench/peers/compare.py", "--build", self.root]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("`./dev bench --peers` builds it", ended.stderr)


if __name__ == "__main__":
    unittest.main()
