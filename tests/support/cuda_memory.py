"""GPU memory for tests in Python, over the driver alone: the simulated one or a real one.

LINKSPAN_CUDA_LIBRARY names the driver; without it libcuda.so.1. Every entry comes from its
cuGetProcAddress_v2.

cuda_memory.py GPU BYTES SEED    exports memory filled with randbytes: writes the handle in hex,
then for each line of its input the memory's bytes in hex, and ends with its input
"""

import contextlib
import ctypes
import os
import pathlib
import random
import subprocess
import sys
import threading

VERSION = 12000
EXPORTER_S = 60
NON_BLOCKING = 1


def pattern(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


class Driver:
    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ.get("LINKSPAN_CUDA_LIBRARY", "libcuda.so.1"))
        self._entries: dict = {}
        self._contexts: dict = {}
        self.call("cuInit", ctypes.c_uint(0))
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        self.gpus = count.value

    def call(self, name: str, *arguments) -> None:
        if name not in self._entries:
            address, status = ctypes.c_void_p(), ctypes.c_int()
            code = self._library.cuGetProcAddress_v2(
                name.encode(),
                ctypes.byref(address),
                ctypes.c_int(VERSION),
                ctypes.c_uint64(0),
                ctypes.byref(status),
            )
            if code != 0 or not address.value:
                raise RuntimeError(f"the driver has no {name}: {code}, {status.value}")
            self._entries[name] = ctypes.CFUNCTYPE(ctypes.c_int)(address.value)
        code = self._entries[name](*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: {code}")

    @contextlib.contextmanager
    def on(self, gpu: int):
        if gpu not in self._contexts:
            device, context = ctypes.c_int(), ctypes.c_void_p()
            self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(gpu))
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._contexts[gpu] = context
        self.call("cuCtxPushCurrent", self._contexts[gpu])
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent", ctypes.byref(ctypes.c_void_p()))


class Gpu:
    """Memory of one GPU."""

    def __init__(self, driver: Driver, gpu: int, content: bytes) -> None:
        self.driver, self.gpu, self.bytes = driver, gpu, len(content)
        address = ctypes.c_uint64()
        with driver.on(gpu):
            driver.call("cuMemAlloc", ctypes.byref(address), ctypes.c_size_t(self.bytes))
            self._stream = ctypes.c_void_p()  # not the default one, which a held one may hold up
            driver.call(
                "cuStreamCreateWithPriority",
                ctypes.byref(self._stream),
                ctypes.c_uint(NON_BLOCKING),
                ctypes.c_int(0),
            )
        self.address = address.value
        self.write(content)

    def _copy(self, to: int, source: int, size: int) -> None:
        with self.driver.on(self.gpu):
            self.driver.call(
                "cuMemcpyAsync",
                ctypes.c_uint64(to),
                ctypes.c_uint64(source),
                ctypes.c_size_t(size),
                self._stream,
            )
            self.driver.call("cuStreamSynchronize", self._stream)

    def write(self, content: bytes) -> None:
        host = ctypes.create_string_buffer(content, len(content))
        self._copy(self.address, ctypes.addressof(host), len(content))

    def read(self) -> bytes:
        host = ctypes.create_string_buffer(self.bytes)
        self._copy(ctypes.addressof(host), self.address, self.bytes)
        return host.raw

    def handle(self) -> bytes:
        handle = ctypes.create_string_buffer(64)
        with self.driver.on(self.gpu):
            self.driver.call("cuIpcGetMemHandle", handle, ctypes.c_uint64(self.address))
        return handle.raw

    def free(self) -> None:
        with self.driver.on(self.gpu):
            self.driver.call("cuStreamDestroy", self._stream)
            self.driver.call("cuMemFree", ctypes.c_uint64(self.address))


class HeldStream:
    """A stream of one GPU in which nothing runs before release()."""

    def __init__(self, driver: Driver, gpu: int) -> None:
        self._word = Gpu(driver, gpu, bytes(8))
        self._driver, self._gpu = driver, gpu
        self._stream = ctypes.c_void_p()
        with driver.on(gpu):
            driver.call(
                "cuStreamCreateWithPriority",
                ctypes.byref(self._stream),
                ctypes.c_uint(NON_BLOCKING),
                ctypes.c_int(0),
            )
            driver.call(
                "cuStreamWaitValue64",
                self._stream,
                ctypes.c_uint64(self._word.address),
                ctypes.c_uint64(1),
                ctypes.c_uint(0),
            )
        self.cuda_stream = self._stream.value

    def release(self) -> None:
        self._word.write((1).to_bytes(8, "little"))

    def close(self) -> None:
        self.release()
        with self._driver.on(self._gpu):
            self._driver.call("cuStreamSynchronize", self._stream)
            self._driver.call("cuStreamDestroy", self._stream)
        self._word.free()


class Graph:
    """What a function submits to a stream of one GPU, as a CUDA graph that can be launched."""

    def __init__(self, driver: Driver, gpu: int, submit) -> None:
        self._driver, self._gpu = driver, gpu
        self._stream, self._executable = ctypes.c_void_p(), ctypes.c_void_p()
        graph = ctypes.c_void_p()
        with driver.on(gpu):
            driver.call(
                "cuStreamCreateWithPriority",
                ctypes.byref(self._stream),
                ctypes.c_uint(NON_BLOCKING),
                ctypes.c_int(0),
            )
            driver.call("cuStreamBeginCapture", self._stream, ctypes.c_int(0))  # global
            try:
                self.made = submit(self._stream.value)
            finally:
                driver.call("cuStreamEndCapture", self._stream, ctypes.byref(graph))
            driver.call(
                "cuGraphInstantiateWithFlags",
                ctypes.byref(self._executable),
                graph,
                ctypes.c_uint64(0),
            )
            driver.call("cuGraphDestroy", graph)

    def launch(self) -> None:
        with self._driver.on(self._gpu):
            self._driver.call("cuGraphLaunch", self._executable, self._stream)
            self._driver.call("cuStreamSynchronize", self._stream)

    def close(self) -> None:
        with self._driver.on(self._gpu):
            self._driver.call("cuGraphExecDestroy", self._executable)
            self._driver.call("cuStreamDestroy", self._stream)


class Exporter:
    """Another process with memory of one GPU."""

    def __init__(self, gpu: int, size: int, seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, pathlib.Path(__file__), str(gpu), str(size), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._limit = threading.Timer(EXPORTER_S, self._process.kill)
        self._limit.start()
        self.gpu, self.content = gpu, pattern(size, seed)
        self.handle = bytes.fromhex(self._process.stdout.readline())

    def read(self) -> bytes:
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return bytes.fromhex(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=EXPORTER_S)
        self._limit.cancel()


def main() -> None:
    gpu, size, seed = map(int, sys.argv[1:])
    memory = Gpu(Driver(), gpu, pattern(size, seed))
    print(memory.handle().hex(), flush=True)
    for _ in sys.stdin:
        print(memory.read().hex(), flush=True)


if __name__ == "__main__":
    main()
