"""The thread pool: any number of threads, several engines and callers at once, forks, lost cores, and the thread of a
caller left as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from helpers.matrices import activations, f32, matrix
from octavo.core.errors import ConfigError

native = pytest.importorskip("octavo.ops.native")

TASKS = Path("/proc/self/task")


@pytest.fixture
def work() -> tuple[np.ndarray, object]:
    """Activations and a matrix of enough panels to share."""
    return activations(40, 512, ("normal", "spikes")), matrix("Q4_K", 640, 512)


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 40])
def test_any_number_of_threads_gives_the_same_bits(threads, work):
    x, tensor = work
    one, many = native.NativeOps(1), native.NativeOps(threads)
    assert many.threads == threads
    want, packed = one.linear(x, one.pack([tensor])), many.pack([tensor])
    for _ in range(20):
        assert np.array_equal(many.linear(x, packed), want)


@pytest.mark.parametrize("threads", [0, -1, 1025, 10**6])
def test_an_impossible_number_of_threads_is_refused(threads):
    with pytest.raises(ConfigError, match="threads must be between 1 and 1024"):
        native.NativeOps(threads)


def test_two_engines_and_many_callers_share_a_process(work):
    x, tensor = work
    engines = [native.NativeOps(n) for n in (2, 3)]
    packed = [o.pack([tensor]) for o in engines]
    want = engines[0].linear(x, packed[0])
    together = threading.Barrier(6)

    def call(i: int) -> bool:
        together.wait()
        return all(np.array_equal(engines[i % 2].linear(x, packed[i % 2]), want) for _ in range(100))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(call, range(6)))


def test_engines_that_come_and_go_leave_no_threads(work):
    x, tensor = work
    before = len(list(TASKS.iterdir()))
    for _ in range(20):
        ops = native.NativeOps(5)
        ops.linear(x, ops.pack([tensor]))
        del ops
    until = time.monotonic() + 60
    while len(list(TASKS.iterdir())) > before:  # a joined thread may still be listed for a moment
        assert time.monotonic() < until


def in_a_child(check: Callable[[], bool]) -> bool:
    """What check says in a forked child."""
    child = os.fork()
    if child == 0:
        code = 1
        signal.alarm(60)  # a child that waits for good dies of it
        try:
            code = 0 if check() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_gets_a_pool_of_its_own(work):
    x, tensor = work
    ops = native.NativeOps(3)
    w = ops.pack([tensor])
    want = ops.linear(x, w)

    def same() -> bool:
        return np.array_equal(ops.linear(x, w), want)

    assert in_a_child(same)
    assert in_a_child(lambda: same() and in_a_child(same) and same())
    assert in_a_child(lambda: np.array_equal((new := native.NativeOps(2)).linear(x, new.pack([tensor])), want))
    assert same()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_while_others_compute_leaves_a_child_that_can(work):
    x, tensor = work
    ops = native.NativeOps(2)
    w = ops.pack([tensor])
    want = ops.linear(x, w)
    done = threading.Event()

    def call() -> None:
        while not done.is_set():
            ops.linear(x, w)

    with ThreadPoolExecutor(2) as pool:
        callers = [pool.submit(call) for _ in range(2)]
        try:
            assert all(in_a_child(lambda: np.array_equal(ops.linear(x, w), want)) for _ in range(20))
        finally:
            done.set()
        for caller in callers:
            caller.result()


@contextmanager
def one_busy_core() -> Iterator[None]:
    """All threads of this process on one CPU, with another process that wants all of it."""
    allowed = os.sched_getaffinity(0)
    core = min(allowed)
    busy = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()  # it is on the core now
            for task in TASKS.iterdir():
                os.sched_setaffinity(int(task.name), {core})
            yield
        finally:
            for task in TASKS.iterdir():
                os.sched_setaffinity(int(task.name), allowed)
            other.kill()


@pytest.mark.parametrize("threads", [2, 6])
def test_a_core_that_is_taken_away_slows_down_but_stops_nothing(threads, work):
    x, tensor = work
    ops = native.NativeOps(threads)
    w = ops.pack([tensor])
    want = ops.linear(x, w)
    with one_busy_core():
        assert all(np.array_equal(ops.linear(x, w), want) for _ in range(30))
    assert np.array_equal(ops.linear(x, w), want)


def test_other_python_threads_run_on_during_a_call():
    ops = native.NativeOps(1, tier="portable")
    x, w = f32(256, 2048), ops.pack([matrix("Q8_0", 512, 2048)])
    ops.linear(x[:1].copy(), w)
    span: list[float] = []

    def call() -> None:
        span.append(time.perf_counter())
        ops.linear(x, w)
        span.append(time.perf_counter())

    caller, stamps = threading.Thread(target=call), [0.0]
    caller.start()
    while caller.is_alive():
        if (now := time.perf_counter()) > stamps[-1] + 1e-4:
            stamps.append(now)
    start, end = span
    quarter = (end - start) / 4
    # Were the lock of the interpreter held, nothing would be stamped from soon after the start to the end.
    assert any(start + quarter < stamp < end - quarter for stamp in stamps), end - start


def test_the_callers_denormals_are_left_as_they_were(work):
    x, tensor = work
    for threads in (1, 2):
        ops = native.NativeOps(threads)
        ops.linear(x, ops.pack([tensor]))
        assert np.full(64, 1e-38, np.float32) @ np.full(64, 0.1, np.float32) > 0
        assert (np.full(64, 1e-38, np.float32) * np.float32(0.1) > 0).all()


def test_measured_rates_are_rates():
    assert 0.1 < native.measure_stream(1) < 10_000
    assert all(0.1 < native.measure_dot(1, kind) < 100_000 for kind in ("int8", "bf16", "f32"))
