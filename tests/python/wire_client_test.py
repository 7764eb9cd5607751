"""docs/wire_protocol.md is enough to write a second implementation: tests/python/wire_client.py."""

from __future__ import annotations

import pathlib
import sys
from typing import Iterator

import numpy as np
import pytest
from conftest import REPOSITORY, pattern

import linkspan

pytest.importorskip("cryptography", reason="needs cryptography")
pytest.importorskip("flatbuffers", reason="needs flatbuffers")
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import wire_client  # noqa: E402
import wire_sums  # noqa: E402

SECRET = b"a secret of the tests"
SIZE = (3 << 20) + 77
CORRUPT = 13  # linkspan::Code


@pytest.fixture(scope="module", autouse=True)
def tables(tmp_path_factory: pytest.TempPathFactory) -> None:
    wire_client.make_tables(REPOSITORY / "src/base/schema", tmp_path_factory.mktemp("tables"))


@pytest.fixture(params=[b"", SECRET], ids=["no_secret", "secret"])
def secret(request: pytest.FixtureRequest) -> bytes:
    return request.param


@pytest.fixture
def engine(secret: bytes, tmp_path: pathlib.Path) -> Iterator[linkspan.Engine]:
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    file.chmod(0o600)
    with linkspan.Engine("served", secret_file=str(file) if secret else "") as made:
        made.listen("tcp:127.0.0.1:0")
        yield made


def address_of(engine: linkspan.Engine) -> tuple[str, int]:
    host, port = engine.address.removeprefix("tcp:").rsplit(":", 1)
    return host, int(port)


def test_writes_reads_and_notifies(engine: linkspan.Engine, secret: bytes) -> None:
    memory = pattern(SIZE, 1)
    expected = memory.copy()
    engine.publish("memory", engine.register_memory(memory))
    client = wire_client.WireClient(address_of(engine), secret)
    peer = engine.accept(10)
    region = client.lookup("memory")
    assert region.bytes == SIZE

    data = pattern((2 << 20) + 3, 2)
    assert client.write(region, 5, data.tobytes()) == 0
    expected[5 : 5 + data.size] = data
    peer.notify(b"for the client")  # makes progress: what has landed is seen
    assert client.next_notification() == b"for the client"
    assert np.array_equal(memory, expected)
    assert client.read(region, 1, SIZE - 1) == expected[1:].tobytes()

    client.notify(b"for the Engine")
    assert engine.notifications(10) == [(peer.id, b"for the Engine")]
    assert client.write(region, 9, b"more", b"it has come") == 0
    assert engine.notifications(10) == [(peer.id, b"it has come")]
    assert memory[9:13].tobytes() == b"more"
    client.close()


def expect_dead(client: wire_client.WireClient, key: object, size: int) -> None:
    for offset, count in [(0, size), (0, 1), (size - 1, 1)]:
        with pytest.raises(PermissionError):
            client.read(key, offset, count)
        assert client.write(key, offset, bytes(count)) != 0


@pytest.mark.parametrize("end", ["finished", "canceled"])
def test_a_key_of_a_message_is_of_its_bytes_and_dies_with_it(
    engine: linkspan.Engine, secret: bytes, end: str
) -> None:
    region = engine.allocate_shared(1 << 20)
    memory = np.frombuffer(region.memory, np.uint8)
    memory[:] = before = pattern(1 << 20, 1)
    client = wire_client.WireClient(address_of(engine), secret)
    peer = engine.accept(10)
    start, size = 5000, 64
    transfer = peer.send(1, region.memory[start : start + size])
    number, key, offset = client.next_key(wire_client.OFFER)
    assert (key.bytes, offset, key.read, key.write) == (size, 0, True, False)
    assert client.read(key, 0, size) == before[start : start + size].tobytes()
    for at, count in [(size, 1), (0, size + 1), (2**64 - start, 1)]:
        with pytest.raises(PermissionError):
            client.read(key, at, count)
    assert client.write(key, 0, b"no") != 0
    if end == "finished":
        client.finish(number, by_sender=False)
        transfer.wait(10)
    else:
        assert not transfer.cancel()
        assert client.await_op(wire_client.WITHDRAW) == number
        client.finish(number, by_sender=False, code=7)
        with pytest.raises(linkspan.CanceledError):
            transfer.wait(10)
    expect_dead(client, key, size)
    assert np.array_equal(memory, before)
    engine.deregister(region)
    client.close()


def test_a_key_of_a_receive_is_of_its_bytes_and_dies_with_it(
    engine: linkspan.Engine, secret: bytes, gpu
) -> None:
    before = pattern(1 << 16, 1)
    target = gpu(before)
    client = wire_client.WireClient(address_of(engine), secret)
    peer = engine.accept(10)
    start, size = 5000, 64
    transfer = peer.recv(1, (target.address + start, size))
    number = client.offer(1, size)
    accepted, key, offset = client.next_key(wire_client.ACCEPT)
    assert accepted == number
    assert (key.bytes, offset, key.read, key.write) == (size, 0, False, True)
    data = pattern(size, 2).tobytes()
    assert client.write(key, 0, data) == 0
    for at, count in [(size, 1), (1, size), (2**64 - start, 1)]:
        assert client.write(key, at, bytes(count)) != 0
    with pytest.raises(PermissionError):
        client.read(key, 0, 1)
    client.finish(number, by_sender=True)
    transfer.wait(10)
    expect_dead(client, key, size)
    assert target.read() == before[:start].tobytes() + data + before[start + size :].tobytes()
    client.close()


def test_memory_that_the_engine_reads_into_has_no_key(engine: linkspan.Engine, secret: bytes) -> None:
    region = engine.allocate_shared(1 << 16)
    client = wire_client.WireClient(address_of(engine), secret)
    transfer = engine.accept(10).recv(1, region.memory[:64])
    client.offer(1, 64)
    client.await_op(wire_client.IMPORT)  # it is matched: the Engine wants to read
    for serial in range(1, 50):
        try:
            key = client.import_of(serial)
        except KeyError:
            continue
        assert (key.bytes, key.read, key.write) == (64, False, False)
        expect_dead(client, key, 64)
    client.close()
    with pytest.raises(linkspan.Error):
        transfer.wait(10)


def test_sums(engine: linkspan.Engine, secret: bytes) -> None:
    memory = pattern(9000, 1)
    engine.publish("memory", engine.register_memory(memory))
    client = wire_client.WireClient(address_of(engine), secret)
    engine.accept(10)
    region = client.lookup("memory")
    data = pattern(5000, 2).tobytes()
    stream = client._stream
    client._stream = wire_sums.SummedStream(stream)
    assert client.write(region, 5, data, b"it has come") == 0
    assert [text for _, text in engine.notifications(10)] == [b"it has come"]
    assert memory[5:5005].tobytes() == data
    assert client.read(region, 3, 8000) == memory[3:8003].tobytes()

    client._stream = wire_sums.SummedStream(stream, wrong=1 << 31)
    assert client.write(region, 5, data, b"it is not right") == CORRUPT
    with pytest.raises(PermissionError, match=f"code {CORRUPT}"):
        client.read(region, 3, 8000)
    assert engine.notifications() == []
    client._stream = stream
    assert client.read(region, 0, 9000) == memory.tobytes()
    client.close()


def test_is_refused_what_is_not_its(engine: linkspan.Engine, secret: bytes) -> None:
    memory = pattern(4096, 1)
    expected = memory.copy()
    engine.publish("memory", engine.register_memory(memory))
    client = wire_client.WireClient(address_of(engine), secret)
    with pytest.raises(KeyError):
        client.lookup("nothing")
    region = client.lookup("memory")
    assert client.write(region, 4090, b"beyond it", b"it has not come") != 0
    region.token = bytes(16)
    assert client.write(region, 0, b"by a token of nobody") != 0
    with pytest.raises(PermissionError):
        client.read(region, 0, 8)
    assert np.array_equal(memory, expected)
    assert engine.notifications() == []
    client.close()


def test_is_let_in_by_the_same_secret_alone(engine: linkspan.Engine, secret: bytes) -> None:
    with pytest.raises(PermissionError, match="secret"):
        wire_client.WireClient(address_of(engine), b"another secret of them")
    wire_client.WireClient(address_of(engine), secret).close()
