"""Several GPUs, each with a process: what bench/many_gpus moves between all of them, and what the
others see when one dies. Four simulated GPUs, and with LINKSPAN_LONG eight and sixteen; on a machine
with GPUs all it has."""

from __future__ import annotations

import json
import os
import pathlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import REPOSITORY

BENCH = REPOSITORY / "bench" / "many_gpus"
LONG = bool(os.environ.get("LINKSPAN_LONG"))
LIMIT_S = 300
KILLS = 50 if LONG else 5
SLOT = 1 << 20

sys.path.insert(0, str(BENCH))

from cuda_memory import Driver  # noqa: E402
from ranks import Child, child_of  # noqa: E402

needs_driver = pytest.mark.skipif(
    os.environ.get("LINKSPAN_CUDA_LIBRARY", "").startswith("/non"), reason="needs a GPU"
)


@needs_driver
@pytest.mark.parametrize("gpus", [4, 8, 16] if LONG else [4])
def test_all_gpus_reach_each_other(gpus: int, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rows.json"
    ran = subprocess.run(
        [sys.executable, BENCH / "run.py", "--quick", "--json", file],
        env=os.environ | {"FAKE_CUDA_DEVICES": str(gpus)},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    if ran.stdout.startswith("nothing to measure"):
        return  # a machine with one GPU
    rows = {row["id"]: row for row in json.loads(file.read_text())["rows"]}
    measured = {"start.meet_all", "all_pairs.96KiB", "one_to_all.96KiB", "host_to_gpu.relays1",
                "prefill_decode.2x2.pages"}  # fmt: skip
    assert measured <= set(rows), rows.keys()
    assert all(row["verified"] for row in rows.values() if row["unit"] == "GB/s")


class Ranks:
    def __init__(self, count: int) -> None:
        self.count = count
        self.all = [self.start(i) for i in range(count)]
        self.addresses = [rank.ask("set_up", SLOT)[0] for rank in self.all]
        self.ask(range(count), "meet", self.addresses)

    def start(self, rank: int) -> Child:
        return child_of(
            str(rank), self.count, self.count, REPOSITORY / "tests/support/many_gpus_rank.py"
        )

    def ask(self, ranks: Any, method: str, *arguments: Any) -> list[Any]:
        for rank in ranks:
            self.all[rank].order(method, *arguments)
        return [self.all[rank].answer(method) for rank in ranks]

    def others(self, rank: int) -> list[int]:
        return [i for i in range(self.count) if i != rank]

    def replace(self, rank: int) -> None:
        self.all[rank].end(well=False)
        self.all[rank] = self.start(rank)
        self.addresses[rank] = self.all[rank].ask("set_up", SLOT)[0]
        self.ask([rank], "meet", self.addresses)
        self.ask(self.others(rank), "meet_one", rank, self.addresses[rank])

    def end(self) -> None:
        for each in self.all:
            each.end(well=True)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "4")
    count = min(Driver().gpus, 4)
    if count < 3:
        pytest.skip("needs a GPU, or three where they are real")
    made = Ranks(count)
    yield made
    made.end()


@needs_driver
def test_a_rank_that_is_killed_disturbs_no_other(ranks: Ranks) -> None:
    chosen, held = random.Random(1), []
    for kill in range(KILLS):
        seed, dying = 1000 * kill, chosen.randrange(ranks.count)
        living = ranks.others(dying)
        ranks.ask(range(ranks.count), "fill", seed)
        begin = time.monotonic() + 0.02
        for i in range(ranks.count):
            ranks.all[i].order("write_until_told", begin, ranks.others(i), SLOT)
        time.sleep(max(0.0, begin - time.monotonic()) + chosen.random() * 0.02)
        ranks.all[dying].process.kill()
        for i in living:
            ends = ranks.all[i].answer("write_until_told")
            assert ends.pop(dying) in ("ok", "DisconnectedError"), ends
            assert set(ends.values()) == {"ok"}, (kill, i, ends)
        for i in living:
            writers = [j for j in living if j != i]
            assert ranks.all[i].ask("wrong", seed, writers, SLOT, dying) == 0
        held.append(max(ranks.ask(living, "part", dying)))
        ranks.replace(dying)
    assert held[-1] <= held[0], held
