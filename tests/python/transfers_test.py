"""Shapes, options, prepared transfers, messages, explanations, errors."""

from __future__ import annotations

import copy
import pathlib
import pickle
import threading
import time

import numpy as np
import pytest
from conftest import Pair, pattern

import linkspan
from linkspan.compat import ipc

KIB = 1024


def test_options_of_transports_are_one_map() -> None:
    with linkspan.Engine("few", transport={"tcp.connections": "2"}):
        pass
    for transport, why in (
        ({"tcp.connections": "65"}, 'tcp.connections="65": set a whole number from 0 to 64'),
        ({"tcp.interface": "eth1"}, 'no "tcp.interface"; known are .*tcp.interfaces'),
    ):
        with pytest.raises(linkspan.InvalidArgumentError, match=why):
            linkspan.Engine("wrong", transport=transport)
    with pytest.raises(TypeError):
        linkspan.Engine("wrong", transport={"tcp.connections": 2})


def test_a_name_is_expected(pair: Pair) -> None:
    address = pair.there.address
    assert pair.here.connect(address, expect="there").name == "there"
    assert pair.here.connect(address, 5.0, "").state == "up"
    with pytest.raises(linkspan.PermissionDeniedError, match='"there", and not "another"'):
        pair.here.connect(address, expect="another")
    with pytest.raises(TypeError):
        pair.here.connect(address, expect=None)


@pytest.mark.parametrize("make", [list, np.array, lambda rows: np.array(rows, np.uint64)])
def test_blocks(pair: Pair, make) -> None:
    rows = [(0, 5, 3), (100, 50, 1), (7, 1000, 257)]
    source, target = pattern(2048), np.zeros(2048, np.uint8)
    expected = target.copy()
    for local, remote, size in rows:
        expected[remote : remote + size] = source[local : local + size]
    pair.peer.write(pair.here.register_memory(source), pair.remote(target), make(rows)).wait(10)
    assert (target == expected).all()


@pytest.mark.parametrize("dtype", [None, np.int32, np.uint32, np.int64, np.uint64])
def test_pages(pair: Pair, dtype) -> None:
    rng = np.random.default_rng(1)
    local, remote = rng.permutation(64)[:40], rng.permutation(64)[:40]
    source, target = pattern(64 * KIB + 8), np.zeros(64 * KIB + 16, np.uint8)
    expected = target.copy()
    for a, b in zip(local, remote):
        expected[16 + b * KIB : 16 + (b + 1) * KIB] = source[8 + a * KIB : 8 + (a + 1) * KIB]
    make = (lambda index: index.tolist()) if dtype is None else (lambda index: index.astype(dtype))
    pages = linkspan.Pages(KIB, make(local), make(remote), local_base=8, remote_base=16)
    assert len(pages) == 40 and "40 of 1024 bytes" in repr(pages)
    local[:] = 0  # it was copied
    pair.peer.write(pair.here.register_memory(source), pair.remote(target), pages).wait(10)
    assert (target == expected).all()


class Tensor:
    """What is asked of a torch tensor in host memory."""

    is_cpu = True

    def __init__(self, array: np.ndarray, has_numpy: bool) -> None:
        self.array, self.has_numpy, self.asked = array, has_numpy, list[str]()

    def numpy(self) -> np.ndarray:
        self.asked.append("numpy")
        if not self.has_numpy:
            raise RuntimeError("Numpy is not available")
        return self.array

    def __dlpack__(self, **options):
        self.asked.append("dlpack")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("has_numpy", [True, False])
def test_pages_of_a_tensor_are_read_without_dlpack_where_numpy_is_there(has_numpy: bool) -> None:
    index = Tensor(np.array([3, 1, 2], np.int64), has_numpy)
    assert len(linkspan.Pages(KIB, index, index)) == 3
    assert index.asked == (["numpy"] * 2 if has_numpy else ["numpy", "numpy", "dlpack", "dlpack"])
    with pytest.raises(ValueError, match="remote_index\\[1\\]"):
        linkspan.Pages(KIB, [1, 2], Tensor(np.array([1, -1]), has_numpy))


def test_pages_of_every_second_index(pair: Pair) -> None:
    index = np.arange(16, dtype=np.int64)
    source, target = pattern(16 * KIB), np.zeros(16 * KIB, np.uint8)
    shape = linkspan.Pages(KIB, index[::2], index[::-2])
    pair.peer.write(pair.here.register_memory(source), pair.remote(target), shape).wait(10)
    for a, b in zip(index[::2], index[::-2]):
        assert (target[b * KIB : (b + 1) * KIB] == source[a * KIB : (a + 1) * KIB]).all()


@pytest.mark.parametrize(
    "local, remote, said",
    [
        ([1, 2], [1], "2 pages and remote_index 1"),
        ([-1], [1], "local_index: -1"),
        ([1], np.array([1 << 32]), "remote_index\\[0\\]"),
        (np.array([3, -7]), [1, 2], "local_index\\[1\\]"),
        (np.array([3, 4, -7, -1], np.int32), [1] * 4, "local_index\\[2\\]"),
        (np.array([3, 0, -7, 0], np.int32)[::2], [1, 2], "local_index\\[1\\]"),
        ([1, 2], np.array([3, 1 << 63], np.uint64), "remote_index\\[1\\]"),
        (np.zeros((2, 2), np.int32), [1], "2 rows and remote_index 0"),
        (np.zeros((2, 2), np.int32), np.zeros((4, 1), np.int32), "2 rows and remote_index 4"),
        (np.zeros((2, 2, 1), np.int32), [1], "3 dimensions"),
        (np.zeros((2, 2), np.int32), np.array([[1, 2], [3, -4]]), "remote_index\\[1, 1\\]"),
        (np.zeros((0, 2), np.int32), np.zeros((1, 2), np.int32), "0 rows"),
        (np.zeros(2, np.float32), [1, 2], "int32, uint32"),
        ([1.5], [1], "1.5"),
    ],
)
def test_pages_refuse(local, remote, said) -> None:
    with pytest.raises(ValueError, match=said):
        linkspan.Pages(KIB, local, remote)


def test_wrong_shapes(pair: Pair) -> None:
    region, remote = pair.here.register_memory(bytearray(100)), pair.remote(bytearray(200))
    for shape, error, said in [
        (None, ValueError, "100 bytes and the remote one 200"),
        ([(0, 0)], TypeError, "rows of"),
        ([(0, 0, -1)], TypeError, "rows of"),
        (5, TypeError, "rows of"),
        (np.zeros((2, 2), np.int64), ValueError, "rows of"),
        (np.array([[0, 0, -1]]), ValueError, "block 0 has a negative"),
        ([(0, 150, 60)], linkspan.InvalidArgumentError, "remote_offset 150"),
        (linkspan.Pages(50, [0, 2], [0, 1]), linkspan.InvalidArgumentError, "page 1"),
        (linkspan.Strides(60, [(2, 60, 60)]), linkspan.InvalidArgumentError, "leave the local"),
    ]:
        with pytest.raises(error, match=said):
            pair.peer.write(region, remote, shape)
    with pytest.raises(ValueError, match="4 levels; at most 3"):
        linkspan.Strides(1, [(1, 1, 1)] * 4)


def test_options(pair: Pair) -> None:
    region, remote = pair.here.register_memory(bytearray(64)), pair.remote(bytearray(64))
    pair.peer.write(
        region, remote, deadline=5, notification=b"after it", after=None, release=None,
        require="same_process", low_latency=True, copy_ctas=4, checksum=False,
        failover=False,
    ).wait(10)
    assert pair.there.notifications(5) == [(pair.back.id, b"after it")]
    for options, error, said in [
        ({"depth": 1}, TypeError, "unknown option \"depth\""),
        ({"deadline": -1}, ValueError, "deadline=-1"),
        ({"deadline": "soon"}, TypeError, "deadline='soon'"),
        ({"copy_ctas": -1}, TypeError, "copy_ctas=-1"),
        ({"low_latency": "yes"}, TypeError, "True or False"),
        ({"require": 5}, TypeError, "beginning of a path"),
        ({"checksum": 1}, TypeError, "True or False"),
        ({"failover": None}, TypeError, "True or False"),
        ({"checksum": True}, linkspan.UnsupportedError, "makes no checksums"),
        ({"notification": "text"}, TypeError, "bytes"),
        ({"after": 0}, ValueError, "legacy"),
        ({"after": "mine"}, ValueError, "after=\"mine\""),
        ({"release": 1.5}, TypeError, "float"),
        ({"require": "tcp"}, linkspan.UnsupportedError, "\"tcp\" was required"),
    ]:
        with pytest.raises(error, match=said):
            pair.peer.write(region, remote, **options)


def test_prepared(pair: Pair) -> None:
    source, target = pattern(16 * KIB), np.zeros(16 * KIB, np.uint8)
    region, remote = pair.here.register_memory(source), pair.remote(target)
    index = np.arange(16, dtype=np.int32)
    prepared = pair.peer.prepare("write", region, remote, linkspan.Pages(KIB, index, index))
    assert prepared.bytes == 16 * KIB
    prepared.post(np.array([3, 5]), notification=b"some").wait(10)
    assert {i // KIB for i in np.flatnonzero(target)} == {3, 5}
    prepared.post().wait(10)
    assert (target == source).all()
    with pytest.raises(linkspan.InvalidArgumentError, match="16"):
        prepared.post([16])
    with pytest.raises(ValueError, match="op=\"push\""):
        pair.peer.prepare("push", region, remote)
    back = pair.peer.prepare("read", region, remote)
    target[:] = 9
    back.post().wait(10)
    assert (source == 9).all()


def test_send_and_receive(pair: Pair) -> None:
    received = bytearray(20)
    later = pair.back.recv(7, received)
    assert not later.done() and later.bytes == 0
    pair.peer.send(7, b"read-only is fine").wait(10)
    later.wait(10)
    assert later.bytes == 17 and received[:17] == b"read-only is fine"
    with pytest.raises(ValueError, match="read-only"):
        pair.back.recv(8, b"constant")
    short = bytearray(4)
    sent, got = pair.peer.send(9, b"too long"), pair.back.recv(9, short)
    for transfer in (sent, got):
        with pytest.raises(linkspan.TruncatedError) as caught:
            transfer.wait(10)
        assert caught.value.transfer is transfer
    assert short == bytes(4)


def test_send_ipc(pair: Pair) -> None:
    received = bytearray(8)
    transfer = ipc.recv_ipc_async(pair.there, pair.back.id, received)
    ipc.send_ipc(pair.here, pair.peer.id, b"12345")
    transfer.wait(10)
    assert received == b"12345\0\0\0"
    ipc.send_ipc_async(pair.here, pair.peer.id, np.arange(4, dtype=np.uint8))
    assert ipc.recv_ipc(pair.there, pair.back.id, received) == 4
    with pytest.raises(linkspan.NotFoundError, match="99"):
        ipc.send_ipc(pair.here, 99, b"nobody")
    with pytest.raises(linkspan.TimedOutError):
        ipc.send_ipc(pair.here, pair.peer.id, b"nobody", deadline=0.05)


def test_write_to_all_tells_each(pair: Pair) -> None:
    source = pattern(KIB)
    targets = [np.zeros(KIB, np.uint8) for _ in range(3)]
    remotes = [pair.remote(target, f"target {i}") for i, target in enumerate(targets)]
    closed = pair.there.register_memory(bytearray(KIB), peers_write=False)
    pair.there.publish("closed", closed)
    remotes.insert(1, pair.peer.lookup("closed"))
    outcomes = pair.here.write_to_all(pair.here.register_memory(source), remotes)
    assert isinstance(outcomes[1], linkspan.PermissionDeniedError)
    for outcome in outcomes[:1] + outcomes[2:]:
        outcome.wait(10)
    assert all((target == source).all() for target in targets)


def test_sets_have_versions(pair: Pair) -> None:
    regions = [pair.there.register_memory(bytearray([i] * 10)) for i in range(5)]
    with pytest.raises(linkspan.TimedOutError):
        pair.peer.await_version("weights", timeout=0.05)
    with pytest.raises(TypeError):
        pair.there.publish("weights", [regions[0], None])
    version = pair.there.publish("weights", regions)
    assert pair.peer.await_version("weights") == version
    found = pair.peer.lookup_set("weights")
    assert found.version == version and [each.bytes for each in found.regions] == [10] * 5
    late = threading.Timer(0.05, lambda: pair.there.publish("weights", regions[:2]))
    late.start()
    assert pair.peer.await_version("weights", above=version, timeout=10) > version
    late.join()


def test_explain_reads_well(pair: Pair) -> None:
    region, remote = pair.here.register_memory(bytearray(KIB)), pair.remote(bytearray(KIB))
    why = pair.peer.explain("write", region, remote, 4, KIB)
    assert why.path.startswith("same_process+") and why.executor == "here"
    lines = str(why).splitlines()
    assert lines[0].startswith(f"{why.path}, executed here, ") and lines[0].endswith("expected")
    assert lines[1] == f"  because {why.reason}"
    assert why.expected_gbps > 0
    assert str(why) == str(pair.peer.explain("write", region, remote, bytes=KIB, blocks=4))


def test_errors_pickle_and_tell_peer_and_transfer(pair: Pair) -> None:
    with pytest.raises(linkspan.NotFoundError) as caught:
        pair.peer.lookup("nobody's")
    error = pickle.loads(pickle.dumps(caught.value))
    assert (type(error), str(error), error.peer) == (
        linkspan.NotFoundError, str(caught.value), pair.peer.id,
    )
    assert error.code == "not_found" and error.scope == "request" and isinstance(error, LookupError)
    transfer = pair.back.recv(1, bytearray(1), deadline=0.02)
    with pytest.raises(TimeoutError) as caught:
        transfer.wait(10)
    assert caught.value.transfer is transfer and f"transfer {transfer.id}" in str(caught.value)
    assert transfer.done() and transfer.status == "timed_out"


def test_each_code_has_its_class() -> None:
    from linkspan import _errors

    codes = {each.code for each in linkspan.Error.__subclasses__()}
    header = (linkspan.include_dir() + "/linkspan/linkspan.h")
    with open(header, encoding="utf-8") as file:
        text = file.read()
    listed = text[text.index("LINKSPAN_OK = 0") : text.index("LINKSPAN_INTERNAL")] + "LINKSPAN_INTERNAL"
    named = {word.strip().removeprefix("LINKSPAN_").lower()
             for word in listed.replace("=", ",").split(",") if "LINKSPAN_" in word}
    named = {word.split("linkspan_")[-1] for word in named} - {"ok"}
    assert codes == named
    for code in codes:
        assert _errors.of(code, "request", "text", None, None).code == code


def test_wait_gives_up_and_the_transfer_goes_on(pair: Pair) -> None:
    transfer = pair.back.recv(5, bytearray(3))
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match=rf"transfer {transfer.id}\b") as caught:
        transfer.wait(0.1)
    assert type(caught.value) is TimeoutError and transfer.status == "pending"
    assert 0.09 < time.monotonic() - begin < 5 and not transfer.done()
    pair.peer.send(5, b"now").wait(10)
    transfer.wait()
    assert repr(transfer).endswith(": ok>")


def test_wait_tells_a_deadline_from_its_time_out(pair: Pair) -> None:
    transfer = pair.back.recv(5, bytearray(3), deadline=0.5)
    with pytest.raises(TimeoutError) as caught:
        transfer.wait(0)
    assert type(caught.value) is TimeoutError
    with pytest.raises(linkspan.TimedOutError) as caught:
        transfer.wait(10)
    assert isinstance(caught.value, TimeoutError) and transfer.done()


def test_cancel(pair: Pair) -> None:
    transfer = pair.back.recv(5, bytearray(3))
    if not transfer.cancel():
        with pytest.raises(linkspan.CanceledError):
            transfer.wait(10)
    assert transfer.status == "canceled"
    with pytest.raises(linkspan.CanceledError):
        transfer.wait(0)


def test_descriptors_lead_to_a_region(pair: Pair) -> None:
    data = pattern(100)
    region = pair.there.register_memory(data)
    with pytest.raises(linkspan.NotFoundError, match='"memory"'):
        pair.there.describe("memory")
    pair.there.publish("memory", region)
    found = pair.there.describe("memory")
    for again in (pickle.loads(pickle.dumps(found)), copy.copy(found),
                  linkspan.Descriptor.from_bytes(found.to_bytes())):  # fmt: skip
        assert again == found and hash(again) == hash(found)
        assert again.to_bytes() == found.to_bytes()
    assert (found.address, found.engine, found.name) == (pair.there.addresses, "there", "memory")
    assert (found.bytes, found.kind, found.version) == (100, "host", 0)
    assert found.regions == ((100, "host"),)
    assert repr(found) == '<Descriptor "memory" of Engine "there": 100 bytes, host memory>'
    assert found != "memory" and len({found, pair.there.describe("memory")}) == 1
    with pytest.raises(AttributeError):
        found.name = "another"
    target = bytearray(100)
    with linkspan.Engine("third") as third:
        peer, remote = third.lookup(found)
        assert third.lookup(found)[0].id == peer.id
        peer.read(third.register_memory(target), remote).wait(10)
    assert target == data.tobytes()
    pair.here.publish("memory", pair.here.register_memory(data))
    with pytest.raises(linkspan.InvalidArgumentError, match="listen"):
        pair.here.describe("memory")


def test_descriptors_lead_to_a_set(pair: Pair) -> None:
    regions = [pair.there.allocate_shared(4096 * (i + 1)) for i in range(2)]
    version = pair.there.publish("set", regions)
    found = pair.there.describe("set")
    assert (found.version, found.bytes, len(found.regions)) == (version, 12288, 2)
    assert f"12288 bytes, version {version}, regions: 2>" in repr(found)
    _, remotes = pair.here.lookup(found)
    assert remotes.version == version and [each.bytes for each in remotes.regions] == [4096, 8192]


def test_descriptors_of_other_bytes_are_refused() -> None:
    with pytest.raises(linkspan.CorruptError, match='does not begin with "LSDESC"'):
        linkspan.Descriptor.from_bytes(pickle.dumps("text"))
    with pytest.raises(TypeError):
        linkspan.Descriptor.from_bytes("text")


def test_streams_of_others(pair: Pair, gpu) -> None:
    from cuda_memory import HeldStream

    data = pattern(4096)
    region = pair.here.register_memory(gpu(data))
    remote = pair.remote(target := gpu(np.zeros_like(data)))
    held = HeldStream(gpu.driver, 0)
    try:
        ordered = [pair.peer.write(region, remote, after=held, deadline=30)]  # as torch's
        ordered += [pair.peer.write(region, remote, after=held.cuda_stream)]
        for transfer in ordered:
            with pytest.raises(TimeoutError, match=rf"transfer {transfer.id}\b"):
                transfer.wait(0.05)
        held.release()
        for transfer in ordered:
            transfer.wait(10)
    finally:
        held.close()
    assert target.read() == data.tobytes()


def test_peers_over_tcp() -> None:
    with linkspan.Engine("here") as here, linkspan.Engine("there", security="loopback_only") as there:
        with pytest.raises(linkspan.PermissionDeniedError, match="LINKSPAN_SECURITY=insecure"):
            there.listen("tcp:0.0.0.0:0")
        peer = here.connect(there.listen("tcp:127.0.0.1:0"))
        back = there.accept()
        peer.notify(b"by TCP")
        assert there.notifications(5) == [(back.id, b"by TCP")]
        there.publish("memory", there.register_memory(pattern(100)))
        target = bytearray(100)
        region, remote = here.register_memory(target), peer.lookup("memory")
        assert peer.explain("read", region, remote).path == "tcp"
        peer.read(region, remote, require="tcp").wait(10)
        assert target == pattern(100).tobytes()
    with linkspan.Engine("open", security="insecure") as engine:
        assert engine.listen("tcp:0.0.0.0:0").startswith("tcp:0.0.0.0:")


def test_a_secret_is_of_one_connection() -> None:
    known, other = b"a secret of the tests", b"another secret of tests"
    with linkspan.Engine("here", secret=other) as here, linkspan.Engine("there", secret=known) as there:
        address = there.listen("tcp:127.0.0.1:0")
        with pytest.raises(linkspan.PermissionDeniedError, match="connected with the Engine's secret"):
            here.connect(address)
        with pytest.raises(linkspan.PermissionDeniedError, match="connected with ConnectOptions::secret"):
            here.connect(address, secret=other)
        with pytest.raises(linkspan.InvalidArgumentError, match="ConnectOptions::secret has 15 bytes"):
            here.connect(address, secret=known[:15])
        with pytest.raises(linkspan.InvalidArgumentError, match="has more than 4096 bytes"):
            here.connect(address, secret=known * 200)
        with pytest.raises(TypeError, match="secret: give bytes"):
            here.connect(address, secret="a secret of the tests")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="secret: give 16 to 4096 bytes, or None"):
            here.connect(address, secret=b"")
        there.publish("memory", there.register_memory(pattern(100)))
        for _ in range(2):  # the second is a reconnection
            peer = here.connect(address, 10, secret=known)
            target = bytearray(100)
            region, remote = here.register_memory(target), peer.lookup("memory")
            peer.read(region, remote, require="tcp").wait(10)
            assert target == pattern(100).tobytes()
            peer.close()


def test_peers_over_tls(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="LINKSPAN_SECRET_FILE"):
        linkspan.Engine("bare", security="encrypted")
    with pytest.raises(ValueError, match='security="tls": give loopback_only, insecure, auth'):
        linkspan.Engine("bare", security="tls")
    with pytest.raises(TypeError, match="secret: give bytes"):
        linkspan.Engine("bare", secret="a secret of the tests")
    secret = tmp_path / "secret"
    secret.write_text("a secret of the tests")
    secret.chmod(0o600)
    options = {"secret_file": str(secret), "security": "encrypted"}
    known = {"secret": b"a secret of the tests", "security": "encrypted"}
    with linkspan.Engine("here", **options) as here, linkspan.Engine("there", **known) as there:
        peer = here.connect(there.listen("tcp:127.0.0.1:0"))
        there.publish("memory", there.register_memory(pattern(100)))
        target = bytearray(100)
        region, remote = here.register_memory(target), peer.lookup("memory")
        assert "TLS" in peer.explain("read", region, remote).reason
        peer.read(region, remote, require="tcp").wait(10)
        assert target == pattern(100).tobytes()
    with linkspan.Engine("plain", secret_file=str(secret)) as plain:
        with linkspan.Engine("tls", **options) as tls:
            with pytest.raises(linkspan.PermissionDeniedError, match="LINKSPAN_SECURITY=encrypted"):
                tls.connect(plain.listen("tcp:127.0.0.1:0"))
