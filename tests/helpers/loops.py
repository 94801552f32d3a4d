"""Engine threads on Oracles whose steps a test lets pass one by one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from helpers.engines import Oracle, check_idle, oracle_engine
from octavo.engine.loop import EngineLoop
from octavo.engine.plan import StepPlan
from octavo.engine.sequence import Group
from octavo.engine.step import Engine

__all__ = ["Held", "prepared", "running"]


class Held:
    """Lets an Oracle's steps pass one by one; `entered` is set while one is held."""

    def __init__(self, oracle: Oracle, free: int = 0) -> None:
        """free: how many pass without being asked for."""
        self.entered = threading.Event()
        self._permits = threading.Semaphore(free)
        oracle.fail = self._hold

    def pass_(self, steps: int = 1) -> None:
        self._permits.release(steps)

    def _hold(self, plan: StepPlan) -> None:
        if not self._permits.acquire(blocking=False):
            self.entered.set()
            self._permits.acquire()
            self.entered.clear()


@contextmanager
def running(**config: Any) -> Iterator[tuple[EngineLoop, Engine, Oracle]]:
    """A loop on an Oracle; in the end the engine must be idle, its pages free or cached."""
    engine, oracle = oracle_engine(**config)
    loop = EngineLoop(engine)
    try:
        yield loop, engine, oracle
    finally:
        held = getattr(oracle.fail, "__self__", None)
        oracle.fail = lambda plan: None
        if isinstance(held, Held):
            held.pass_()  # a test that failed may have left a step in it
        loop.stop()
        loop.join(30)
    check_idle(engine)


def prepared(engine: Engine, prompt: list[int], params: Any, **request: Any) -> Group:
    """A group that is ready to be queued."""
    return engine.prepare(engine.make_request(prompt, params, **request))
