#!/usr/bin/env python3
"""nvlink_transfer_engine over a driver: futures, asyncio, the ends of engines and processes.

nvlink_engine_async_test.py LIBRARY MODE    LIBRARY: libnvlink_transfer.so; MODE: cpu (no driver),
simulated, or gpu; LINKSPAN_CUDA_LIBRARY says the same.
"""

import asyncio
import concurrent.futures
import contextlib
import dis
import hashlib
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import unittest
import weakref

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


class Interrupted(Exception):
    pass


def interrupted(call, nth: int) -> bool:
    """Raises in `call` at the n-th point at which a signal's handler may run; False: it has fewer.

    CPython runs handlers after calls, at the start of functions and when loops go back.
    """
    left, last = nth, {}

    def trace(frame, event, _argument):
        nonlocal left
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = last.get(frame, "")
            last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before.startswith(("CALL", "RESUME", "JUMP_BACKWARD")):
                left -= 1
                if left == 0:
                    raise Interrupted
        return trace

    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    return False


class Futures(OverADriver):
    def setUp(self):
        super().setUp()
        self.content = cuda_memory.pattern(50000, 8)
        self.source, self.target = self.memory(0, self.content), self.guarded(self.last, 50000)
        self.stream = self.held()

    def begin(self, held: bool = True, **options) -> nte.TransferFuture:
        how = Array(self.source, 0, 50000), Array(self.target, 256, 50000)
        return self.engine.transfer_async(*how, stream=self.stream if held else None, **options)

    def assert_failed(self, future: nte.TransferFuture, code: int, status: str) -> None:
        with self.assertRaises(nte.NvlinkTransferError) as raised:
            future.result(WAIT_S)
        self.assertEqual((raised.exception.code, future.status()), (code, status))
        self.assertTrue(future.done())
        self.assert_arrived(self.target, bytes(50000))

    def test_the_life_of_one(self):
        future = self.begin()
        self.assertEqual((future.status(), future.progress()), ("running", 0))
        self.assertFalse(future.done())
        self.assertFalse(future.wait(0.01))
        with self.assertRaisesRegex(TimeoutError, "50000 bytes still runs after 0.01"):
            future.result(0.01)
        self.stream.release()
        self.assertEqual(future.result(WAIT_S).bytes, 50000)
        self.assertEqual((future.status(), future.progress()), ("done", 50000))
        self.assertFalse(future.cancel(), "it is over")
        self.assertIs(future.result(), future.result())
        self.assert_arrived(self.target, self.content)
        self.assertEqual(self.engine.statistics().count, 1)

    def test_cancel(self):
        future = self.begin()
        self.assertTrue(future.cancel())
        self.assert_failed(future, 20001, "canceled")
        self.assertEqual(self.engine.statistics().failures, 1)

    def test_timeouts(self):
        self.assert_failed(self.begin(timeout=0.02), 909, "timed out")
        how = Array(self.source, 0, 9), Array(self.target, 256, 9)
        with self.assertRaises(nte.NvlinkTransferError) as raised:
            self.engine.transfer(*how, stream=self.stream, timeout=0.02)
        self.assertEqual(raised.exception.code, 909)
        self.assertEqual(self.engine.transfer(*how, timeout=WAIT_S).bytes, 9)

    def test_the_objects_are_kept_until_it_is_over(self):
        source, target = Array(self.source, 0, 9), Array(self.target, 256, 9)
        kept = [weakref.ref(source), weakref.ref(target)]
        future = self.engine.transfer_async(source, target, stream=self.stream)
        del source, target
        self.assertNotIn(None, [reference() for reference in kept])
        self.stream.release()
        future.result(WAIT_S)
        self.assertEqual([reference() for reference in kept], [None, None])

    def test_nobody_keeps_the_future(self):
        array = Array(self.source, 0, 9)
        kept = weakref.ref(array)
        self.engine.transfer_async(array, Array(self.target, 256, 9), stream=self.stream)
        del array
        self.assertIsNotNone(kept(), "it still runs")
        self.stream.release()
        until = time.monotonic() + WAIT_S
        while kept() is not None and time.monotonic() < until:
            self.begin(held=False).result(WAIT_S)  # later transfers look after it
        self.assertIsNone(kept())

    def test_several_threads_wait_for_one(self):
        future, heard = self.begin(), []
        threads = [
            threading.Thread(target=lambda: heard.append(future.result(WAIT_S))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        self.stream.release()
        for thread in threads:
            thread.join(WAIT_S)
        self.assertEqual(heard, [future.result()] * 4)
        self.assertEqual(self.engine.statistics().count, 1)

    def test_an_interrupt_at_any_point_of_wait_changes_nothing(self):
        other = concurrent.futures.ThreadPoolExecutor(1)
        self.addCleanup(other.shutdown)
        nth, again = 0, True
        while again:
            nth += 1
            future = self.begin()
            self.stream.release()  # now: it must not be over before wait()
            self.stream = self.held()
            again = interrupted(lambda: future.wait(WAIT_S), nth)
            heard = other.submit(future.wait, 5)  # by another thread, which finds no lock held
            self.assertTrue(heard.result(), f"after an interrupt at {nth}")
            self.assertEqual(future.result(0).bytes, 50000)
            self.assertEqual(self.engine.statistics().count, nth, f"an interrupt at {nth}")
        self.assertGreater(nth, 10)

    def test_an_interrupt_keeps_how_it_failed(self):
        nth, again = 0, True
        while again:
            nth += 1
            future = self.begin()
            future.cancel()
            again = interrupted(lambda: future.wait(WAIT_S), nth)
            with self.assertRaises(nte.NvlinkTransferError):
                self.engine.transfer(1, 1, 1, source_gpu=99, target_gpu=0)  # another text
            with self.assertRaisesRegex(nte.NvlinkTransferError, "50000 bytes .* canceled"):
                future.result(WAIT_S)
            self.assertEqual(future.status(), "canceled")
            self.assertEqual(self.engine.statistics().failures, 2 * nth, f"an interrupt at {nth}")

    def test_an_interrupt_while_it_begins(self):
        functions = self.engine._library.functions
        begin = functions.nvlink_transfer_begin

        def interrupt(*_arguments):
            raise Interrupted

        for begins in (True, False):
            array = Array(self.source, 0, 9)
            kept = weakref.ref(array)
            calls = (begin, interrupt) if begins else (interrupt,)
            functions.nvlink_transfer_begin = lambda *given, calls=calls: [
                call(*given) for call in calls
            ]
            with self.assertRaises(Interrupted):
                self.engine.transfer_async(array, Array(self.target, 256, 9), stream=self.stream)
            del array
            self.assertEqual(kept() is not None, begins, "what has begun is kept, and only that")
        self.engine.close()  # which cancels it
        self.assertEqual(self.engine.statistics().failures, 1)

    @unittest.skipUnless(hasattr(signal, "setitimer"), "needs POSIX's signals")
    def test_a_handler_may_close_the_engine(self):
        future = self.begin()
        ended = []

        def handle(*_arguments):
            self.engine.close()
            ended.append(future.done())

        before = signal.signal(signal.SIGALRM, handle)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        self.assert_failed(future, 20001, "canceled")
        self.assertEqual(ended, [True])

    def test_asyncio(self):
        async def all_of_them():
            held = self.begin()
            others = [self.begin(held=False) for _ in range(20)]
            await asyncio.gather(*others)
            self.assertFalse(held.done(), "the loop went on beside it")
            self.stream.release()
            return await asyncio.wait_for(held, WAIT_S)

        self.assertEqual(asyncio.run(all_of_them()).bytes, 50000)

        async def fails():
            await asyncio.wait_for(self.begin(timeout=0.01), WAIT_S)

        self.stream = self.held()
        with self.assertRaises(nte.NvlinkTransferError):
            asyncio.run(fails())

    def test_a_canceled_task_cancels_it(self):
        async def give_up():
            future = self.begin()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(future, 0.02)
            return future

        self.assert_failed(asyncio.run(give_up()), 20001, "canceled")

    def test_close(self):
        with self.engine:
            future = self.begin()
            other = nte.NvlinkTransferEngine(LIBRARY)
            how = Array(self.source, 0, 9), Array(self.target, 0, 9)
            others = other.transfer_async(*how, stream=self.stream)
        self.assertTrue(future.done())
        self.assert_failed(future, 20001, "canceled")
        self.assertEqual(others.status(), "running", "of another engine")
        with self.assertRaisesRegex(RuntimeError, "closed"):
            self.begin()
        other.close()


SCRIPT = """
import atexit, os, sys
at_the_end = int
atexit.register(lambda: at_the_end())  # before the package's, so after it
sys.argv[1:] = {arguments!r}
sys.path[:0] = {path!r}
from nvlink_fixture import *
from nvlink_fixture import cuda_memory, nte
engine = nte.NvlinkTransferEngine(LIBRARY)
source, target = (cuda_memory.Gpu(DRIVER, 0, bytes(64)) for _ in range(2))
how = Array(source, 0, 64), Array(target, 0, 64)
"""


def run_script(text: str) -> subprocess.CompletedProcess:
    path = [str(pathlib.Path(__file__).resolve().parent)]
    head = SCRIPT.format(arguments=[LIBRARY, MODE], path=path)
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", head + text],  # of fork, here
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def pull(handle: bytes, size: int, answers) -> None:
    """In a spawned process."""
    target = cuda_memory.Gpu(DRIVER, 0, bytes(size))
    with nte.NvlinkTransferEngine(LIBRARY) as engine:
        engine.transfer(None, Array(target, 0, size), source_gpu=0, source_handle=handle)
    answers.put(hashlib.sha256(target.read()).hexdigest())


class Processes(OverADriver):
    def test_exit_with_a_running_future(self):
        ran = run_script(
            "stream = cuda_memory.HeldStream(DRIVER, 0)\n"
            "future = engine.transfer_async(*how, stream=stream)\n"
            "print(future.status())\n"
            "at_the_end = lambda: (print(future.status()), stream.release())\n"
        )
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertEqual(ran.stdout, "running\ncanceled\n")

    @unittest.skipUnless(hasattr(os, "fork"), "needs fork")
    def test_a_forked_child_is_told(self):
        ran = run_script(
            "engine.transfer(*how)\n"
            "stream = cuda_memory.HeldStream(DRIVER, 0)\n"
            "future = engine.transfer_async(*how, stream=stream)\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    for call in (lambda: engine.transfer(*how), future.status, future.cancel,\n"
            "                 lambda: nte.NvlinkTransferEngine(LIBRARY).transfer_async(*how)):\n"
            "        try:\n"
            "            call()\n"
            "        except nte.NvlinkTransferError as error:\n"
            "            print(error.code, 'spawn' in error.text, flush=True)\n"
            "    atexit._run_exitfuncs()\n"
            "    os._exit(7)\n"  # as multiprocessing ends its children
            "print('child', os.waitpid(child, 0)[1] >> 8, future.status())\n"
            "stream.close()\n"
            "print(future.result(10).bytes)\n"
        )
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertEqual(ran.stdout, "3 True\n" * 4 + "child 7 running\n64\n")

    def test_a_spawned_child_works(self):
        content = cuda_memory.pattern(100000, 9)
        memory = self.memory(0, content)
        self.engine.transfer(Array(memory, 0, 9), Array(memory, 10, 9))  # CUDA has started here
        spawn = multiprocessing.get_context("spawn")
        answers = spawn.Queue()
        child = spawn.Process(target=pull, args=(memory.handle(), 100000, answers))
        child.start()
        expected = hashlib.sha256(memory.read()).hexdigest()
        self.assertEqual(answers.get(timeout=WAIT_S), expected)
        child.join(WAIT_S)
        self.assertEqual(child.exitcode, 0)


if __name__ == "__main__":
    main()
