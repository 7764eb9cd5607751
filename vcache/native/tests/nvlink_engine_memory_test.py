#!/usr/bin/env python3
"""nvlink_transfer_engine: what is taken for memory, arguments that make no sense, and
futures of a library that does what a test says. No library and no driver."""

import ctypes
import gc
import pathlib
import pickle
import sys
import time
import types
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import nvlink_transfer_engine as nte  # noqa: E402
from nvlink_transfer_engine import (  # noqa: E402
    _dlpack,
    _errors,
    _future,
    _memory,
    _request,
    _statistics,  # noqa: E402
)

CUDA, CUDA_HOST, CPU = 2, 3, 1
PLACES = ("source_gpu", "target_gpu", "source_handle", "target_handle", "stream")


def resolve(source, target, size=None, source_offset=0, target_offset=0, **places):
    places = {**dict.fromkeys(PLACES), **places}
    return _request.resolve(
        source, target, size, source_offset=source_offset, target_offset=target_offset, **places
    )


# ---- DLPack made by hand ---------------------------------------------------------------------
_new = ctypes.pythonapi.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.py_object]


class Producer:
    """An object with DLPack's two functions; `options` change the tensor."""

    def __init__(self, *, versioned=True, device=CUDA, shape=(3, 5), strides=None, **options):
        self.deleted = 0
        self.asked: list = []
        self._versioned, self._device = versioned, device
        kind = _dlpack._ManagedVersioned if versioned else _dlpack._Managed
        self._managed = kind()
        if versioned:
            self._managed.major = options.get("major", 1)
            self._managed.flags = options.get("flags", 0)
        self._deleter = _dlpack._DELETER(self._delete)
        self._managed.deleter = ctypes.cast(self._deleter, ctypes.c_void_p)
        tensor = self._managed.tensor
        tensor.data, tensor.byte_offset = 0x10000, options.get("byte_offset", 0)
        tensor.device.type, tensor.device.id = device, 1
        tensor.bits, tensor.lanes = options.get("bits", 32), options.get("lanes", 1)
        tensor.ndim = len(shape)
        self._arrays = [(ctypes.c_int64 * max(1, len(a)))(*a) for a in (shape, strides or ())]
        pointers = [ctypes.cast(a, ctypes.POINTER(ctypes.c_int64)) for a in self._arrays]
        tensor.shape = pointers[0]
        if strides:
            tensor.strides = pointers[1]

    def _delete(self, address: int) -> None:
        assert address == ctypes.addressof(self._managed)
        self.deleted += 1

    def capsule(self):
        self.name = b"dltensor_versioned" if self._versioned else b"dltensor"
        return _new(ctypes.addressof(self._managed), self.name, None)

    def __dlpack_device__(self):
        return self._device, 1

    def __dlpack__(self, **options):
        if not self._versioned and "max_version" in options:
            raise TypeError("unexpected max_version")
        self.asked.append(options)
        return self.capsule()


class Dlpack(unittest.TestCase):
    def test_both_kinds(self):
        for versioned in (False, True):
            producer = Producer(versioned=versioned, byte_offset=7)
            memory = _memory.describe(producer, "source")
            self.assertEqual((memory.pointer, memory.bytes, memory.gpu), (0x10007, 60, 1))
            asked = {"stream": 1, **({"max_version": (1, 0)} if versioned else {})}
            self.assertEqual(producer.asked, [asked])
            self.assertEqual(producer.deleted, 0)
            del memory
            self.assertEqual(producer.deleted, 1)

    def test_a_capsule_is_consumed(self):
        for versioned in (False, True):
            producer = Producer(versioned=versioned)
            capsule = producer.capsule()
            memory = _memory.describe(capsule, "source")
            self.assertEqual(_name(capsule), b"used_" + producer.name)
            with self.assertRaisesRegex(ValueError, "consumed"):
                _memory.describe(capsule, "source")
            del capsule
            gc.collect()
            self.assertEqual(producer.deleted, 0)
            del memory
            self.assertEqual(producer.deleted, 1)

    def test_sizes(self):
        for options, size in (
            ({"shape": ()}, 4),
            ({"shape": (0, 5)}, 0),
            ({"shape": (3,), "bits": 4}, 2),
            ({"shape": (3,), "bits": 16, "lanes": 2}, 12),
            ({"strides": (5, 1)}, 60),
            ({"shape": (1, 5), "strides": (99, 1)}, 20),
        ):
            self.assertEqual(_memory.describe(Producer(**options), "source").bytes, size)

    def test_the_callers_stream(self):
        producer = Producer()
        request = resolve(producer, Producer(), stream=types.SimpleNamespace(cuda_stream=77))
        self.assertEqual((producer.asked[0]["stream"], request.stream), (77, 77))

    def test_what_is_refused(self):
        for options, told in (
            ({"strides": (1, 3)}, "not contiguous"),
            ({"major": 2}, "version 2.0"),
            ({"flags": 1}, "read-only"),
        ):
            producer = Producer(**options)
            with self.assertRaisesRegex(ValueError, told):
                _memory.describe(producer, "target")
            gc.collect()
            self.assertEqual(producer.deleted, 1, "its memory is given back")
        for device in (CPU, CUDA_HOST):
            producer = Producer(device=device)
            with self.assertRaisesRegex(ValueError, f"type {device}"):
                _memory.describe(producer, "source")
            self.assertEqual(producer.asked, [])
            with self.assertRaisesRegex(ValueError, f"type {device}"):
                _memory.describe(producer.capsule(), "source")
        self.assertEqual(_memory.describe(Producer(flags=1), "source").bytes, 60)


class ArrayInterface(unittest.TestCase):
    def array(self, **changes):
        interface = {"shape": (3, 5), "typestr": "<f4", "data": (4096, False), "version": 3}
        return types.SimpleNamespace(
            __cuda_array_interface__={**interface, **changes}, device=types.SimpleNamespace(id=1)
        )

    def test_memory(self):
        memory = _memory.describe(self.array(), "target")
        self.assertEqual((memory.pointer, memory.bytes, memory.gpu), (4096, 60, 1))
        strided = _memory.describe(self.array(strides=(20, 4)), "source")
        self.assertEqual(strided.bytes, 60)
        self.assertEqual(_memory.describe(self.array(shape=(0, 5)), "source").bytes, 0)

    def test_its_stream(self):
        for told, stream in ((None, 0), (1, 0), (2, 2), (77, 77)):
            request = resolve(self.array(stream=told), self.array())
            self.assertEqual(request.stream, stream)
        self.assertEqual(resolve(self.array(stream=77), self.array(), stream=78).stream, 78)

    def test_its_gpu(self):
        array = self.array()
        for device, gpu in ((3, 3), (types.SimpleNamespace(index=2), 2), (None, None)):
            array.device = device
            self.assertEqual(_memory.describe(array, "source").gpu, gpu)

    def test_what_is_refused(self):
        for changes, told in (
            ({"strides": (4, 12)}, "not contiguous"),
            ({"strides": (40, 8)}, "not contiguous"),
            ({"data": (4096, True)}, "read-only"),
            ({"mask": self.array()}, "mask"),
        ):
            with self.assertRaisesRegex(ValueError, told):
                _memory.describe(self.array(**changes), "target")


class Arguments(unittest.TestCase):
    def refused(self, error, told, *arguments, **places):
        with self.assertRaisesRegex(error, told):
            resolve(*arguments, **places)

    def test_they_are_named_with_the_remedy(self):
        gpus = {"source_gpu": 0, "target_gpu": 0}
        self.refused(ValueError, "source is None.*source_handle=", None, 2, 1, **gpus)
        self.refused(ValueError, "target.*address 0.*target_handle=", 1, 0, 1, **gpus)
        self.refused(TypeError, "source is str; pass an int, a torch tensor", "x", 2, 1, **gpus)
        self.refused(TypeError, "target is float", 1, 2.0, 1, **gpus)
        self.refused(TypeError, "source is bool", True, 2, 1, **gpus)
        self.refused(ValueError, "source=-0x1", -1, 2, 1, **gpus)
        self.refused(ValueError, "target=0x10000000000000000", 1, 1 << 64, 1, **gpus)
        self.refused(ValueError, "pass size=", 1, 2, **gpus)
        self.refused(TypeError, "size is float", 1, 2, 1.5, **gpus)
        self.refused(ValueError, "size=-1", 1, 2, -1, **gpus)
        self.refused(ValueError, "source_offset=-3", 1, 2, 1, source_offset=-3, **gpus)
        self.refused(ValueError, "pass source_gpu=", 1, 2, 1, target_gpu=0)
        self.refused(ValueError, "pass target_gpu=", 1, 2, 1, source_gpu=0)
        self.refused(TypeError, "source_gpu is str", 1, 2, 1, source_gpu="0", target_gpu=0)
        self.refused(ValueError, "target_gpu=2147483648", 1, 2, 1, source_gpu=0, target_gpu=1 << 31)
        self.refused(ValueError, r"66 bytes.*\[-64:\]", 1, 2, 1, source_handle=bytes(66), **gpus)
        self.refused(ValueError, "target_handle has 0 bytes", 1, 2, 1, target_handle=b"", **gpus)
        self.refused(TypeError, "source_handle is int", 1, 2, 1, source_handle=64, **gpus)
        self.refused(TypeError, "stream is str", 1, 2, 1, stream="0", **gpus)

    def test_the_objects_bounds(self):
        producer = Producer  # 60 bytes
        self.refused(ValueError, "source, which has 60 bytes", producer(), producer(), 61)
        self.refused(ValueError, "target_offset=1 and size=60", producer(), producer(), 60, 0, 1)
        self.refused(ValueError, "source_offset=61 is beyond", producer(), producer(), None, 61)
        self.assertEqual(resolve(producer(), producer(), source_offset=50).size, 10)
        self.assertEqual(resolve(4096, producer(), target_offset=7, source_gpu=0).size, 53)
        behind = resolve(producer(), producer(), 4, 1 << 40, source_handle=bytes(64))
        self.assertEqual(behind.source_offset, 1 << 40, "from the allocation, not the object")

    def test_timeouts(self):
        self.assertEqual(_request.milliseconds(None), 0)
        self.assertEqual(_request.milliseconds(1e-9), 1)
        self.assertEqual(_request.milliseconds(2.5), 2500)
        for timeout in (0, -1, 1e10, float("nan")):
            with self.assertRaisesRegex(ValueError, "timeout="):
                _request.milliseconds(timeout)
        with self.assertRaises(TypeError):
            _request.milliseconds("1")

    def test_errors_cross_processes(self):
        error = _errors.failure(101, "GPU 9")
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((again.code, again.name, again.text), (101, error.name, "GPU 9"))
        self.assertEqual(str(again), "NVLINK_TRANSFER_INVALID_DEVICE (101): GPU 9")


class Library:
    """What the futures ask; ends when a test says so."""

    def __init__(self) -> None:
        self.code, self.canceled, self.asked = 600, 0, 0

    def begin(self, arguments, timeout_ms, number):
        number.value = 3

    def test(self, number, done, answer):
        self.asked += 1
        done.value = 5
        answer.extend((self.code, b"as the test says"))

    def wait(self, number, timeout_ms, answer):
        time.sleep(timeout_ms / 1000 if self.code == 600 else 0)
        self.test(number, ctypes.c_uint64(), answer)

    def cancel(self, number):
        self.canceled += 1
        return 0

    def error(self, code, text):
        return _errors.failure(code, text.decode())

    def statistics(self):
        return None


class Futures(unittest.TestCase):
    def setUp(self):
        self.library = Library()
        self.addCleanup(setattr, self.library, "code", 0)
        self.recorder = _statistics.Recorder()

    def begin(self):
        future = nte.TransferFuture(9, self.recorder, "native", time.perf_counter())
        _future.start(future, self.library, unittest.mock.Mock(), 0)
        return future

    def test_its_end_is_asked_for_once(self):
        future = self.begin()
        self.assertEqual((future.status(), future.progress()), ("running", 5))
        self.library.code = 700
        self.assertEqual(future.status(), "failed")
        asked = self.library.asked
        with self.assertRaisesRegex(nte.NvlinkTransferError, "CUDA error 700 .700"):
            future.result()
        self.assertEqual((future.status(), future.progress()), ("failed", 5))
        self.assertEqual(self.library.asked, asked)
        self.assertEqual(self.recorder.statistics(None).failures, 1)

    def test_an_engine_that_cannot_be_quiet(self):
        with unittest.mock.patch("nvlink_transfer_engine._library.find") as find:
            find.return_value = (self.library, "the test's")
            engine = nte.NvlinkTransferEngine()
        self.recorder = engine._recorder
        future = self.begin()
        began = time.monotonic()
        with self.assertRaisesRegex(nte.NvlinkTransferError, "909.*1 transfers still run 0.1 s"):
            engine.close(timeout=0.1)
        self.assertLess(time.monotonic() - began, 30)
        self.assertEqual((self.library.canceled, future.status()), (1, "running"))
        self.assertIsNotNone(future._keep, "its memory is kept")
        self.library.code = 20001
        engine.close()
        self.assertEqual(future.status(), "canceled")
        self.assertIsNone(future._keep)
        self.assertNotIn(future, _future._running)

    def test_those_that_are_over_are_not_kept(self):
        old = [self.begin() for _ in range(20)]
        self.library.code = 0
        for _ in range(20):
            self.begin()
        self.assertTrue(all(future._keep is None for future in old))
        self.assertLess(len(_future._running), 20)


class StatisticsOf(unittest.TestCase):
    def test_percentiles(self):
        recorder = _statistics.Recorder()
        nothing = recorder.statistics(None)
        self.assertEqual((nothing.count, nothing.p50_s, nothing.gb_per_s), (0, 0.0, 0.0))
        for number in range(100, 0, -1):
            recorder.succeeded(nte.TransferResult(10**9, float(number), "native"), [None])
        now = recorder.statistics(None)
        self.assertEqual((now.p50_s, now.p99_s, now.seconds), (50, 99, 5050))
        self.assertAlmostEqual(now.gb_per_s, 100 / 5050)

    def test_the_sample_is_bounded_and_fair(self):
        recorder = _statistics.Recorder()
        for number in range(40000):
            recorder.succeeded(nte.TransferResult(1, number / 40000, "native"), [None])
        self.assertEqual(len(recorder._sample), _statistics.RESERVOIR)
        self.assertAlmostEqual(recorder.statistics(None).p50_s, 0.5, delta=0.05)


if __name__ == "__main__":
    unittest.main()
