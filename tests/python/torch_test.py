"""Beside PyTorch with CUDA: tensors in, in the order of its streams."""

from __future__ import annotations

import asyncio

import pytest
from conftest import Pair

import linkspan
from linkspan import util

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

MIB = 1 << 20
OTHER = torch.cuda.device_count() - 1  # another GPU, or the only one


def pattern(size: int, gpu: int = 0) -> "torch.Tensor":
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device=f"cuda:{gpu}")


def zeros(size: int, gpu: int = OTHER) -> "torch.Tensor":
    return torch.zeros(size, dtype=torch.uint8, device=f"cuda:{gpu}")


def same(a: "torch.Tensor", b: "torch.Tensor") -> bool:
    return torch.equal(a.cpu(), b.cpu())


def test_tensors_of_all_kinds(pair: Pair) -> None:
    for number, tensor in enumerate([
        torch.randn(1000, 3, device="cuda", dtype=torch.bfloat16),
        torch.nn.Parameter(torch.randn(77, device="cuda")),
        torch.randn(64, 32, device="cuda").T,
        torch.randn(100),
        torch.randn(100).pin_memory(),
        pattern(4 * MIB)[5:-7],
    ]):
        target = torch.zeros_like(tensor, device=f"cuda:{OTHER}")
        region = pair.here.register_memory(tensor)
        assert region.bytes == tensor.numel() * tensor.element_size()
        pair.peer.write(region, pair.remote(target, f"{number}")).wait(10)
        assert torch.equal(tensor.detach().cpu(), target.detach().cpu()), number


def test_registered_memory_outlives_other_data_of_its_tensor(pair: Pair) -> None:
    tensor, target = pattern(MIB, 0), zeros(MIB)
    expected = tensor.clone()
    region = pair.here.register_memory(tensor)
    tensor.data = tensor.cpu()
    others = [torch.zeros(MIB, dtype=torch.uint8, device="cuda:0") for _ in range(8)]
    pair.peer.write(region, pair.remote(target)).wait(10)
    assert same(expected, target) and not any(other.any() for other in others)


def test_what_has_gaps_is_refused_or_packed(pair: Pair) -> None:
    cache = torch.randn(2, 64, 16, 8, 64, device="cuda", dtype=torch.float16)
    region = pair.here.register_memory(cache)
    heads = cache[:, 3:9, :, 2:4]
    with pytest.raises(ValueError, match="contiguous"):
        pair.here.register_memory(heads)
    with pytest.raises(ValueError, match="layout"):
        pair.here.register_memory(torch.eye(4, device="cuda").to_sparse())
    target = torch.zeros(heads.shape, device=f"cuda:{OTHER}", dtype=torch.float16)
    pair.peer.write(region, pair.remote(target), util.packed(region, heads)).wait(10)
    assert same(heads, target)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_page_tables_are_tensors(pair: Pair, dtype: str, where: str) -> None:
    source, target = pattern(8 * MIB), zeros(8 * MIB)
    torch.cuda.synchronize()
    mine = torch.randperm(2048)[:1500].to(getattr(torch, dtype))
    theirs = torch.randperm(2048)[:1500].to(getattr(torch, dtype))
    region, remote = pair.here.register_memory(source), pair.remote(target)
    if (where, dtype) == ("cuda", "int64"):
        with pytest.raises(ValueError, match="int32"):
            linkspan.Pages(4096, mine.cuda(), theirs.cuda())
        return
    pages = linkspan.Pages(4096, mine.to(where), theirs.to(where))
    pair.peer.write(region, remote, pages, notification=b"pages").wait(10)
    assert pair.there.notifications(5) == [(pair.back.id, b"pages")]
    expected = torch.zeros(2048, 4096, dtype=torch.uint8)
    expected[theirs.long()] = source.cpu().view(2048, 4096)[mine.long()]
    assert same(expected, target.view(2048, 4096))


def test_it_runs_after_the_current_stream(pair: Pair) -> None:
    source, target = zeros(64 * MIB, 0), zeros(64 * MIB)
    region, remote = pair.here.register_memory(source), pair.remote(target)
    torch.cuda.synchronize()
    for turn in range(1, 20):
        stream = torch.cuda.Stream() if turn % 2 else torch.cuda.current_stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            source.fill_(turn)
            transfer = pair.peer.write(region, remote, release="current")
            source.fill_(200)  # not before it was read
        transfer.wait(10)
        assert int(target.min()) == int(target.max()) == turn
        torch.cuda.synchronize()


def test_streams_by_name(pair: Pair) -> None:
    source, target = pattern(MIB), zeros(MIB)
    region, remote = pair.here.register_memory(source), pair.remote(target)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    for stream in (side, side.cuda_stream, torch.cuda.default_stream(), 1, 2, None):
        target.zero_()
        torch.cuda.synchronize()
        pair.peer.write(region, remote, after=stream).wait(10)
        assert same(source, target)
    host = torch.arange(MIB, dtype=torch.int32).view(torch.uint8)[:MIB].clone().pin_memory()
    pair.peer.write(pair.here.register_memory(host), remote, after=side).wait(10)
    assert same(host, target)


def test_send_and_receive(pair: Pair) -> None:
    source, target = pattern(3 * MIB + 1), zeros(3 * MIB + 1)
    received = pair.back.recv(1, target, after=None)
    pair.peer.send(1, source)
    received.wait(10)
    assert same(source, target)

    async def both() -> None:
        host = torch.zeros(3 * MIB + 1, dtype=torch.uint8)
        received = pair.back.recv(2, host)

        async def send() -> None:
            await pair.peer.send(2, source)

        await asyncio.gather(send(), awaited(received))
        assert same(source, host)

    asyncio.run(both())


async def awaited(transfer: linkspan.Transfer) -> None:
    await transfer


def test_prepared_in_the_order_of_streams(pair: Pair) -> None:
    source, target = pattern(8 * MIB), zeros(8 * MIB)
    index = torch.randperm(2048, dtype=torch.int32)
    region, remote = pair.here.register_memory(source), pair.remote(target)
    prepared = pair.peer.prepare("write", region, remote, linkspan.Pages(4096, index, index))
    for turn in range(5):
        source.copy_(pattern(8 * MIB))
        prepared.post().wait(10)
        assert same(source, target)


def test_tensors_dropped_in_flight(pair: Pair) -> None:
    target = zeros(64 * MIB)
    remote = pair.remote(target)
    for turn in range(1, 10):
        source = zeros(64 * MIB, 0)
        source.fill_(turn)
        transfer = pair.peer.write(pair.here.register_memory(source), remote)
        del source
        torch.cuda.empty_cache()
        zeros(64 * MIB, 0).fill_(255)
        transfer.wait(10)
        assert int(target.min()) == int(target.max()) == turn


def test_explain_names_the_way(pair: Pair) -> None:
    region, remote = pair.here.register_memory(zeros(MIB, 0)), pair.remote(zeros(MIB))
    assert "engine" in str(pair.peer.explain("write", region, remote))
