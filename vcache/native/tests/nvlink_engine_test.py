#!/usr/bin/env python3
"""nvlink_transfer_engine over a driver: bytes, handles of other processes, real tensors.

nvlink_engine_test.py LIBRARY MODE    LIBRARY: libnvlink_transfer.so; MODE: cpu (no driver),
simulated, or gpu; LINKSPAN_CUDA_LIBRARY says the same. What needs no driver is in
nvlink_engine_search_test.py and nvlink_engine_memory_test.py.
"""

import faulthandler
import pathlib
import sys
import threading
import types
import unittest

from nvlink_fixture import (
    DRIVER,
    LIBRARY,
    MODE,
    WAIT_S,
    Array,
    OverADriver,
    cuda_memory,
    main,
    nte,
)


class Transfers(OverADriver):
    def test_addresses(self):
        content = cuda_memory.pattern(1 << 20, 1)
        source = self.memory(0, content)
        for gpu in {0, self.last}:
            for offset, size in ((0, 1 << 20), (1, 4097), ((1 << 20) - 1, 1), (5, 0)):
                target = self.guarded(gpu, size)
                result = self.engine.transfer(
                    source.address,
                    target.address,
                    size,
                    source_gpu=0,
                    target_gpu=gpu,
                    source_offset=offset,
                    target_offset=256,
                )
                self.assertEqual((result.bytes, result.backend), (size, "native"))
                self.assertGreater(result.seconds, 0)
                self.assert_arrived(target, content[offset : offset + size])

    def test_a_byte_too_many(self):
        source, target = self.memory(0, bytes(4 << 20)), self.memory(0, bytes(4 << 20))
        gpus = {"source_gpu": 0, "target_gpu": 0}
        for offset in ("source_offset", "target_offset"):
            for transfer in (self.engine.transfer, self.engine.transfer_async):
                with self.assertRaises(nte.NvlinkTransferError) as raised:
                    transfer(source.address, target.address, 4 << 20, **gpus, **{offset: 1})
                self.assertEqual(raised.exception.code, 1)
                self.assertIn(offset.split("_")[0], raised.exception.text)
        self.assertEqual(self.engine.statistics().failures, 4)

    def test_no_such_gpu(self):
        with self.assertRaises(nte.NvlinkTransferError) as raised:
            self.engine.transfer(1, 1, 1, source_gpu=0, target_gpu=DRIVER.gpus)
        error = raised.exception
        self.assertEqual((error.code, error.name), (101, "NVLINK_TRANSFER_INVALID_DEVICE"))
        self.assertIn(f"GPU {DRIVER.gpus}", str(error))

    def test_objects_say_where_how_long_and_on_which_gpu(self):
        content = cuda_memory.pattern(70001, 2)
        source, target = self.memory(0, content), self.guarded(self.last, 70001)
        result = self.engine.transfer(Array(source, 0, 70001), Array(target, 256, 70001))
        self.assertEqual(result.bytes, 70001)
        self.assert_arrived(target, content)

    def test_handles_of_other_processes(self):
        here = cuda_memory.pattern(300000, 3)
        one, two = self.exporter(0, 300000, 4), self.exporter(self.last, 300000, 5)
        target = self.guarded(self.last, 200000)
        self.engine.transfer(  # remote -> local; the object form of a handle
            None,
            target.address,
            200000,
            source_gpu=0,
            target_gpu=self.last,
            source_handle=types.SimpleNamespace(reserved=list(one.handle)),
            source_offset=65537,
            target_offset=256,
        )
        self.assert_arrived(target, one.content[65537:265537])
        self.engine.transfer(  # local -> remote; the size is the object's
            Array(self.memory(0, here), 7, 1000),
            0,
            target_gpu=0,
            target_handle=one.handle,
            target_offset=11,
        )
        expected = one.content[:11] + here[7:1007] + one.content[1011:]
        self.assertEqual(one.read(), expected)
        self.engine.transfer(  # remote -> remote
            None,
            None,
            299999,
            source_gpu=0,
            target_gpu=self.last,
            source_handle=one.handle,
            target_handle=two.handle,
            target_offset=1,
        )
        self.assertEqual(two.read(), two.content[:1] + expected[:-1])

    def test_a_handle_of_this_process(self):
        source = self.memory(0, cuda_memory.pattern(5000, 6))
        target = self.guarded(0, 4000)
        self.engine.transfer(
            source.address,
            target.address,
            4000,
            source_gpu=0,
            target_gpu=0,
            source_handle=source.handle(),
            source_offset=1000,
            target_offset=256,
        )
        self.assert_arrived(target, source.read()[1000:])

    def test_kept_handles(self):
        exporter = self.exporter(0, 4096, 7)
        target = self.guarded(0, 4096)
        before = self.engine.statistics().library
        self.engine.set_handle_cache(4)
        self.addCleanup(self.engine.set_handle_cache, 0)
        for _ in range(3):
            self.engine.transfer(
                None, Array(target, 256, 4096), source_gpu=0, source_handle=exporter.handle
            )
        after = self.engine.statistics().library
        self.assertEqual(after.opens - before.opens, 1)
        self.assertEqual(after.cache_hits - before.cache_hits, 2)
        self.assertEqual(after.cached_handles, 1)
        self.engine.set_handle_cache(0)
        self.assertEqual(self.engine.statistics().library.cached_handles, 0)

    def test_statistics(self):
        source, target = self.memory(0, bytes(1 << 16)), self.guarded(0, 1 << 16)
        before = self.engine.statistics().library
        for _ in range(10):
            self.engine.transfer(Array(source, 0, 1 << 16), Array(target, 0, 1 << 16))
        self.engine.transfer_async(Array(source, 0, 4), Array(target, 0, 4)).result(WAIT_S)
        now = self.engine.statistics()
        self.assertEqual((now.count, now.failures, now.bytes), (11, 0, 10 * (1 << 16) + 4))
        self.assertTrue(0 < now.p50_s <= now.p99_s <= now.seconds)
        self.assertAlmostEqual(now.gb_per_s, now.bytes / now.seconds / 1e9)
        self.assertEqual(now.library.bytes - before.bytes, now.bytes)

    def test_many_threads(self):
        contents = [cuda_memory.pattern(8192, seed) for seed in range(16)]
        wrong = []

        def work(seed: int) -> None:
            source, target = self.memory(0, contents[seed]), self.guarded(self.last, 8192)
            for turn in range(20):
                how = Array(source, turn, 8192 - turn), Array(target, 256, 8192 - turn)
                if turn % 2:
                    self.engine.transfer(*how)
                else:
                    self.engine.transfer_async(*how).result(WAIT_S)
                if target.read()[256:-256][: 8192 - turn] != contents[seed][turn:]:
                    wrong.append((seed, turn))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        self.assertEqual(wrong, [])
        self.assertEqual(self.engine.statistics().count, 320)

    def test_other_threads_go_on_meanwhile(self):
        faulthandler.dump_traceback_later(WAIT_S, exit=True)  # if they do not, nothing else runs
        self.addCleanup(faulthandler.cancel_dump_traceback_later)
        stream = self.held()
        source, target = self.memory(0, b"abcd"), self.guarded(0, 4)
        how = Array(source, 0, 4), Array(target, 256, 4)
        thread = threading.Thread(target=lambda: self.engine.transfer(*how, stream=stream))
        thread.start()
        thread.join(0.05)
        self.assertTrue(thread.is_alive(), "it follows the held stream")
        stream.release()
        thread.join(WAIT_S)
        self.assert_arrived(target, b"abcd")


class WithoutADriver(unittest.TestCase):
    @unittest.skipUnless(MODE == "cpu", "a driver is here")
    def test_every_call_says_so(self):
        with nte.NvlinkTransferEngine(LIBRARY) as engine:
            self.assertEqual((engine.backend, engine.library_path), ("native", LIBRARY))
            for transfer in (engine.transfer, engine.transfer_async):
                with self.assertRaises(nte.NvlinkTransferError) as raised:
                    transfer(4096, 8192, 1, source_gpu=0, target_gpu=0)
                error = raised.exception
                self.assertEqual((error.code, error.name), (35, "NVLINK_TRANSFER_NO_DRIVER"))
                self.assertIn("/nonexistent/libcuda.so.1", error.text)
            self.assertEqual(engine.transfer(1, 1, 0, source_gpu=0, target_gpu=0).bytes, 0)
            statistics = engine.statistics()
            self.assertEqual((statistics.count, statistics.failures), (1, 2))
            self.assertEqual(engine.library_version, "0.1.0")


class RealTensors(OverADriver):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if MODE != "gpu":
            raise unittest.SkipTest("needs a real GPU")
        try:
            import torch
        except ImportError:
            raise unittest.SkipTest("needs torch") from None
        cls.torch = torch

    def tensors(self):
        random = self.torch.randn(1000, 1000, device="cuda:0")
        return random, self.torch.zeros_like(random, device=f"cuda:{self.last}")

    def test_tensors(self):
        for turn in range(20):
            source, target = self.tensors()  # the target's zeros come before the copy
            if turn % 2:
                self.engine.transfer(source, target)
            else:
                self.engine.transfer_async(source, target).result(WAIT_S)
            self.assertTrue(self.torch.equal(source.cpu(), target.cpu()))

    def test_of_a_side_stream(self):
        with self.torch.cuda.stream(self.torch.cuda.Stream(0)):
            for _ in range(20):
                source, target = self.tensors()
                self.engine.transfer(source, target)
                self.assertTrue(self.torch.equal(source.cpu(), target.cpu()))

    def test_capsules_and_views(self):
        source, target = self.tensors()
        capsule = self.torch.utils.dlpack.to_dlpack(source[10:20])
        self.engine.transfer(capsule, target[20:30])
        self.assertTrue(self.torch.equal(source[10:20].cpu(), target[20:30].cpu()))
        with self.assertRaisesRegex(ValueError, "contiguous"):
            self.engine.transfer(source.T, target)

    def test_the_handle_that_torch_exports(self):
        source, target = self.tensors()
        part = source[100:]
        shared = part.untyped_storage()._share_cuda_()
        self.engine.transfer(
            part,
            target,
            source_handle=shared[1][-64:],
            source_offset=shared[3] + part.storage_offset() * part.element_size(),
        )
        self.assertTrue(self.torch.equal(part.cpu(), target[:900].cpu()))


if __name__ == "__main__":
    main()
