"""What tests of nvlink_transfer_engine over a driver share.

Their arguments are LIBRARY MODE: libnvlink_transfer.so, and cpu (no driver), simulated or gpu.
"""

import pathlib
import sys
import types
import unittest

NATIVE = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(NATIVE / "python"), str(NATIVE.parent.parent / "tests/support")]

import cuda_memory  # noqa: E402
import nvlink_transfer_engine as nte  # noqa: E402

LIBRARY, MODE = sys.argv[1:3]
WAIT_S = 30
GUARD = bytes([0xA5]) * 256

DRIVER = cuda_memory.Driver() if MODE != "cpu" else None


class Array:
    """An object with __cuda_array_interface__, as CuPy's and Numba's are."""

    def __init__(self, memory: cuda_memory.Gpu, offset: int, size: int, gpu: bool = True) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (memory.address + offset, False),
            "version": 3,
        }
        self.device = types.SimpleNamespace(id=memory.gpu) if gpu else None


class OverADriver(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if MODE == "cpu":
            raise unittest.SkipTest("needs a GPU")

    def setUp(self):
        self.engine = nte.NvlinkTransferEngine(LIBRARY)
        self.addCleanup(self.engine.close)
        self.last = DRIVER.gpus - 1

    def memory(self, gpu: int, content: bytes) -> cuda_memory.Gpu:
        memory = cuda_memory.Gpu(DRIVER, gpu, content)
        self.addCleanup(memory.free)
        return memory

    def guarded(self, gpu: int, size: int) -> cuda_memory.Gpu:
        return self.memory(gpu, GUARD + bytes(size) + GUARD)

    def held(self, gpu: int = 0) -> cuda_memory.HeldStream:
        stream = cuda_memory.HeldStream(DRIVER, gpu)
        self.addCleanup(stream.close)
        return stream

    def exporter(self, gpu: int, size: int, seed: int) -> cuda_memory.Exporter:
        exporter = cuda_memory.Exporter(gpu, size, seed)
        self.addCleanup(exporter.close)
        return exporter

    def assert_arrived(self, target: cuda_memory.Gpu, content: bytes) -> None:
        read = target.read()
        self.assertEqual(read[:256] + read[-256:], GUARD + GUARD, "the guards")
        self.assertEqual(read[256:-256][: len(content)], content)


def main() -> None:
    ran = unittest.main(argv=sys.argv[:1], exit=False).result
    for test, why in ran.skipped:
        print(f"skipped {test}: {why}")
    sys.exit(not ran.wasSuccessful())
