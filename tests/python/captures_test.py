"""Prepared transfers inside a CUDA graph."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Pair, pattern

import linkspan


def test_each_launch_is_a_transfer(pair: Pair, gpu) -> None:
    from cuda_memory import Graph

    source, target = gpu(pattern(4097)), gpu(np.zeros(4097, np.uint8))
    prepared = pair.peer.prepare("write", pair.here.register_memory(source), pair.remote(target))
    graph = Graph(gpu.driver, 0, lambda stream: prepared.capture(stream, notification=b"moved"))
    captured = graph.made
    try:
        assert (captured.bytes, captured.completed, captured.peer) == (4097, 0, pair.peer.id)
        for launches in (1, 2):
            source.write(pattern(4097, launches).tobytes())
            graph.launch()
            captured.wait(launches, 10)
            assert captured.completed == launches
            assert target.read() == pattern(4097, launches).tobytes()
        told: list[bytes] = []
        while len(told) < 2:
            told += [each.message for each in pair.there.notifications(10)]
        assert told == [b"moved"] * 2
        with pytest.raises(TimeoutError, match="2 launches have completed, not 3"):
            captured.wait(3, 0.05)
        assert captured.status == "ok"
        captured.close()
        assert captured.status == "canceled"
        source.write(pattern(4097, 9).tobytes())
        graph.launch()
        assert (captured.completed, captured.refused) == (2, 1)
        assert target.read() == pattern(4097, 2).tobytes()
        with pytest.raises(linkspan.CanceledError):
            captured.wait(3, 10)
    finally:
        graph.close()


def test_what_is_wrong_is_refused(pair: Pair, gpu) -> None:
    from cuda_memory import HeldStream

    prepared = pair.peer.prepare(
        "write",
        pair.here.register_memory(gpu(pattern(64))),
        pair.remote(gpu(np.zeros(64, np.uint8))),
    )
    idle = HeldStream(gpu.driver, 0)
    try:
        with pytest.raises(linkspan.InvalidArgumentError, match="captures no CUDA graph"):
            prepared.capture(idle)
    finally:
        idle.close()
    with pytest.raises(linkspan.InvalidArgumentError, match="no stream was given"):
        prepared.capture(None)
    with pytest.raises(ValueError, match="give \"current\", None"):
        prepared.capture("another")
    with pytest.raises(TypeError, match="give bytes"):
        prepared.capture(1, notification="text")
