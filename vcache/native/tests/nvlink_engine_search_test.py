#!/usr/bin/env python3
"""nvlink_transfer_engine: how the library is found, and what takes its place.

nvlink_engine_search_test.py LIBRARY    LIBRARY: libnvlink_transfer.so
"""

import _ctypes
import asyncio
import contextlib
import ctypes
import os
import pathlib
import shutil
import sys
import tempfile
import types
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import nvlink_transfer_engine as nte  # noqa: E402
from nvlink_transfer_engine import _library  # noqa: E402

LIBRARY = sys.argv[1]
NAME = "libnvlink_transfer.so"


class Places:
    """A folder in place of the package's, of the current one and of the repository."""

    def __init__(self, test: unittest.TestCase) -> None:
        self.root = pathlib.Path(tempfile.mkdtemp()).resolve()
        test.addCleanup(shutil.rmtree, self.root)
        self.package = self.root / "repository/vcache/native/python/package"
        self.here = self.root / "here"
        for folder in (self.package, self.here):
            folder.mkdir(parents=True)
        was = os.getcwd()
        os.chdir(self.here)
        test.addCleanup(os.chdir, was)
        library = _library.Library

        def load(path: str):
            # The loader's path has what an earlier test loaded: glibc goes by the SONAME.
            if not os.path.dirname(path):
                raise OSError("cannot open shared object file: No such file or directory")
            return library(path)

        for patch in (
            unittest.mock.patch.object(_library, "Library", load),
            unittest.mock.patch.object(_library, "PACKAGE", self.package),
            unittest.mock.patch.dict(os.environ),
            unittest.mock.patch.dict(sys.modules),
        ):
            patch.start()
            test.addCleanup(patch.stop)
        os.environ.pop("NVLINK_TRANSFER_LIBRARY", None)

    def put(self, path: str, content: "str | None" = None) -> str:
        """The library, or what is no library, at a path below the root."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            shutil.copy(LIBRARY, file)
        else:
            file.write_text(content)
        return str(file)


class Search(unittest.TestCase):
    def setUp(self):
        self.places = Places(self)

    def test_the_order(self):
        # From the last to the first: each hides those before it.
        for path in (
            "here/out/release",
            "here/vcache/native/build",
            "here/native/build",
            "repository/out/release",
            "repository/vcache/native/build",
            "repository/vcache/native/python/package",
        ):
            file = self.places.put(f"{path}/{NAME}")
            engine = nte.NvlinkTransferEngine()
            self.assertEqual((engine.backend, engine.library_path), ("native", file))
            self.assertIn(file, engine.backend_reason)
        named = self.places.put("elsewhere/by_variable.so")
        os.environ["NVLINK_TRANSFER_LIBRARY"] = named
        engine = nte.NvlinkTransferEngine()
        self.assertEqual(engine.library_path, named)
        self.assertIn("NVLINK_TRANSFER_LIBRARY", engine.backend_reason)
        argument = self.places.put("elsewhere/by_argument.so")
        self.assertEqual(nte.NvlinkTransferEngine(pathlib.Path(argument)).library_path, argument)

    def test_the_name_with_a_version(self):
        file = self.places.put(f"repository/vcache/native/python/package/{NAME}.0")
        self.assertEqual(nte.NvlinkTransferEngine().library_path, file)

    def test_the_loaders_path_is_last(self):
        tried = []

        def load(path):
            tried.append(path)
            if path == NAME:
                return types.SimpleNamespace(path=path)
            raise OSError("no")

        with unittest.mock.patch.object(_library, "Library", load):
            self.assertEqual(_library.find(None)[1], f"found {NAME} in the loader's path")
        self.assertEqual(tried, [NAME])

    def test_a_named_one_that_does_not_load_is_an_error(self):
        good = self.places.put(f"repository/vcache/native/python/package/{NAME}")
        bad = self.places.put("bad.so", "no library")
        with self.assertRaisesRegex(nte.LibraryNotFound, "library= names .*bad.so"):
            nte.NvlinkTransferEngine(bad)
        os.environ["NVLINK_TRANSFER_LIBRARY"] = "/nonexistent/x.so"
        with self.assertRaisesRegex(nte.LibraryNotFound, "LIBRARY names .*/nonexistent/x"):
            nte.NvlinkTransferEngine()
        self.assertEqual(nte.NvlinkTransferEngine(good).library_path, good)
        os.environ["NVLINK_TRANSFER_LIBRARY"] = ""
        self.assertEqual(nte.NvlinkTransferEngine().library_path, good)

    def test_what_does_not_load_is_passed_over_and_told(self):
        self.places.put(f"repository/vcache/native/python/package/{NAME}", "no library")
        self.places.put(f"here/native/build/{NAME}", "no library")
        reason = nte.NvlinkTransferEngine().backend_reason
        self.assertIn(f"does not load: {self.places.package / NAME} (", reason)
        self.assertIn(f"does not load: {self.places.here / 'native/build' / NAME} (", reason)
        good = self.places.put(f"repository/out/release/{NAME}")
        self.assertEqual(nte.NvlinkTransferEngine().library_path, good)

    def test_another_library_of_that_name(self):
        with self.assertRaisesRegex(nte.LibraryNotFound, "another library of that name"):
            nte.NvlinkTransferEngine(_ctypes.__file__)

    def test_a_process_that_only_prepares_may_fork(self):
        with unittest.mock.patch.object(_library, "_used_by", None):
            engine = nte.NvlinkTransferEngine(LIBRARY)
            engine.set_handle_cache(1)
            self.assertIsNone(_library._used_by)
            with self.assertRaises(nte.NvlinkTransferError):
                engine.transfer(1, 2, 3, source_gpu=0, target_gpu=0)
            self.assertEqual(_library._used_by, os.getpid())

    def test_nothing_at_all(self):
        with nte.NvlinkTransferEngine() as engine:
            self.assertEqual(engine.backend, "none")
            for told in ("torch: ", "cuda-python: ", str(self.places.here / "native/build"), NAME):
                self.assertIn(told, engine.backend_reason)
            self.assertIn("NVLINK_TRANSFER_LIBRARY", engine.backend_reason)
            for transfer in (engine.transfer, engine.transfer_async):
                with self.assertRaises(nte.LibraryNotFound) as raised:
                    transfer(1, 2, 3, source_gpu=0, target_gpu=0)
                self.assertEqual(str(raised.exception), engine.backend_reason)
            with self.assertRaises(nte.LibraryNotFound):
                engine.set_handle_cache(1)
            self.assertIsNone(engine.statistics().library)
            self.assertIsNone(engine.library_path)
            self.assertIsNone(engine.library_version)


# ---- a torch made here: tensors in host memory that say that they are on a GPU ----------------
class FakeStream:
    def __init__(self, torch, gpu: int, number: int) -> None:
        self.torch, self.gpu, self.cuda_stream = torch, gpu, number

    def synchronize(self) -> None:
        self.torch.calls.append(("synchronize", self.gpu, self.cuda_stream))
        for target, source in self.torch.queued:
            target.memory[:] = source.memory
        self.torch.queued.clear()

    def wait_stream(self, other: "FakeStream") -> None:
        here, there = (self.gpu, self.cuda_stream), (other.gpu, other.cuda_stream)
        self.torch.calls.append(("wait_stream", here, there))


class FakeTensor:
    is_cuda, contiguous, layout = True, True, "strided"
    conjugated = False

    def __init__(self, torch, memory: memoryview, gpu: int = 0, item: int = 1) -> None:
        self.torch, self.memory, self.item = torch, memory, item
        self.device = types.SimpleNamespace(index=gpu)

    def detach(self):
        return self

    def reshape(self, *shape):
        assert shape == (-1,)
        return self

    def view(self, dtype):
        assert dtype == "uint8"
        return FakeTensor(self.torch, self.memory, self.device.index)

    def __getitem__(self, part):
        assert self.item == 1, "slices count bytes"
        return FakeTensor(self.torch, self.memory[part], self.device.index)

    def copy_(self, source, non_blocking):
        if self.torch.broken:
            raise RuntimeError("an illegal memory access")
        assert len(source.memory) == len(self.memory)
        self.torch.queued.append((self, source))

    def is_contiguous(self):
        return self.contiguous

    def is_conj(self):
        return self.conjugated

    def is_neg(self):
        return False

    def numel(self):
        return len(self.memory) // self.item

    def element_size(self):
        return self.item

    def data_ptr(self):
        return 4096


def fake_torch(available: bool = True) -> types.ModuleType:
    torch = types.ModuleType("torch")
    torch.Tensor, torch.strided, torch.uint8 = FakeTensor, "strided", "uint8"
    torch.calls, torch.queued, torch.broken = [], [], False
    current = {}
    torch.cuda = types.SimpleNamespace(
        is_available=lambda: available,
        default_stream=lambda gpu: FakeStream(torch, gpu, 0),
        current_stream=lambda d: current.get(d.index) or FakeStream(torch, d.index, 0),
        ExternalStream=lambda number, device: FakeStream(torch, device, number),
        stream=contextlib.nullcontext,
        current=current,
    )
    return torch


class TorchInstead(unittest.TestCase):
    def setUp(self):
        Places(self)
        self.torch = sys.modules["torch"] = fake_torch()
        self.engine = nte.NvlinkTransferEngine()
        self.source = FakeTensor(self.torch, memoryview(bytearray(range(40))), 0, 4)
        self.target = FakeTensor(self.torch, memoryview(bytearray(100)), 1, 2)

    def test_it_copies(self):
        self.assertEqual(self.engine.backend, "torch")
        self.assertIn("torch copies within this process instead", self.engine.backend_reason)
        result = self.engine.transfer(
            self.source, self.target, 7, source_offset=3, target_offset=90, timeout=1
        )
        self.assertEqual((result.bytes, result.backend), (7, "torch"))
        self.assertEqual(bytes(self.target.memory[90:97]), bytes(range(3, 10)))
        self.assertEqual(sum(self.target.memory), sum(range(3, 10)), "and nothing else")
        self.assertEqual(self.torch.calls, [("wait_stream", (0, 0), (1, 0)), ("synchronize", 0, 0)])

    def test_streams(self):
        self.torch.cuda.current[0] = FakeStream(self.torch, 0, 77)
        self.engine.transfer(self.source, self.target)
        self.engine.transfer(self.source, self.target, stream=78)
        streams = [call[2] for call in self.torch.calls if call[0] == "synchronize"]
        self.assertEqual(streams, [77, 78])

    def test_async(self):
        future = self.engine.transfer_async(self.source, self.target)
        self.assertEqual((future.status(), future.progress()), ("done", 40))
        self.assertFalse(future.cancel())

        async def wait():
            return await future

        self.assertEqual(asyncio.run(wait()).bytes, 40)
        self.assertEqual(bytes(self.target.memory[:40]), bytes(range(40)))
        self.assertEqual(self.engine.statistics().bytes, 40)

    def test_a_failure(self):
        self.torch.broken = True
        future = self.engine.transfer_async(self.source, self.target)
        self.assertEqual(future.status(), "failed")
        for result in (future.result, lambda: self.engine.transfer(self.source, self.target)):
            with self.assertRaisesRegex(nte.NvlinkTransferError, "999.*illegal memory access"):
                result()
        self.assertEqual(self.engine.statistics().failures, 2)

    def test_what_it_cannot(self):
        with self.assertRaisesRegex(nte.LibraryNotFound, "a handle needs the library"):
            self.engine.transfer(None, self.target, source_gpu=0, source_handle=bytes(64))
        with self.assertRaisesRegex(nte.LibraryNotFound, "source is no torch tensor"):
            self.engine.transfer(4096, self.target, 4, source_gpu=0)
        with self.assertRaisesRegex(ValueError, "source_gpu is not the tensor's, which is 0"):
            self.engine.transfer(self.source, self.target, source_gpu=1)

    def test_tensors_that_are_refused(self):
        for name, value, told in (
            ("is_cuda", False, r"\.cuda\(\)"),
            ("contiguous", False, r"source\.contiguous\(\)"),
            ("layout", "sparse", "to_dense"),
            ("conjugated", True, "resolve_conj"),
        ):
            tensor = FakeTensor(self.torch, self.source.memory)
            setattr(tensor, name, value)
            with self.assertRaisesRegex(ValueError, told):
                self.engine.transfer(tensor, self.target)

    def test_torch_without_a_gpu(self):
        sys.modules["torch"] = fake_torch(available=False)
        engine = nte.NvlinkTransferEngine()
        self.assertEqual(engine.backend, "none")
        self.assertIn("torch: torch.cuda.is_available() is False", engine.backend_reason)


# ---- a cuda-python made here ------------------------------------------------------------------
class FakeDriver(types.ModuleType):
    """One allocation, of host memory."""

    def __init__(self, size: int) -> None:
        super().__init__("cuda.bindings.driver")
        self.memory = ctypes.create_string_buffer(size)
        self.base = ctypes.addressof(self.memory)
        self.CUstream = self.CUdeviceptr = int
        self.calls: list = []

    def __getattr__(self, name: str):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments):
            self.calls.append((name, *arguments))
            if name == "cuMemcpyPeerAsync":
                ctypes.memmove(arguments[0], arguments[2], arguments[4])
            results = {
                "cuDeviceGetCount": (2,),
                "cuDeviceGet": arguments,
                "cuDevicePrimaryCtxRetain": [f"context {number}" for number in arguments],
                "cuMemGetAddressRange": (self.base, len(self.memory)),
            }
            if name == "cuDeviceGet" and arguments[0] > 1:
                return (101,)
            return (0, *results.get(name, ()))

        return call


class CudaPythonInstead(unittest.TestCase):
    def setUp(self):
        Places(self)
        self.driver = FakeDriver(100)
        self.driver.memory[:40] = bytes(range(40))
        sys.modules["cuda"] = types.ModuleType("cuda")
        sys.modules["cuda"].__path__ = []

    def test_both_names_of_its_module(self):
        for name in ("cuda.cuda", "cuda.bindings.driver"):
            sys.modules[name] = self.driver
            self.assertEqual(nte.NvlinkTransferEngine().backend, "cuda-python")

    def test_it_copies(self):
        sys.modules["cuda.cuda"] = self.driver
        engine, base = nte.NvlinkTransferEngine(), self.driver.base
        self.assertEqual(engine.backend, "cuda-python")
        gpus = {"source_gpu": 0, "target_gpu": 1}
        self.driver.calls.clear()
        engine.transfer(base, base + 60, 7, **gpus, source_offset=3, target_offset=1)
        self.assertEqual(self.driver.memory.raw[61:68], bytes(range(3, 10)))
        names = [call[0] for call in self.driver.calls]
        self.assertLess(names.index("cuMemcpyPeerAsync"), names.index("cuStreamSynchronize"))
        for begin, end in (
            ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease"),
            ("cuCtxPushCurrent", "cuCtxPopCurrent"),
        ):
            self.assertEqual(names.count(begin), names.count(end))
        self.assertIn(("cuCtxPushCurrent", "context 0"), self.driver.calls)
        for arguments, code in (
            ((base, base + 94, 7), 1),
            ((base + 94, base, 7), 1),
        ):
            with self.assertRaises(nte.NvlinkTransferError) as raised:
                engine.transfer(*arguments, **gpus)
            self.assertEqual(raised.exception.code, code)
        with self.assertRaisesRegex(nte.NvlinkTransferError, "cuDeviceGet"):
            engine.transfer(base, base, 1, source_gpu=0, target_gpu=2)
        with self.assertRaisesRegex(nte.LibraryNotFound, "a handle needs the library"):
            engine.transfer(base, None, 1, source_gpu=0, target_gpu=0, target_handle=bytes(64))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
