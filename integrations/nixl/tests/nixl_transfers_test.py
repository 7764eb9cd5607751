"""Transfers and notifications between agents in two processes, by the oldest and newest NIXL."""

from __future__ import annotations

import pathlib
import random
import re

import linkspan.nixl
import pytest
from agents import NEWEST, OLDEST, Failed, Pair, idle_processes, start  # noqa: F401

PAGE, PAGES, LAYERS = 4096, 128, 64


@pytest.mark.parametrize(
    ("wheel", "options"),
    [(OLDEST, {}), (NEWEST, {}), (NEWEST, {"network": True, "rdma": True, "require": "verbs"})],
    ids=["oldest", "newest", "newest_by_rdma"],
)
def test_pages_of_many_regions(start, wheel: str, options: dict) -> None:  # noqa: F811
    pair = Pair(start, PAGE * PAGES, LAYERS, wheel, **options)
    places = [random.sample(range(PAGES), PAGES) for _ in range(2)]
    pairs = list(zip(*places, strict=True))
    sides = PAGE, pair.here, pair.there, pairs
    handle = pair.a.ask("prepare_pages", "a", "WRITE", "b", *sides)
    for turn in range(3):  # prepared from the second on
        for layer in (0, LAYERS - 1):
            pair.a.ask("fill", pair.here[layer], turn)
        pair.a.ask("post", "a", handle, b"turn %d" % turn)
        assert pair.a.ask("wait", "a", handle)[0] == "DONE"
        assert pair.b.ask("notifications", "b", 1) == {"a": [b"turn %d" % turn]}
        for layer in (0, 1, LAYERS - 1):
            sent, got = pair.a.ask("read", pair.here[layer]), pair.b.ask("read", pair.there[layer])
            for here, there in pairs:
                page = sent[here * PAGE : (here + 1) * PAGE]
                assert got[there * PAGE : (there + 1) * PAGE] == page
    assert pair.a.ask("release", "a", handle)[0] == 0

    pair.b.ask("fill", pair.there[5], 77)
    back = pair.a.ask("prepare", "a", "READ", "b", [(pair.here[5], 999)], [(pair.there[5], 999)])
    pair.a.ask("post", "a", back)
    assert pair.a.ask("wait", "a", back)[0] == "DONE"
    read = pair.b.ask("read", pair.there[5])[:999]
    assert pair.a.ask("read", pair.here[5])[:999] == read


def test_unequal_blocks_over_the_network(start) -> None:  # noqa: F811
    pair = Pair(start, network=True)
    blocks = [(0, 5), (4096, 100_000), (900_000, 1)]
    sides = [[(at[0] + offset, size) for offset, size in blocks] for at in (pair.here, pair.there)]
    handle = pair.a.ask("prepare", "a", "WRITE", "b", *sides)
    pair.a.ask("post", "a", handle, b"done")
    assert pair.a.ask("wait", "a", handle)[0] == "DONE"
    assert pair.b.ask("notifications", "b", 1) == {"a": [b"done"]}
    sent, got = pair.a.ask("read", pair.here[0]), bytearray(pair.size)
    for offset, size in blocks:
        got[offset : offset + size] = sent[offset : offset + size]
    assert pair.b.ask("read", pair.there[0]) == got
    with pytest.raises(Failed, match="nixlNotSupportedError"):
        pair.a.ask("estimate", "a", handle)
    said = pair.a.ask("said")
    assert 'nixl agent "a": no Unix socket, so peers of this host use the network' in said
    slow = r'agent "b" is on this host, but transfers between (\w+) memory here and \1 memory there'
    assert re.search(slow, said)


def test_the_best_path_is_not_warned_of(start) -> None:  # noqa: F811
    pair = Pair(start)
    pair.check()
    assert pair.a.ask("estimate", "a", pair.write())[0] > 0
    assert pair.a.ask("said") == ""


def test_notifications(start) -> None:  # noqa: F811
    pair = Pair(start)
    for message in (b"", b"\0\xff", b"HB:1", b"m" * 65_000):
        pair.a.ask("notify", "a", "b", message)
        assert pair.b.ask("notifications", "b", 1) == {"a": [message]}
    for index in range(300):  # in order, also those that wait for the connection
        pair.b.ask("notify", "b", "a", b"%d" % index)
    assert pair.a.ask("notifications", "a", 300) == {"b": [b"%d" % i for i in range(300)]}


def test_two_agents_of_one_process_with_long_names(start) -> None:  # noqa: F811
    process = start()
    names = "p" * 300, "d" * 400
    memories = []
    for index, name in enumerate(names):
        process.ask("open", name)
        memories += process.ask("register", name, 10_000, 1, index + 1)
    for name, other in (names, names[::-1]):
        assert process.ask("add", name, process.ask("metadata", other)) == other
    sides = [[(each, 10_000)] for each in memories]
    handle = process.ask("prepare", names[0], "WRITE", names[1], *sides)
    process.ask("post", names[0], handle, b"there")
    assert process.ask("wait", names[0], handle)[0] == "DONE"
    assert process.ask("notifications", names[1], 1) == {names[0]: [b"there"]}
    assert process.ask("read", memories[0]) == process.ask("read", memories[1])
    process.ask("release", names[0], handle)
    process.ask("close", names[0])
    process.ask("register", names[1], 10)


def test_eight_threads(start) -> None:  # noqa: F811
    pair = Pair(start)
    assert pair.a.ask("in_threads", "a", "b", pair.here[0], pair.there[0], 25) == []
    got = pair.b.ask("notifications", "b", 200)
    assert sorted(got["a"]) == sorted(b"%d %d" % (i, t) for i in range(8) for t in range(25))
    assert pair.b.ask("read", pair.there[0]) == pair.a.ask("read", pair.here[0])


def test_under_the_name_of_another_backend(  # noqa: F811
    start, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plugins = linkspan.nixl.folder_as("UCX")
    processes = [start(backend="UCX", plugins=plugins) for _ in range(2)]
    for name, process in zip("ab", processes, strict=True):
        process.ask("open", name, num_threads="4", ucx_error_handling_mode="peer")
        assert "deadline_s" in process.ask("parameters", name)
    processes[0].ask("add", "a", processes[1].ask("metadata", "b"))
    processes[0].ask("notify", "a", "b", b"as UCX")
    assert processes[1].ask("notifications", "b", 1) == {"a": [b"as UCX"]}
