#!/usr/bin/env python3
"""Shows that the project's own checks bite: each rule is broken once in a scratch tree."""

import contextlib
import io
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import ab_report  # noqa: E402
import abi  # noqa: E402
import check_calls  # noqa: E402
import check_claims  # noqa: E402
import check_facts  # noqa: E402
import check_glibc  # noqa: E402
import check_includes  # noqa: E402
import check_site  # noqa: E402
import check_skips  # noqa: E402
import check_transports  # noqa: E402
import check_words  # noqa: E402
import evidence  # noqa: E402
import fetch_integrations  # noqa: E402
import make_glibc_stubs  # noqa: E402
import mutants  # noqa: E402
import tell_failures  # noqa: E402


def faults(files: dict[str, str], check=check_includes.check) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return check(root)


class Slower(unittest.TestCase):
    def compared(self, old, new, again, unit):
        with tempfile.TemporaryDirectory() as folder:
            for side, values in (("old", old), ("new", new), ("again", again)):
                for turn, value in enumerate(values):
                    rows = [{"id": "row", "value": value, "unit": unit}] if value else []
                    file = pathlib.Path(folder) / f"{side}.{turn}.json"
                    file.write_text(json.dumps({"rows": rows}))
            (row,) = ab_report.compare(pathlib.Path(folder))
        return row["ratio"], row["slower"]

    def test_a_time_that_grows_is_slower(self):
        self.assertEqual(self.compared([10] * 3, [10.5] * 3, [10] * 3, "us"), (1.05, True))
        self.assertEqual(self.compared([10] * 3, [9] * 3, [10] * 3, "us"), (0.9, False))

    def test_a_rate_that_falls_is_slower(self):
        self.assertEqual(self.compared([10] * 3, [8] * 3, [10] * 3, "GB/s"), (1.25, True))
        self.assertEqual(self.compared([10] * 3, [12.5] * 3, [10] * 3, "GB/s"), (0.8, False))

    def test_three_percent_and_noise_are_allowed(self):
        self.assertEqual(self.compared([10] * 3, [10.2] * 3, [10] * 3, "us"), (1.02, False))
        self.assertEqual(self.compared([10] * 3, [10.5] * 3, [11, 9, 10.8], "us"), (1.05, False))

    def test_pairs_count_and_not_medians(self):
        self.assertEqual(
            self.compared([10, 20, 30], [10, 20, 30], [10, 20, 30], "us"), (1.0, False)
        )

    def test_a_row_that_new_lacks_is_slower(self):
        self.assertEqual(self.compared([10] * 3, [None] * 3, [10] * 3, "us"), (None, True))

    def test_a_revision_that_cannot_be_built_is_not_slower(self):
        # cmake fails, or works and leaves no program.
        for code in (1, 0):
            with self.subTest(code), tempfile.TemporaryDirectory() as name:
                folder = pathlib.Path(name)
                (folder / "scripts").mkdir()
                shutil.copy(ROOT / "scripts/ab.sh", folder / "scripts")
                (folder / "cmake").write_text(f"#!/bin/sh\nexit {code}\n")
                (folder / "cmake").chmod(0o755)
                git = ["git", "-C", name, "-c", "user.name=a", "-c", "user.email=a@b"]
                subprocess.run([*git, "init", "-q"], check=True)
                subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "a"], check=True)
                run = subprocess.run(
                    [folder / "scripts/ab.sh", "/bin/true", "HEAD", "--turns", "1"],
                    env={"PATH": f"{name}:/usr/bin:/bin"}, timeout=60, check=False,
                    capture_output=True, text=True,
                )
                self.assertEqual(run.returncode, 2, run.stderr)
                self.assertIn("ab.sh: HEAD could not be built", run.stderr)
                self.assertNotIn("turn 1", run.stderr)


class Words(unittest.TestCase):
    def test_what_is_out_is_named_with_what_takes_its_place(self):
        found = faults({"src/a.cpp": "\nWatcher watcher;  // a Watcher's\n"}, check_words.check)
        self.assertEqual(found, ["src/a.cpp:2: Watcher is out: ProgressThread"] * 2)
        others = {"include/linkspan/device/a.h": "Gate", "src/b.cpp": "WatcherX gate;"}
        self.assertEqual(faults(others, check_words.check), [])


class Transports(unittest.TestCase):
    def found(self, path: str, text: str) -> int:
        folders = {f"src/transport/{name}/a.hpp": "" for name in ("local", "tcp", "nccl_net")}
        return len(faults({**folders, path: text}, check_transports.check))

    def test_only_its_folder_names_a_transport(self):
        for text in (
            '#include "transport/tcp/a.hpp"\n',
            "auto a = transport::local::LocalTransport();\n",
            'options.transport["tcp.interfaces"] = "";\n',
            'if (path == "nccl_net") return;\n',
            "std::string nccl_net_plugin;\n",
        ):
            self.assertEqual(self.found("src/engine/a.cpp", text), 1, text)
            self.assertEqual(self.found("src/transport/registry.cpp", text), 0, text)
        self.assertEqual(self.found("src/transport/tcp/a.cpp", '"tcp"; tcp::a();'), 0)
        self.assertEqual(self.found("src/transport/tcp/a.cpp", "local::a();"), 1)

    def test_other_meanings_of_the_words_are_no_transports(self):
        text = 'asio::ip::tcp::socket local; net::tcp_socket(); call("local", "tcp:host:1"); // "tcp"\n'
        self.assertEqual(self.found("src/control/a.cpp", text), 0)

    def test_conformance_has_a_file_for_each(self):
        text = '#include "transport/tcp/a.hpp"\n'
        self.assertEqual(self.found("tests/conformance/tcp.cpp", text), 0)
        self.assertEqual(self.found("tests/conformance/engine_test.cpp", text), 1)
        self.assertEqual(self.found("tests/conformance/engine_test.cpp", 'x.require = "tcp";'), 0)

    def test_exceptions_are_there(self):
        for path in check_transports.MAY:
            self.assertTrue((ROOT / path).exists(), path)


class Includes(unittest.TestCase):
    def refused(self, path: str, text: str, why: str) -> None:
        found = faults({path: text})
        self.assertEqual(len(found), 1, found)
        self.assertIn(why, found[0])
        self.assertTrue(found[0].startswith(f"{path}:"), found[0])

    def accepted(self, path: str, text: str) -> None:
        self.assertEqual(faults({path: text}), [])

    def test_upwards(self):
        self.refused("src/base/a.hpp", '#include "cuda/driver.hpp"\n', "may not include upwards")
        self.refused(
            "src/transport/local/a.cpp", '#include "control/peer.hpp"\n', "upwards (control)"
        )
        self.refused("src/memory/a.cpp", '#include "linkspan/engine.hpp"\n', "upwards (public)")
        self.accepted("src/api/a.cpp", '#include "linkspan/engine.hpp"\n#include "base/fd.hpp"\n')
        self.accepted("tools/linkspan/a.cpp", '#include "engine/engine.hpp"\n')

    def test_the_line_is_told(self):
        self.assertTrue(
            faults({"src/base/a.hpp": '\n\n#include "api/x.hpp"\n'})[0].startswith(
                "src/base/a.hpp:3:"
            )
        )

    def test_transports_apart(self):
        self.refused(
            "src/transport/local/a.cpp",
            '#include "transport/tcp/b.hpp"\n',
            "may not include transport tcp",
        )
        self.accepted(
            "src/transport/local/a.cpp",
            '#include "transport/local/b.hpp"\n#include "transport/batch.hpp"\n',
        )
        self.accepted("src/transport/registry.cpp", '#include "transport/local/b.hpp"\n')

    def test_public_headers(self):
        self.refused("include/linkspan/status.hpp", '#include "linkspan/types.hpp"\n', "only std")
        self.refused("include/linkspan/engine.hpp", '#include "base/fd.hpp"\n', "only linkspan/")
        self.accepted(
            "include/linkspan/engine.hpp", '#include <vector>\n#include "linkspan/types.hpp"\n'
        )
        self.accepted("src/base/a.hpp", '#include "linkspan/types.hpp"\n')
        self.refused("src/control/a.hpp", '#include "linkspan/engine.hpp"\n', "upwards (public)")

    def test_products(self):
        self.refused("src/api/a.hpp", '#include "linkspan/store.hpp"\n', "upwards (public)")
        self.refused("src/engine/a.cpp", '#include "store/server.hpp"\n', "store is a product")
        self.refused("src/store/a.cpp", '#include "engine/engine_impl.hpp"\n', "base, net alone")
        self.accepted(
            "src/store/a.cpp", '#include "linkspan/store.hpp"\n#include "net/tcp_socket.hpp"\n'
        )
        native = "vcache/native/src/a.cpp"
        self.refused(native, '#include "net/tcp_socket.hpp"\n', "base, cuda alone")
        self.refused(native, "void f() { std::abort(); }\n", "no place in a library")
        self.accepted(native, '#include "linkspan/nvlink_transfer.h"\n#include "cuda/ipc.hpp"\n')

    def test_unknown(self):
        self.refused("src/base/a.cpp", '#include "a.hpp"\n', "no such file")
        self.refused("src/attic/a.cpp", "", "is no room")

    def test_driver(self):
        self.refused(
            "src/copy/a.cpp", "void f() { cuMemcpyAsync(1); }\n", "only src/cuda calls the driver"
        )
        self.refused(
            "src/copy/a.cpp", "auto f = driver().cuMemAlloc;\n", "only src/cuda calls the driver"
        )
        self.refused("src/cuda/a.cpp", "#include <cuda.h>\n", "driver_abi.hpp")
        self.refused(
            "bench/bare/a.cpp",
            '#include "copy/copier.hpp"\n',
            "nothing of src but the driver table",
        )
        self.accepted("src/cuda/a.cpp", "void f() { cuMemcpyAsync(1); }\n")
        self.accepted(
            "src/copy/a.cpp", '// cuMemcpyAsync(1)\nauto text = "cuMemcpyAsync(1)"; custom(1);\n'
        )

    def test_environment(self):
        for call in ("getenv", "std::getenv", "secure_getenv"):
            self.refused(
                "src/engine/a.cpp", f'auto home = {call}("HOME");\n', "reads the environment"
            )
        self.accepted("src/base/environment.cpp", 'auto home = secure_getenv("HOME");\n')

    def test_forbidden(self):
        for statement in (
            "std::this_thread::sleep_for(x);",
            "usleep(1);",
            "std::exit(1);",
            "abort();",
            "std::abort();",
            "exit(1);",
            "_exit(1);",
            "t.detach();",
            "std::cout << 1;",
            "std::cerr << 1;",
            'printf("x");',
            'std::printf("x");',
            'fprintf(f, "x");',
        ):
            self.refused(
                "src/engine/a.cpp", f"void f() {{ {statement} }}\n", "no place in a library"
            )
        self.accepted("tools/linkspan/a.cpp", 'void f() { std::printf("x"); }\n')
        self.accepted(
            "src/engine/a.cpp",
            'void f() { snprintf(b, 1, "x"); copier.abort(ticket); x = 1\'000; } // exit(1)\n',
        )

    def test_third_party(self):
        self.refused("src/base/a.cpp", "#include <asio.hpp>\n", "belongs to")
        self.refused("src/engine/a.cpp", "#include <nlohmann/json.hpp>\n", "belongs to")
        self.accepted("src/control/a.cpp", "#include <asio/ip/tcp.hpp>\n")


class Facts(unittest.TestCase):
    TEST = "tests/driver_facts/a_test.cpp"

    def found(self, files: dict[str, str]) -> list[str]:
        return faults({self.TEST: "TEST_F(Queues, Block) {\n}\n"} | files, check_facts.check)

    def test_cited_and_shown(self):
        self.assertEqual(self.found({"src/a.hpp": "// They block (fact: Queues.Block).\n"}), [])
        self.assertEqual(self.found({"src/a.hpp": "  /// They block (fact:\n  /// Queues.Block).\n"}), [])
        self.assertEqual(self.found({"docs/cuda_notes.md": "They block (fact:\nQueues.Block)\n"}), [])

    def test_shown_by_no_test(self):
        both = "// fact: Queues.Block, and (fact: Queues.Other)\n"
        self.assertEqual(self.found({"src/a.cu": both}), ["src/a.cu: no test shows Queues.Other"])

    def test_cited_by_nobody(self):
        cited_elsewhere = {"docs/threading.md": "fact: Queues.Block\n"}
        for files in ({}, cited_elsewhere):
            self.assertEqual(
                self.found(files), ["tests/driver_facts: nothing cites Queues.Block"]
            )


class Figures(unittest.TestCase):
    def found(self, readme: str, *ratios: float) -> list[str]:
        rows = [{"id": f"row{index}", "ratio": ratio} for index, ratio in enumerate(ratios)]
        files = {"README.md": readme, "evidence/a.json": json.dumps({"rows": rows})}
        figures = [("README.md", "{:.1f} to {:.1f} of it", "a", r"row\d", "ratio")]
        with unittest.mock.patch.object(evidence, "FIGURES", figures):
            return faults(files, evidence.check_figures)

    def test_documents_have_those_of_the_evidence(self):
        self.assertEqual(self.found("It takes 1.1 to 1.2 of it.", 1.18, 1.08, 1.1), [])
        (fault,) = self.found("It takes 1.1 to 1.2 of it.", 1.3, 1.08)
        self.assertIn("README.md: not as in evidence/a.json, which gives '1.1 to 1.3 of it'", fault)

    def test_rows_are_there(self):
        self.assertEqual(len(self.found("1.1 to 1.2 of it")), 1)
        self.assertEqual(evidence.check_figures(ROOT), [])


class Site(unittest.TestCase):
    def found(self, page: str, style: str = "") -> list[str]:
        other = '<h1 id="there">There</h1><a name="old">'
        files = {"a/index.html": page, "b.html": other, "a.css": style, "file.json": "{}"}
        return faults(files, lambda root: check_site.check(root.resolve()))

    def test_links_lead_somewhere(self):
        links = '<a href="../b.html#there"><a href="../b.html#old"><a href="../file.json"><a href="#"><a href="/a/">'
        self.assertEqual(self.found(links + '<a href="https://example.org"><a href="mailto:a@b">'), [])
        self.assertEqual(self.found('<a href="c.html">'), ["a/index.html: c.html leads nowhere"])
        self.assertEqual(
            self.found('<a href="../b.html#here"><img src="x.png">'),
            ["a/index.html: ../b.html#here has no such anchor", "a/index.html: x.png leads nowhere"],
        )

    def test_nothing_comes_from_elsewhere(self):
        for page in ('<script src="https://example.org/a.js">', '<link href="//example.org/a.css">'):
            (fault,) = self.found(page)
            self.assertIn("of another host", fault)
        self.assertEqual(len(self.found("", "a { background: url(https://example.org/a.png) }")), 1)
        self.assertEqual(self.found("", "a { background: url(data:image/png;base64,x) }"), [])

    def test_no_pages_are_a_fault(self):
        self.assertEqual(len(faults({"a.css": ""}, check_site.check)), 1)


class Calls(unittest.TestCase):
    PAGE = (
        f"# Threads\n| a | b |\n|---|---|\n| `x` | `y` |\n{check_calls.HEADING}\nProse.\n\n"
        "| thread | call | on | why |\n|---|---|---|---|\n"
        "| `one` `two` | `read, may wait` | `ours` `received` | `why` |\n| `one` | `ppoll` | | |\n"
        "\n## Next\n| `one` | `close` | | |\n"
    )
    ALL = {
        ("one", "ppoll", check_calls.NOTHING),
        *((t, "read, may wait", k) for t in ("one", "two") for k in ("ours", "received")),
    }

    def test_a_table_is_read(self):
        self.assertEqual(check_calls.table_of(self.PAGE), self.ALL)

    def test_a_call_that_is_not_allowed(self):
        seen = {("one", "close", "received"), ("two", "read, may wait", "ours")}
        (fault,) = check_calls.compare(seen, self.ALL)
        self.assertIn("one calls close on received", fault)

    def test_a_thread_that_was_not_seen(self):
        (fault,) = check_calls.compare({("one", "ppoll", check_calls.NOTHING)}, self.ALL)
        self.assertIn("two: no test has run", fault)

    def test_other_threads_may_call_anything(self):
        seen = {("three", "close", "received"), *self.ALL}
        self.assertEqual(check_calls.compare(seen, self.ALL), [])


class Claims(unittest.TestCase):
    TESTS = {
        "tests/unit/a_test.cpp": "TEST_F(Kills, Owner) {\n}\nTEST_P(Cuts, Long) {\n}\n"
        "INSTANTIATE_TEST_SUITE_P(Every, Cuts, Values(1));\n",
        "tests/python/signals_test.py": "def test_sigint_ends():\n    pass\n",
        "tests/fuzz/frames_fuzz.cpp": "",
        "cmake/tests.cmake": "linkspan_test(demo_cpu TIMEOUT 1)\nadd_executable(linkspan_unload x)\n",
    }
    TABLE = "| fault | test |\n|---|---|\n"

    def found(self, page: str) -> list[str]:
        pages = dict.fromkeys(check_claims.PAGES, "") | {"docs/faults.md": page}
        return faults(self.TESTS | pages, check_claims.check)

    def test_claims_with_their_tests(self):
        self.assertEqual(
            self.found(
                "# Head\n<!-- no claims -->\nProse.\n<!-- claims -->\n\n" + self.TABLE + "| a kill | `Kills.Owner`, `Every/Cuts.*` |\n"
                "| a cut | `Cuts.Lo*` |\n| dlclose() | `linkspan_unload` |\n\n"
                "- a signal: `signals_test.test_sigint_ends`\n- two lines,\n  `demo_cpu`\n"
                "- a switch that fails [two hosts]\n\nA paragraph,\nof two lines (`frames_fuzz`).\n"
                "```\ncode\n```\n"
                "<!-- no claims -->\n- a remark\n<!-- claims -->\n"
            ),
            [],
        )

    def test_a_claim_without_a_test(self):
        row, bullet, word = self.TABLE + "| a kill | nothing |\n", "- a kill\n", "- a `code` word\n"
        held = "- held: `Kills.Owner`\n"
        for page in (row, bullet, word, held + "\nProse\nof two lines.\n", "Prose.\n" + held):
            (fault,) = self.found(page)
            self.assertIn("no test holds this", fault)

    def test_a_name_that_no_test_has(self):
        for name in ("Kills.Nobody", "Other/Cuts.Long", "signals_test.test_none"):
            (fault,) = self.found(f"- a claim: `{name}`\n")
            self.assertIn(f"docs/faults.md:1: no test is called {name}", fault)

    def rows(self, *rows: str) -> list[str]:
        page, heading = check_claims.CHANGES
        table = "\n".join(("| change | file |", "|---|---|", *rows))
        text = f"# Head\n\n{heading}\nProse.\n\n{table}\n\n## Next\n| x |\n|---|\n| `gone.cpp` |\n"
        return faults({"src/a.cpp": "", page: text}, check_claims.check_files)

    def test_a_row_has_one_file(self):
        self.assertEqual(self.rows("| the `a` of X | `src/a.cpp` |"), [])
        for cell in ("", "src/a.cpp", "`src/a.cpp`, `src/a.cpp`"):
            (fault,) = self.rows(f"| a | {cell} |")
            self.assertIn("a row without one file", fault)

    def test_a_row_whose_file_is_gone(self):
        for path in ("src/b.cpp", "src"):
            page = check_claims.CHANGES[0]
            self.assertEqual(self.rows(f"| a | `{path}` |"), [f"{page}: no file {path}"])

    def test_a_page_without_the_table(self):
        (fault,) = self.rows()
        self.assertIn("no table under", fault)


class Skips(unittest.TestCase):
    allowed = [("Local*.Gpu*", "needs a GPU")]

    def test_listed(self):
        self.assertEqual(
            check_skips.faults_of(
                [], {"Local/0.GpuToGpu": "needs a GPU: none"}, self.allowed, "cpu"
            ),
            [],
        )

    def test_unlisted_name_or_reason(self):
        self.assertTrue(
            check_skips.faults_of([], {"Tcp.GpuToGpu": "needs a GPU"}, self.allowed, "cpu")
        )
        self.assertTrue(
            check_skips.faults_of([], {"Local/0.GpuToGpu": "connect failed"}, self.allowed, "cpu")
        )

    def test_listed_but_ran(self):
        self.assertTrue(check_skips.faults_of(["Local/0.GpuToGpu"], {}, self.allowed, "cpu"))
        self.assertEqual(
            check_skips.faults_of(["Local/0.GpuToGpu"], {}, self.allowed, "simulated"), []
        )

    def test_results_are_read(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "r.xml"
            file.write_text("""<testsuites><testsuite>
                <testcase name="A" classname="T" status="run" result="completed"/>
                <testcase name="B" classname="T" status="run" result="completed"><failure message="x"/></testcase>
                <testcase name="C" classname="T" status="run" result="skipped">
                  <skipped message="t.cpp:4&#x0A;needs  root"/></testcase>
                <testcase name="D" classname="T" status="notrun" result="suppressed"/>
                </testsuite></testsuites>""")
            self.assertEqual(
                check_skips.read_results(file), (["T.A", "T.B"], {"T.C": "needs root"}, ["T.B"])
            )
            with contextlib.redirect_stdout(io.StringIO()) as told:
                check_skips.report([file, file])
            self.assertEqual([line[:6] for line in told.getvalue().splitlines()[-2:]], ["FAILED"] * 2)
            self.assertTrue(told.getvalue().endswith(".r: T.B\n"))

    def test_why_they_failed_is_told(self):
        ended = "[  FAILED  ] A.B/0 (5 ms)"
        gtest = f"ran\nt.cpp:4: Failure\nis: 1\n{ended}\n[ RUN      ] Next\nt.cpp:9: Failure\nis: 2"
        gtest += "\n[  FAILED  ] 1 test, listed below:\n[  FAILED  ] A.B/0, where GetParam() = 1"
        told = tell_failures.reasons(gtest)
        self.assertEqual(
            told[:4], ["[  FAILED  ] A.B/0", "t.cpp:4: Failure", "is: 1", ended]
        )
        self.assertEqual(told[4:6], ["t.cpp:9: Failure", "is: 2"])
        self.assertEqual(tell_failures.reasons("one\n" * 99), ["one"] * tell_failures.LINES)
        report = """
            WARNING: ThreadSanitizer: data race (pid=1)
              Write of size 8 at 0x7b by thread T1:
                #0 memcpy <null> (linkspan_unit+0x1)
                #1 a(int) /tmp/x/src/a.cpp:4:3 (linkspan_unit+0x2)

              Previous read of size 8 at 0x7b by main thread:
                #0 b() /tmp/x/tests/b.cpp:5:1 (linkspan_unit+0x3)
            SUMMARY: ThreadSanitizer: data race /tmp/x/src/a.cpp:4:3 in a(int)
            ThreadSanitizer: reported 1 warnings"""
        self.assertEqual(
            [line.strip() for line in tell_failures.reasons(textwrap.dedent(report))],
            [
                "WARNING: ThreadSanitizer: data race (pid=1)",
                "Write of size 8 at 0x7b by thread T1:",
                "src/a.cpp:4 a(int)",
                "Previous read of size 8 at 0x7b by main thread:",
                "tests/b.cpp:5 b()",
            ],
        )
        leak = """
            ==7==ERROR: LeakSanitizer: detected memory leaks

            Direct leak of 32 byte(s) in 1 object(s) allocated from:
                #0 0x55 in a(unsigned long) tests/unit/no_memory.cpp:30
                #1 0x56 in operator new(unsigned long) tests/unit/no_memory.cpp:75
                #2 0x57 in std::b() /usr/include/c++/12/new:137:27
                #3 0x58 in c() src/c.cpp:7
            SUMMARY: AddressSanitizer: 32 byte(s) leaked in 1 allocation(s)."""
        self.assertEqual(
            [line.strip() for line in tell_failures.reasons(textwrap.dedent(leak))][-1],
            "src/c.cpp:7 0x58 in c()",
        )
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "ctest.xml"
            file.write_text("""<testsuite>
                <testcase name="a" status="run"><system-out>well</system-out></testcase>
                <testcase name="b" status="fail"><system-out>no &lt;value&gt;</system-out></testcase>
                </testsuite>""")
            with contextlib.redirect_stdout(io.StringIO()) as told:
                tell_failures.main(file)
        self.assertEqual(told.getvalue(), "FAILED b\n    no <value>\n")

    def test_a_program_without_results_fails(self):
        run = subprocess.run(
            [
                sys.executable,
                ROOT / "scripts/check_skips.py",
                "--xml",
                "/nonexistent/r.xml",
                "--run",
                "true",
            ],
            capture_output=True,
            check=False,
        )
        self.assertEqual(run.returncode, 1)

    def test_a_run_without_tests_fails_but_for_a_part(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "r.xml"
            file.write_text("<testsuites/>")
            for parts, code in (("1", 1), ("3", 0)):
                run = subprocess.run(
                    [sys.executable, ROOT / "scripts/check_skips.py", "--xml", file]
                    + ["--parts", parts],
                    capture_output=True, text=True, check=False,
                )
                self.assertEqual(run.returncode, code, parts)
                self.assertEqual("no test ran: does the filter match?" in run.stdout, code == 1)


class RunOnGpus(unittest.TestCase):
    """run_on_gpus.sh in a pack that has `linkspan` alone, which always works."""

    def test_only_names_steps_that_run(self):
        for only, code, told in (
            ("doctor", 0, "doctor .* ok"),
            ("doctor dokter", 1, "dokter .* FAILED: this run has no such step"),
            ("tcp_bench", 1, "tcp_bench .* absent: bench_tcp_transfer was not packed"),
            ("memcheck_unit", 1, "memcheck_unit .* absent: "),
        ):
            with self.subTest(only), tempfile.TemporaryDirectory() as folder:
                pack = pathlib.Path(folder)
                shutil.copy(ROOT / "scripts/run_on_gpus.sh", pack)
                for name, text in (("sources.json", "{}"), ("commit", "c"), ("evidence.py", "")):
                    (pack / name).write_text(text)
                (pack / "linkspan").symlink_to("/bin/true")
                run = subprocess.run(
                    [pack / "run_on_gpus.sh", "--out", pack / "out", "--only", only],
                    capture_output=True, text=True, timeout=60, check=False,
                )
                self.assertEqual(run.returncode, code, run.stdout)
                self.assertRegex(run.stdout, told)
                self.assertNotIn("simple_write", run.stdout)  # what --only does not name


class Dev(unittest.TestCase):
    """./dev in a scratch folder, with the programs that it calls replaced."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        shutil.copy(ROOT / "dev", self.folder)

    def program(self, name: str, text: str) -> None:
        file = self.folder / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/bash\n{text}\n")
        file.chmod(0o755)

    def run_it(self, *command: str) -> subprocess.CompletedProcess:
        environment = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "XDG_CACHE_HOME": str(self.folder)}
        return subprocess.run(
            command, cwd=self.folder, env=environment, timeout=60, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )

    def function(self, call: str) -> subprocess.CompletedProcess:
        """Runs `call` after all functions of ./dev; no verb."""
        text = (self.folder / "dev").read_text()
        (self.folder / "part").write_text(text[: text.index("\nverb=")] + f"\n{call}\n")
        return self.run_it("bash", "part")

    def test_tools_that_cannot_be_fetched_leave_the_former(self):
        # A venv whose programs name its folder, and whose pip works while `works` is there.
        self.program(
            "python3",
            'mkdir -p "$3/bin"; echo "[[ -e $PWD/works ]]" >"$3/bin/python3"; chmod +x "$3/bin/python3"',
        )
        tools, pins = self.folder / "tools", self.folder / "tools/pins"
        (self.folder / "works").touch()
        self.assertEqual(self.function("fetch_tools tools a==1").returncode, 0)
        (self.folder / "works").unlink()
        (tools / "mine").touch()
        for _ in range(2):
            self.assertEqual(self.function("fetch_tools tools a==2").returncode, 1)
            self.assertTrue((tools / "mine").exists())
            self.assertEqual(pins.read_text(), "a==1\n")
        # One that was broken off has no pins; the former one still waits beside it.
        tools.rename(self.folder / "tools.old")
        tools.mkdir()
        self.assertEqual(self.function("fetch_tools tools a==2").returncode, 1)
        self.assertEqual(pins.read_text(), "a==1\n")
        (self.folder / "works").touch()
        self.assertEqual(self.function("fetch_tools tools a==2").returncode, 0)
        self.assertEqual(pins.read_text(), "a==2\n")
        self.assertFalse((tools / "mine").exists() or (self.folder / "tools.old").exists())

    def test_a_format_that_is_not_checked_fails(self):
        (self.folder / "a.cpp").write_text("int  a;\n")
        call = "sources() { echo a.cpp; }; build_preset() { exit 0; }; check"
        unformatted = "a.cpp:1:4: error: code should be clang-formatted [-Wclang-format-violations]"
        for text, told in (
            (f"echo '{unformatted}' >&2; exit 1", "not formatted (./dev format mends it):\na.cpp\n"),
            ("echo 'Error reading .clang-format' >&2; exit 1", "Error reading .clang-format"),
            ("echo '/x/.clang-format:1:1: error: unknown key' >&2; exit 1", "unknown key"),
            ("exit 0", "check_includes.py: No such file"),  # what comes after it
        ):
            self.program("clang-format", text)
            run = self.function(call)
            self.assertIn(told, run.stdout)
            self.assertEqual("check_includes" in run.stdout, text == "exit 0", run.stdout)
            self.assertNotEqual(run.returncode, 0)

    def test_a_set_up_that_fails_ends_the_verb(self):
        self.program("dpkg-query", "")  # nothing is installed
        for name in ("apt-get", "sudo"):
            self.program(name, "exit 100")
        self.program("python3", "exit 1")
        for verb in ("setup", "build", "format", "check", "abi", "mutants"):
            run = self.run_it("bash", "dev", verb)
            self.assertEqual(run.returncode, 100, f"{verb}: {run.stdout}")
            self.assertNotIn("== fetching", run.stdout)


class Integrations(unittest.TestCase):
    LINE = "thing==1.2  sha256:ab sha256:cd"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.calls = []
        for name, value in (("FOLDER", self.folder), ("NEEDED", {"thing": ["other==3"]})):
            patch = unittest.mock.patch.object(fetch_integrations, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def fetched(self, *works: bool) -> tuple[bool, str]:
        """Fetches with a pip whose calls end so; returns what came of it and what was printed."""
        answers = iter(works)

        def pip(*arguments: str) -> bool:
            if "-r" in arguments:
                self.calls.append(pathlib.Path(arguments[-1]).read_text())
            site = pathlib.Path(arguments[arguments.index("--target") + 1])
            site.mkdir(exist_ok=True)
            return next(answers)

        printed = io.StringIO()
        with unittest.mock.patch.object(fetch_integrations, "pip", pip):
            with contextlib.redirect_stdout(printed):
                result = fetch_integrations.fetch("thing", self.LINE)
        return result, printed.getvalue()

    def test_a_pin_is_fetched_once_by_its_hashes(self):
        self.assertEqual(self.fetched(True, True), (True, "== fetching thing==1.2\n"))
        self.assertEqual(self.calls, ["thing==1.2 --hash=sha256:ab --hash=sha256:cd"])
        self.assertEqual(self.fetched(), (True, ""))
        self.LINE = "thing==1.3  sha256:ef"
        self.assertTrue(self.fetched(True, True)[0])

    def test_what_cannot_be_had_is_said_and_leaves_nothing(self):
        for works in ((False,), (True, False)):
            result, printed = self.fetched(*works)
            self.assertFalse(result)
            self.assertIn("thing==1.2 could not be fetched: its tests are skipped", printed)
            self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_line_that_is_not_there(self):
        ran = subprocess.run(
            [sys.executable, ROOT / "scripts/fetch_integrations.py", "nothing"],
            capture_output=True, text=True, timeout=60,
        )
        self.assertEqual(ran.returncode, 1)
        self.assertIn("nothing has no line in integrations/versions.txt: ", ran.stderr)

    def test_each_pin_has_a_version_and_a_hash(self):
        for line in fetch_integrations.pins().values():
            self.assertRegex(line, r"^[a-z0-9-]+==[0-9.]+(  ?sha256:[0-9a-f]{64})+(  as [a-z0-9-]+)?$")

    def test_a_second_version_has_a_folder_of_its_own(self):
        self.LINE = "thing==1.2  sha256:ab  as thing-oldest"
        self.assertTrue(self.fetched(True, True)[0])
        self.assertEqual(self.calls, ["thing==1.2 --hash=sha256:ab"])
        listed = self.folder / "versions.txt"
        listed.write_text(f"thing==1.3  sha256:cd\n{self.LINE}\n")
        self.assertEqual(list(fetch_integrations.pins(listed)), ["thing", "thing-oldest"])


def dynsym(*rows: str) -> str:
    """As `readelf -W --dyn-syms` prints: each row is type, binding, section and name."""
    line = "     {}: 00000000000{:05x}    16 {:7} {:6} DEFAULT  {:>3} {}"
    return "\n".join(line.format(n, 16 * n, *row.split(maxsplit=3)) for n, row in enumerate(rows, 1))


class OldGlibc(unittest.TestCase):
    def test_what_is_newer_or_of_no_version_is_named(self):
        table = dynsym(
            "FUNC GLOBAL UND memcpy@GLIBC_2.14 (3)",
            "FUNC GLOBAL UND fcntl64@GLIBC_2.28 (4)",
            "FUNC GLOBAL UND dlopen@GLIBC_2.34 (5)",
            "FUNC GLOBAL UND errno@GLIBC_PRIVATE (6)",
            "FUNC GLOBAL UND arc4random",
            "FUNC GLOBAL UND PyList_New",
            "NOTYPE WEAK UND __gmon_start__",
            "FUNC GLOBAL 12 stat@@GLIBC_2.33",
        )
        self.assertEqual(
            check_glibc.faults_of(table, "2.28", {"arc4random", "stat", "__gmon_start__"}),
            ["arc4random without a version", "dlopen of glibc 2.34", "errno of GLIBC_PRIVATE"],
        )

    def test_each_symbol_has_its_newest_version_and_its_library_of_then(self):
        found = make_glibc_stubs.symbols_in(
            dynsym(
                "FUNC GLOBAL 12 memcpy@GLIBC_2.2.5",
                "FUNC GLOBAL 12 memcpy@@GLIBC_2.14",
                "FUNC GLOBAL 12 pthread_create@GLIBC_2.2.5",
                "FUNC GLOBAL 12 pthread_create@@GLIBC_2.34",
                "FUNC GLOBAL 12 dlsym@GLIBC_2.2.5",
                "FUNC GLOBAL 12 dlsym@@GLIBC_2.34",
                "FUNC GLOBAL 12 ns_name_ntop@GLIBC_2.9",  # was in libresolv, which no one links
                "FUNC GLOBAL 12 ns_name_ntop@@GLIBC_2.34",
                "FUNC GLOBAL 12 arc4random@@GLIBC_2.36",
                "FUNC GLOBAL 12 __xstat@GLIBC_2.2.5",  # no program is linked to it any more
                "OBJECT GLOBAL 12 errno@@GLIBC_PRIVATE",
            )
        )
        chosen = make_glibc_stubs.chosen(found, "2.28", "libc.so.6")
        self.assertEqual(
            {lib: [(each.name, each.version) for each in symbols] for lib, symbols in chosen.items()},
            {
                "libc.so.6": [("memcpy", "2.14")],
                "libpthread.so.0": [("pthread_create", "2.2.5")],
                "libdl.so.2": [("dlsym", "2.2.5")],
            },
        )
        libm = make_glibc_stubs.symbols_in(
            dynsym("FUNC GLOBAL 12 exp@GLIBC_2.2.5", "FUNC GLOBAL 12 exp@@GLIBC_2.29")
        )
        (only,) = make_glibc_stubs.chosen(libm, "2.28", "libm.so.6")["libm.so.6"]
        self.assertEqual((only.name, only.version), ("exp", "2.2.5"))


class Abi(unittest.TestCase):
    """abi.py, by changes of linkspan.h in a scratch tree."""

    ADDED = "LINKSPAN_C_API int linkspan_added(linkspan_engine* engine);\n"

    def told(self, old: str, new: str) -> str:
        """What it says of the header with `new` in the place of the one `old`."""
        header = (ROOT / abi.HEADER).read_text()
        self.assertEqual(header.count(old), 1, old)
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / abi.HEADER).parent.mkdir(parents=True)
            (root / abi.HEADER).write_text(header.replace(old, new))
            shutil.copy(ROOT / "CMakeLists.txt", root)
            return abi.breaks((ROOT / abi.DUMP).read_text(), abi.dump_of(root))

    def test_what_breaks_programs_is_told(self):
        for old, new, words in (
            ("LINKSPAN_C_API int linkspan_engine_listen(linkspan_engine* engine, const char* address);",
             "", "1 Removed function"),
            ("linkspan_transfer_wait(const linkspan_transfer* transfer, int64_t timeout)",
             "linkspan_transfer_wait(const linkspan_transfer* transfer, int32_t timeout)",
             "from int64_t to int32_t"),
            ("local_offset, remote_offset, bytes;", "remote_offset, local_offset, bytes;",
             "'uint64_t local_offset' offset changed from 0 to 64"),
            ("local_offset, remote_offset, bytes;", "local_offset, remote_offset, bytes, more;",
             "type size changed from 192 to 256"),
            ("uint64_t count, local_step, remote_step;", "uint64_t local_step, count, remote_step;",
             "'uint64_t count' offset changed"),
            ("uint32_t cpu_threads;", "uint64_t cpu_threads;", "from uint32_t to uint64_t"),
            ("int32_t failover;", "int64_t failover; int64_t more;", "from int32_t to int64_t"),
            ("int32_t pin; ", "int32_t more, pin;", "'int32_t pin' offset changed"),
            ("LINKSPAN_BUSY = 4,", "LINKSPAN_BUSY = 40,", "from value '4' to '40'"),
            (", LINKSPAN_PEER_GONE = 2", "", "LINKSPAN_PEER_GONE' value '2'"),
        ):
            self.assertIn(words, self.told(old, new), new)

    def test_what_is_new_breaks_nothing(self):
        for old, new in (
            ("/* ---- peers --", f"{self.ADDED}/* ---- peers --"),
            ("LINKSPAN_INTERNAL = 16", "LINKSPAN_INTERNAL = 16, LINKSPAN_ADDED = 17"),
            ("int32_t failover;", "int32_t failover; int64_t more;"),
        ):
            self.assertEqual(self.told(old, new), "", new)

    def test_another_soname_is_told(self):
        dump = (ROOT / abi.DUMP).read_text()
        self.assertIn("SONAME", abi.breaks(dump, dump.replace("liblinkspan.so.0", "liblinkspan.so.1")))

    def test_a_tool_that_is_not_there(self):
        with unittest.mock.patch.dict("os.environ", {"PATH": "/nonexistent"}):
            with self.assertRaisesRegex(abi.Wrong, "./dev setup installs it"):
                abi.dump_of(ROOT)


class Mutants(unittest.TestCase):
    HEAD = "# what: w\n# red: linkspan_unit --gtest_filter=A.B\n# driver: none\n"
    PATCH = (
        "diff --git a/src/a.cpp b/src/a.cpp\n--- a/src/a.cpp\n+++ b/src/a.cpp\n"
        "@@ -7,3 +7,3 @@\n one\n-two\n+2\n three\n"
    )

    def in_tree(self, patch: str, text: str) -> str:
        """The file once the patch is applied, in a folder inside a repository as out/mutants is."""
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["git", "init", "-q", folder], check=True)
            tree = pathlib.Path(folder) / "out/tree"
            (tree / "src").mkdir(parents=True)
            (tree / "src/a.cpp").write_text(text)
            (tree / "a.patch").write_text(patch)
            self.mutant = mutants.read(tree / "a.patch")
            mutants.apply(self.mutant.file, tree)
            return (tree / "src/a.cpp").read_text()

    def test_a_patch_is_read_and_applied(self):
        text = self.in_tree(self.HEAD + self.PATCH, "zero\none\ntwo\nthree\nfour\n")
        self.assertEqual(text, "zero\none\n2\nthree\nfour\n")
        self.assertEqual(self.mutant.target, "linkspan_unit")

    def test_one_that_does_not_apply(self):
        with self.assertRaisesRegex(mutants.Wrong, "does not apply"):
            self.in_tree(self.HEAD + self.PATCH, "one\nTWO\nthree\n")

    def test_a_head_that_lacks_something(self):
        for head, why in (
            (self.HEAD.replace("# driver: none\n", ""), "lacks driver"),
            (self.HEAD.replace("none", "real"), '"real" is no driver'),
            (self.HEAD.replace(" --gtest_filter=A.B", ""), "names no test"),
        ):
            with self.assertRaisesRegex(mutants.Wrong, why):
                self.in_tree(head + self.PATCH, "one\ntwo\nthree\n")


class Evidence(unittest.TestCase):
    """evidence.py merge, in a scratch tree of its own."""

    def merge(self, results: dict[str, dict], *more: dict[str, dict]) -> dict:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "scripts").mkdir()
            shutil.copy(ROOT / "scripts/evidence.py", root / "scripts")
            stamp = {"commit": "c0ffee", "sources": {}, "date": "2026-01-01", "machine": {}}
            runs = [root / f"run{i}" for i in range(1 + len(more))]
            for run, contents in zip(runs, (results, *more)):
                run.mkdir()
                for name, content in {"stamp": stamp, **contents}.items():
                    (run / f"{name}.json").write_text(json.dumps(content))
            merge = [sys.executable, root / "scripts/evidence.py", "merge", *runs]
            subprocess.run(merge, check=True, capture_output=True)
            files = (root / "evidence").iterdir()
            return {file.stem: json.loads(file.read_text()) for file in files}

    def test_rows_of_bench_win(self):
        rows = {
            "demo": [{"id": "gpu_gpu.1GiB", "value": 1}, {"id": "gpu_shared.1GiB", "value": 2}],
            "bench": [{"id": "gpu_gpu.1GiB", "value": 3, "bar": 0.98}],
        }
        (merged,) = self.merge(
            {
                name: {"what": name, "command": f"/x/linkspan {name} --json /y/z.json", "rows": r}
                for name, r in rows.items()
            }
        ).values()
        self.assertEqual([rows["bench"][0], rows["demo"][1]], merged["rows"])
        self.assertEqual(
            merged["command"], "linkspan demo --json z.json; linkspan bench --json z.json"
        )

    def test_one_program(self):
        for name, topic in (("demo", "foundation"), ("host", "host")):
            content = {"what": "w", "command": "linkspan x", "rows": []}
            absent = [{"id": "gpu_gpu.1GiB", "why": "needs two GPUs"}] if name == "host" else []
            merged = self.merge({name: {**content, "absent": absent}})
            self.assertEqual(merged.keys(), {topic})
            self.assertEqual(merged[topic].get("absent", []), absent)
            told = (merged[topic]["what"], merged[topic]["command"])
            self.assertEqual(told, ("w", "linkspan x"))

    def test_peers_have_rows_of_cpp(self):
        def run(*names):
            return {"what": "w", "command": "c", "rows": [{"id": n, "value": 1} for n in names]}

        host = run("pages.122x67.sets", "gpu_gpu.1GiB")
        merged = self.merge({"host": host, "peers": run("pages.122x67.sets.python")})
        ids = [row["id"] for row in merged["peers"]["rows"]]
        self.assertEqual(ids, ["pages.122x67.sets.python", "pages.122x67.sets.cpp"])
        self.assertEqual(self.merge({"host": host}).keys(), {"host"})

    def test_tcp_beside_ucx(self):
        def row(name, value, **more):
            return {"id": name, "value": value, "unit": "GB/s", **more}

        def run(*rows):
            return {"what": "w", "command": "c", "rows": list(rows)}

        ours = row("gpu_gpu.1GiB", 26, runs=9, verified=True)
        pages = row("pages.8192x4KiB", 17)
        alone = {"tcp_bench": run(ours, pages)}
        rows = self.merge(alone)["tcp"]["rows"]
        self.assertEqual([r["id"] for r in rows], [ours["id"], pages["id"]])
        for faster, ratio in ((4, 6.5), (10, 2.6)):
            ucx = run(
                row("ucx.gpu_gpu.1GiB.put", 0.5, how="put"),
                row("ucx.gpu_gpu.1GiB.tag", faster, how="tag"),
                row("ucx.gpu_gpu.64MiB.tag", 99, how="another size"),
            )
            rows = {r["id"]: r for r in self.merge({**alone, "ucx_tcp": ucx})["tcp"]["rows"]}
            (beside,) = [r for name, r in rows.items() if name.endswith("beside_ucx")]
            self.assertEqual(beside["id"], "gpu_gpu.1GiB.beside_ucx")
            self.assertEqual((beside["value"], beside["ceiling"]), (26, faster))
            self.assertEqual(
                (beside["ratio"], beside["bar"], beside["pass"]), (ratio, 5, ratio >= 5)
            )
            self.assertEqual((beside["runs"], beside["verified"]), (9, True))
            self.assertIn("tag", beside["ceiling_how"])

    def test_kills_of_several_runs_add_up(self):
        def run(kills, lost, slowest):
            count = {"unit": "count", "bar": 0}
            rows = [
                {**count, "id": "kill_rounds", "value": kills, "bar": 200, "pass": kills >= 200},
                {"id": "slowest", "unit": "ms", "value": slowest, "bar": 9, "pass": slowest <= 9},
                {**count, "id": "kills", "value": kills, "bar": 1000, "pass": False},
                {**count, "id": "lost_bytes", "value": lost, "pass": lost == 0},
            ]
            return {"faults": {"what": "w", "command": f"{kills}", "rows": rows}}

        def told(*runs):
            rows = self.merge(*runs)["faults"]["rows"]
            return [(row["value"], row["pass"]) for row in rows]

        self.assertEqual(
            told(run(600, 0, 3), run(400, 0, 7)), [(1000, True), (7, True), (1000, True), (0, True)]
        )
        self.assertEqual(
            told(run(900, 1, 3), run(100, 0, 10)),
            [(1000, False), (10, False), (1000, False), (1, False)],
        )

    def test_a_run_that_the_driver_contained_counts_as_that_only(self):
        def run(contained, *rows):
            row = {"id": "contained_runs", "unit": "count", "value": contained}
            return {"faults": {"what": "w", "command": "c", "rows": [row, *rows]}}

        leaks = {"id": "leaks", "unit": "count", "bar": 0, "value": 0, "pass": True}
        merged = self.merge(run(1), run(0, leaks), run(1))["faults"]["rows"]
        # A topic that shares them keeps what its own programs measured.
        self.assertEqual(self.merge(run(1)).keys(), {"faults"})
        self.assertEqual(merged, [{**run(2)["faults"]["rows"][0]}, leaks])


class UcxTcp(unittest.TestCase):
    """bench/peers/ucx_tcp.py, with something in the place of ucx_perftest."""

    SERVER = """#!/usr/bin/env python3
import os, socket, sys, time
port = int(sys.argv[sys.argv.index("-p") + 1])
if "127.0.0.1" not in sys.argv:
    listening = socket.create_server(("127.0.0.1", port))
    listening.accept()[0].recv(1)
    sys.exit(0)
assert os.environ["UCX_TLS"] == "tcp" and os.environ["LD_LIBRARY_PATH"].split(":")[0].endswith("lib")
"""
    FIGURE = """
print("iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr")
print("[1795503697.5] [vm:1:0] module.c:1 UCX  WARN  of no matter, or so")
print("   5,1.6,5502.4,5502.4,999.0,1000.0,2,2")
"""

    def run_with(self, client: str, limit: float = 20) -> tuple[int, dict]:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for part in ("bin", "lib"):
                (root / "ucx" / part).mkdir(parents=True)
            program = root / "ucx/bin/ucx_perftest"
            program.write_text(self.SERVER + client)
            program.chmod(0o755)
            with tarfile.open(root / "ucx.tar.xz", "w:xz") as archive:
                archive.add(root / "ucx", ".")
            run = [sys.executable, ROOT / "bench/peers/ucx_tcp.py", "--ucx", root / "ucx.tar.xz"]
            run += ["--memory", "host", "--limit", str(limit), "--json", root / "out.json"]
            code = subprocess.run(run, check=False, capture_output=True).returncode
            return code, json.loads((root / "out.json").read_text())

    def test_figures_in_gb(self):
        code, told = self.run_with(self.FIGURE)
        self.assertEqual((code, told["absent"]), (0, []))
        self.assertEqual(
            [row["id"] for row in told["rows"]],
            [
                f"ucx.host_host.{size}.{test}"
                for size in ("64MiB", "1GiB")
                for test in ("put", "tag")
            ],
        )
        for row in told["rows"]:
            self.assertEqual((row["value"], row["unit"], row["verified"]), (1.049, "GB/s", False))

    def test_what_fails_is_absent(self):
        for client, why in (
            ("sys.exit('no GPU here')", "exit code 1: no GPU here"),
            ("print('a,b')", "no figure in: a,b"),
        ):
            code, told = self.run_with(client)
            self.assertEqual((code, told["rows"], len(told["absent"])), (1, [], 4))
            self.assertIn(why, told["absent"][0]["why"])

    def test_what_hangs_ends(self):
        code, told = self.run_with("time.sleep(60)", limit=2)
        self.assertEqual((code, told["rows"], len(told["absent"])), (1, [], 4))
        self.assertIn("not done after 2 s", told["absent"][0]["why"])

    def test_a_server_that_never_listens_is_absent(self):
        code, told = self.run_with("", limit=0)
        self.assertEqual((code, told["rows"], len(told["absent"])), (1, [], 4))
        self.assertIn("the server does not listen", told["absent"][0]["why"])


if __name__ == "__main__":
    unittest.main()
