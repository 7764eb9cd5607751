#!/usr/bin/env python3
"""What the compiler made of the device headers: the instructions that docs/memory_model.md leans on.

ptx_test.py nvrtc WHEELS | nvcc NVCC

A kernel `mapped_X` is X with all that is for a proxy left out, so that counts are exact there.
"""

import re
import sys
import unittest

import images

SCOPES = ["thread", "warp", "block"]
BARRIER = {"thread": None, "warp": "bar.warp.sync", "block": "bar.sync"}
AGREED = {"thread": None, "warp": "bar.warp.sync", "block": "bar.red"}
FENCES = r"(fence|membar)\b"
INSTRUCTION = re.compile(r"^\s*(?:\{ \.reg \.pred p; )?(?:@!?%p\d+\s+)?([a-z][\w.:]+)(.*)$")


def instructions(code: str) -> list[str]:
    lines = []
    for line in code.split("\n"):
        for each in line.split(";"):
            match = INSTRUCTION.match(each)
            if match:
                lines.append("".join(match.groups()).strip())
    return lines


def kernels_of(ptx: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Instructions in the order of the text: by kernel, behind its own those of the functions that
    it calls; and by kernel and function, its own alone."""
    bodies, kernels = {}, []
    # A function that is only declared has no body, so none of another's braces either.
    for kind, name, body in re.findall(
        r"\.(entry|func)\s+(?:\([^)]*\)\s*)?(\w+)\s*\([^{;]*\)[^{;]*\n\{\n(.*?)\n\}\n", ptx, re.S
    ):
        bodies[name] = body
        if kind == "entry":
            kernels.append(name)

    def called(name: str, seen: list[str]) -> list[str]:
        for each in re.findall(r"\b(\w+)\b,\s*\n\s*\(", bodies[name]):
            if each in bodies and each not in seen:
                seen.append(each)
                called(each, seen)
        return seen

    own = {name: instructions(body) for name, body in bodies.items()}
    whole = {
        name: own[name] + [line for each in called(name, []) for line in own[each]]
        for name in kernels
    }
    return whole, own


def at(lines: list[str], pattern: str) -> list[int]:
    return [i for i, line in enumerate(lines) if re.match(pattern, line)]


class Ptx(unittest.TestCase):
    old: dict[str, list[str]]  # of sm_80
    new: dict[str, list[str]]  # of sm_90
    own: dict[str, list[str]]  # of sm_90, functions too, without what they call

    def count(self, kernel: str, pattern: str) -> int:
        return len(at(self.new[kernel], pattern))

    def function_of(self, name: str, scope: str) -> list[str]:
        """Returns the instructions of the only such function of linkspan::device::detail."""
        ending = f"{name}ILNS0_5ScopeE{SCOPES.index(scope)}"
        (lines,) = (lines for each, lines in self.own.items() if ending in each)
        return lines

    def behind(self, kernel: str, later: str, earlier: str) -> None:
        """All of `later` stand behind all of `earlier`; there are both."""
        self.behind_in(self.new[kernel], later, earlier)

    def behind_in(self, lines: list[str], later: str, earlier: str) -> None:
        self.assertTrue(at(lines, earlier), f"no {earlier}")
        self.assertTrue(at(lines, later), f"no {later}")
        self.assertGreater(min(at(lines, later)), max(at(lines, earlier)))

    def test_nothing_is_loaded_non_coherently_or_volatile(self):
        for kernels in (self.old, self.new):
            self.assertGreater(len(kernels), 40)
            for name, lines in kernels.items():
                wrong = [x for x in lines if re.match(r"\S*(\.nc\b|volatile)|ldu\b|tex\b", x)]
                self.assertEqual(wrong, [], name)

    def test_only_flush_and_the_bulk_copy_fence(self):
        for kernels in (self.old, self.new):
            for name, lines in kernels.items():
                fences = [lines[i] for i in at(lines, FENCES)]
                if "flush" in name:
                    self.assertEqual(fences, ["fence.acq_rel.sys"], name)
                elif "bulk" in name and kernels is self.new:
                    due = ["fence.mbarrier_init.release.cluster", "fence.proxy.async"]
                    self.assertEqual(fences, due, name)
                else:
                    self.assertEqual(fences, [], name)

    def test_a_signal_is_one_release(self):
        for name in ["signal_add"] + [f"put_signal_{scope}" for scope in SCOPES]:
            kernel = f"mapped_{name}"
            lines = self.own[kernel]  # what it calls queues entries for a proxy
            self.assertEqual(self.count(kernel, r"red\.release\.sys\.add\.u64"), 1, kernel)
            self.assertEqual(len(at(lines, r"(red|atom)\b")), 1, kernel)
            self.assertEqual(at(lines, r"st\.(release|relaxed)"), [], kernel)

    def test_the_signal_is_behind_a_barrier(self):
        # Blocks may stand in any order, so: what last touched memory before it, or waited.
        for scope in ("warp", "block"):
            lines = self.new[f"mapped_put_signal_{scope}"]
            signal = at(lines, r"red\.release")[0]
            before = [i for i in at(lines, r"(st|atom|bar|ld(?!\.param))\b") if i < signal]
            last = lines[before[-1]] if before else "nothing"
            self.assertTrue(last.startswith(BARRIER[scope]), f"{scope}: {last}")
            stores = at(lines, r"st\.global\.(v4\.(u|b)32|(u|b)8)")
            self.assertGreaterEqual(len(stores), 8)

    def test_a_put_orders_nothing_by_itself(self):
        for scope in SCOPES:
            lines = self.own[f"mapped_put_{scope}"]
            self.assertEqual(at(lines, r"(red|atom)\b|(ld|st)\.(relaxed|acquire|release)"), [])

    def test_a_wait_acquires_and_then_all_lanes_meet(self):
        for scope in SCOPES:
            for kernel in (f"wait_signal_{scope}", f"mapped_wait_signal_{scope}"):
                self.assertGreaterEqual(self.count(kernel, r"ld\.acquire\.sys\.u64"), 2)
                self.assertEqual(self.count(kernel, r"ld\.relaxed\.sys\.u64"), 0)
                if AGREED[scope]:
                    self.behind(kernel, re.escape(AGREED[scope]), r"ld\.acquire\.sys")
        self.assertEqual(self.count("read_signal", r"ld\.acquire\.sys\.u64"), 1)

    def test_packets_are_pairs_of_whole_words(self):
        for scope in SCOPES:
            send, receive = f"mapped_send_{scope}", f"mapped_receive_{scope}"
            self.assertGreaterEqual(self.count(send, r"st\.relaxed\.sys\.v2\.u64"), 1)
            # Each releases two words: one in the peer's pad (a sender the number of what was put, a
            # receiver its credit), and the number of an entry for the proxy.
            self.assertEqual(self.count(send, r"st\.release"), 2)
            self.assertGreaterEqual(self.count(receive, r"ld\.relaxed\.sys\.v2\.u64"), 2)
            self.assertEqual(self.count(receive, r"st\.release\.sys\.u64"), 2)
            # The credit leaves before the packets are waited for, and behind the barrier that ends
            # the receive before this one, that behind what was cleared.
            function = self.function_of("any_receive", scope)
            packets = at(function, r"(ld|st)\.relaxed\.sys\.v2")
            self.assertLess(at(function, r"st\.release")[0], packets[0], receive)
            # A message without credit releases nothing.
            self.assertEqual(at(self.own[receive], r"st\.release"), [])
            if BARRIER[scope]:
                for lines in (function, self.own[receive]):  # blocks may stand in any order
                    self.assertTrue(at(lines, re.escape(AGREED[scope])), receive)
                cleared = self.function_of("clear", scope)
                self.behind_in(cleared, re.escape(BARRIER[scope]), r"st\.relaxed\.sys\.v2")

    def test_an_entry_of_the_proxy_is_released_whole_into_room_acquired(self):
        kernel = "part_enqueue"
        self.assertEqual(self.count(kernel, r"st\.release\.sys\.u64"), 1)
        fields = r"st\.(global\.)?(v2\.)?(u|b)64"
        self.assertGreaterEqual(self.count(kernel, fields), 3)
        self.behind(kernel, r"st\.release", fields)
        self.behind(kernel, fields, r"ld\.acquire\.sys\.u64")

    def test_a_grid_arrives_once_a_cta_and_signals_once(self):
        kernel = "mapped_put_signal_grid"
        self.assertEqual(self.count(kernel, r"atom\.acq_rel\.gpu\.inc\.u32"), 1)
        self.assertEqual(self.count(kernel, r"red\.release\.sys\.add\.u64"), 1)
        self.behind(kernel, r"red\.release", r"atom\.acq_rel")
        self.behind(kernel, r"atom\.acq_rel", r"st\.global\.v4")

    def test_a_bulk_copy_is_complete_when_it_ends(self):
        for kernel in ("put_bulk", "mapped_put_bulk"):
            copies = r"cp\.async\.bulk\.(shared|global)"
            self.assertEqual(self.count(kernel, r"cp\.async\.bulk\.global\.shared::cta"), 1)
            self.behind(kernel, r"cp\.async\.bulk\.wait_group 0", copies)
            self.assertEqual(self.count(kernel, r"cp\.async\.bulk\.wait_group 0"), 1)
            self.behind(kernel, copies, r"fence\.proxy\.async")
            lines = self.new[kernel]
            end = at(lines, r"cp\.async\.bulk\.wait_group 0")[0]
            barriers = at(lines, r"bar\.sync")
            self.assertTrue([i for i in barriers if i > end], "for the lanes that do not wait")
        # One before it reads what other lanes wrote and one behind; and the two of put().
        self.assertEqual(self.count("mapped_put_bulk", r"bar\.sync"), 4)

    def test_a_bulk_copy_has_global_memory_as_its_source(self):
        kernel = "bulk_of_either"  # nvcc knows where a kernel's argument points
        self.assertEqual(self.count(kernel, r"isspacep\.global"), 1)
        self.behind(kernel, r"cp\.async\.bulk\.shared", r"isspacep\.global")

    def test_sm_80_has_no_bulk_copy(self):
        for name, lines in self.old.items():
            self.assertEqual(at(lines, r"cp\.async|mbarrier|fence\.proxy"), [], name)

    def test_a_congruent_put_moves_16_bytes_a_lane_8_in_flight(self):
        lines = self.new["part_copy"]
        loads = at(lines, r"ld\.(global\.)?v4\.(u|b)32")
        self.assertGreaterEqual(len(loads), 8)
        self.assertEqual(len(loads), len(at(lines, r"st\.(global\.)?v4\.(u|b)32")))


if __name__ == "__main__":
    compile_for = images.compiler(sys.argv[1:])
    Ptx.old, _ = kernels_of(compile_for("compute_80").decode())
    Ptx.new, Ptx.own = kernels_of(compile_for("compute_90").decode())
    unittest.main(argv=sys.argv[:1])
