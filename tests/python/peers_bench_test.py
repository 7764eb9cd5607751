"""bench/peers: linkspan beside others' libraries. These are absent here; linkspan's own side runs."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tarfile

import pytest
from conftest import REPOSITORY

PEERS = REPOSITORY / "bench" / "peers"
sys.path.insert(0, str(PEERS))
import memory  # noqa: E402
import rows  # noqa: E402
import run as driver  # noqa: E402
import side  # noqa: E402
import wheels  # noqa: E402

BARS = {
    "pages.122x67.sets.python": 0.80,
    "pages.122x67.triples.python": 0.80,
    "pages.8192x4KiB.python": 0.90,
}


def bench(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(PEERS / "run.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def small(id: str) -> rows.Row:
    return next(rows.in_host_memory(row) for row in rows.all_rows() if row.id == id)


def packed(folder: pathlib.Path, part: int) -> list[pathlib.Path]:
    (folder / "some.py").write_text("value = 7\n" * 500)
    with tarfile.open(folder / "whole", "w:xz") as archive:
        archive.add(folder / "some.py", "some.py")
    return wheels.split(folder / "whole", folder, part)


def test_the_bars_are_those_of_the_rows_with_a_bare_kernel():
    assert {row.id: row.bar for row in rows.all_rows() if row.bar} == BARS
    assert len({row.id for row in rows.all_rows()}) == len(rows.all_rows()) == 18


def test_rows_of_nixl_say_how_much_faster_than_its_ucx():
    bars = {row.id: row.bar for row in rows.nixl_rows()}
    assert bars["pages.8192x4KiB.repost"] == bars["regions.122x67.repost"] == 1 / 100
    assert bars["pages.8192x4KiB.vllm"] == bars["regions.122x67.vllm"] == 1 / 30
    assert bars["gpu_host.64MiB"] == bars["tcp.64MiB"] == 1 / 20
    assert bars["8B"] == bars["gpu_host.8B"] == 1
    assert all(row.unit != "GB/s" for row in rows.nixl_rows())  # a ratio of times: less is better


def test_a_process_of_nixl_has_the_plugins_and_the_wires_of_its_row():
    tcp = next(row for row in rows.nixl_rows() if row.tcp)
    plugins = pathlib.Path("/plugins")
    assert driver.environment("nixl", tcp, plugins) == {"UCX_TLS": "tcp,cuda_copy"}
    assert driver.environment("nixl_linkspan", tcp, plugins) == {
        "NIXL_PLUGIN_DIR": "/plugins",
        "LINKSPAN_BENCH_TCP": "1",
    }
    local = next(row for row in rows.nixl_rows() if not row.tcp)
    assert driver.environment("nixl", local, plugins) == {}
    assert driver.environment("linkspan", local, None) == {}


def test_a_figure_is_a_rate_or_a_time():
    sets = next(row for row in rows.all_rows() if row.id == "pages.122x67.sets.python")
    assert driver.figure(sets, sets.moved) == 1.0  # a byte a nanosecond is 1 GB/s
    assert driver.figure(small("page_page.8B"), 1500) == 1.5
    (prep,) = (row for row in rows.nixl_rows() if row.unit == "ns")
    assert driver.figure(prep, 8192 * 40) == 40  # of a descriptor


def test_rows_with_lists_have_other_pages_for_each_region():
    sets, triples = (
        next(row for row in rows.all_rows() if row.id == f"pages.122x67.{name}.python").indices()
        for name in ("sets", "triples")
    )
    assert sets[0] == sets[1] and triples[0] != triples[1]
    assert all(len(set(pages)) == 67 for two in triples for pages in two)


@pytest.mark.parametrize("at", ["page", "gap"])
def test_wrong_bytes_are_counted_in_pages_and_gaps(at):
    row = small("pages.8192x4KiB.python")
    ((mine, theirs),) = row.indices()
    source, target = (memory.allocate("page", row.region_bytes, -1) for _ in range(2))
    memory.fill(source, 3)
    memory.poison(target)
    pages = target.array.reshape(-1, row.bytes)
    pages[theirs] = source.array.reshape(-1, row.bytes)[mine]
    assert memory.wrong_bytes(row, [target], 3, True) == 0
    assert memory.wrong_bytes(row, [target], 4, True) > row.bytes
    gap = next(page for page in range(row.region_pages) if page not in theirs)
    pages[theirs[5] if at == "page" else gap][17] ^= 1
    assert memory.wrong_bytes(row, [target], 3, True) == 1


def test_polling_ends_at_its_deadline_and_names_what_it_waited_for():
    with pytest.raises(side.Failed, match="a notification not done after 0 s"):
        side.until(lambda: False, "a notification", limit=0.0)


def test_parts_become_the_folder_that_they_were_made_of(tmp_path):
    parts = packed(tmp_path, 64)
    assert len(parts) > 1 and max(part.stat().st_size for part in parts) == 64
    site = wheels.unpack(tmp_path, tmp_path / "site")
    assert (site / "some.py").read_text() == "value = 7\n" * 500


# 4: the last part has no byte of any file.
@pytest.mark.parametrize(("missing", "part"), [(0, 64), (-1, 64), (-1, 4)])
def test_a_missing_part_is_told(tmp_path, missing, part):
    packed(tmp_path, part)[missing].unlink()
    with pytest.raises(RuntimeError, match="carry all"):
        wheels.unpack(tmp_path, tmp_path / "site")


def test_split_replaces_the_parts_of_an_earlier_call(tmp_path):
    packed(tmp_path, 16)
    parts = packed(tmp_path, 64)
    assert sorted(tmp_path.glob(f"{wheels.PART}*")) == parts


def test_linkspan_moves_verified_bytes_and_an_absent_library_has_a_reason(tmp_path):
    ids = [
        f"{id}.host"
        for id in (
            "page_page.8B",
            "shared_shared.8B",
            "gpu_page.4KiB.read",
            "pingpong.nobody_waits.python",
            "pages.122x67.sets.python",
            "pages.122x67.triples.python",
            "window16.1MiB",
        )
    ]
    done = bench(
        "--host",
        "--sides",
        "linkspan",
        "ucx",
        "--turns",
        "1",
        "--rows",
        *ids,
        "--json",
        str(tmp_path / "peers.json"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads((tmp_path / "peers.json").read_text())
    assert [row["id"] for row in content["rows"]] == ids
    assert all(row["verified"] and row["value"] > 0 for row in content["rows"])
    assert all("Prepared.post" in row["how"] or "Peer." in row["how"] for row in content["rows"])
    assert {each["id"] for each in content["absent"]} == {f"{id}.ucx" for id in ids}
    assert all("run.py --fetch" in each["why"] for each in content["absent"])


def test_a_run_that_is_broken_off_leaves_the_rows_it_has(tmp_path, monkeypatch):
    file = tmp_path / "peers.json"
    monkeypatch.setattr(sys, "argv", ["run.py", "--host", "--json", str(file)])
    broken_off = driver.Bench(driver.arguments(), None, 0)

    def measure(row: rows.Row) -> None:
        if broken_off.rows:
            raise KeyboardInterrupt
        broken_off.rows.append({"id": row.id})

    monkeypatch.setattr(broken_off, "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        broken_off.run([small("page_page.8B"), small("page_page.4KiB")])
    assert json.loads(file.read_text())["rows"] == [{"id": "page_page.8B.host"}]


def test_an_unknown_row_is_told_with_those_that_there_are():
    done = bench("--rows", "nothing")
    assert done.returncode == 1
    assert "--rows nothing: no such row" in done.stderr and "page_page.8B" in done.stderr


def test_wheels_that_are_not_there_are_told(tmp_path):
    done = bench("--wheels", str(tmp_path))
    assert done.returncode == 1 and "--wheels" in done.stderr and "--fetch" in done.stderr
