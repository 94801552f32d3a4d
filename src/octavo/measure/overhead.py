"""Where the time of a step goes: in the C++ extension, or in Python around it, and there in which stage."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from octavo.core.errors import RequestError
from octavo.engine.step import Engine
from octavo.ops.api import Ops

__all__ = ["StepCost", "measure_steps"]


@dataclass(frozen=True)
class StepCost:
    """Seconds of so many decode steps in all.

    wall_s: the steps; native_s: of it inside calls into the extension, native_calls of them; None with a backend that
    has none. schedule_s, run_s, sample_s, commit_s: the stages, native calls included (they lie in run_s and sample_s).
    """

    steps: int
    wall_s: float
    native_s: float | None
    native_calls: int | None
    schedule_s: float
    run_s: float
    sample_s: float
    commit_s: float

    @property
    def outside_native_s(self) -> float | None:
        """Seconds spent outside the extension: scheduling, sampling, bookkeeping and the calls themselves."""
        return None if self.native_s is None else self.wall_s - self.native_s

    @property
    def outside_native_fraction(self) -> float | None:
        """The same as a share of the steps."""
        return None if self.outside_native_s is None else self.outside_native_s / self.wall_s

    @property
    def bookkeeping_fraction(self) -> float:
        """Share of the steps spent in planning them and in committing their tokens."""
        return (self.schedule_s + self.commit_s) / self.wall_s

    def as_json(self) -> dict[str, Any]:
        """Milliseconds per step, and the shares outside native calls and of schedule and commit."""
        stages = {"step": self.wall_s, "native": self.native_s, "schedule": self.schedule_s, "run": self.run_s}
        stages |= {"sample": self.sample_s, "commit": self.commit_s}
        per_step = {f"{name}_ms": None if s is None else 1e3 * s / self.steps for name, s in stages.items()}
        per_step["outside_native_ms"] = self.outside_native_s and 1e3 * self.outside_native_s / self.steps
        calls = None if self.native_calls is None else self.native_calls / self.steps
        shares = {name: getattr(self, name) for name in ("outside_native_fraction", "bookkeeping_fraction")}
        return per_step | {"native_calls": calls} | shares


def measure_steps(engine: Engine, ops: Ops, steps: int) -> StepCost:
    """Run so many steps of what the engine has to do, with a clock around each native call of its backend."""
    before = engine.stats()
    with _timing(ops) as native:
        start = time.perf_counter()
        for _ in range(steps):
            for group in engine.step():
                if group.error is not None:
                    raise RequestError(f"a step of the benchmark failed: {group.error}")
        wall_s = time.perf_counter() - start
    after = engine.stats()
    return StepCost(
        steps=steps,
        wall_s=wall_s,
        native_s=None if native is None else native.seconds,
        native_calls=None if native is None else native.calls,
        schedule_s=after.schedule_s - before.schedule_s,
        run_s=after.run_s - before.run_s,
        sample_s=after.sample_s - before.sample_s,
        commit_s=after.commit_s - before.commit_s,
    )


def _timing(ops: Ops) -> Any:
    """A context that yields a NativeTime, or None for a backend without the extension."""
    if ops.name != "native":
        return nullcontext()
    from octavo.ops.native import NativeOps
    from octavo.ops.native_time import timed_calls

    assert isinstance(ops, NativeOps)
    return timed_calls(ops)
