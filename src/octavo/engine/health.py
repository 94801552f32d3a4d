"""Whether an engine moves: what a health check wants to know."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

__all__ = ["DEFAULT_STALL_AFTER_S", "EngineState", "Health", "health_of"]

DEFAULT_STALL_AFTER_S = 30.0
"""Seconds. A chunk of a large model's prompt takes some on a slow machine; no step takes half a minute."""

EngineState = Literal["ready", "stepping", "stalled", "draining", "closed", "dead"]


@dataclass(frozen=True)
class Health:
    """An engine at one moment.

    state:
        ready     no step is running, and one will as soon as there is work
        stepping  a step is running
        stalled   a step is running, and has been for longer than a step should take
        draining  it takes no more requests and finishes those it has
        closed    it has been closed
        dead      its thread has ended by an error
    step_s: seconds that the present step has run; None between steps. since_step_s: seconds since the last step ended;
    None before the first. running, waiting: sequences. reason: why it is not ok.
    """

    state: EngineState
    step_s: float | None
    since_step_s: float | None
    running: int
    waiting: int
    reason: str | None = None

    @property
    def ok(self) -> bool:
        """Whether a request sent now would be served."""
        return self.state in ("ready", "stepping")


def health_of(
    step_started: float | None,
    step_ended: float | None,
    *,
    running: int,
    waiting: int,
    stall_after_s: float = DEFAULT_STALL_AFTER_S,
) -> Health:
    """Judge an engine by its steps.

    step_started: when the present step began, by time.monotonic(); None between steps. step_ended: when the last one
    ended. stall_after_s: a step that has run for longer counts as stalled.
    """
    now = time.monotonic()
    step_s = None if step_started is None else max(0.0, now - step_started)
    since_step_s = None if step_ended is None else max(0.0, now - step_ended)
    if step_s is None:
        return Health("ready", step_s, since_step_s, running, waiting)
    if step_s <= stall_after_s:
        return Health("stepping", step_s, since_step_s, running, waiting)
    reason = f"a step has been running for {step_s:.1f} s, and counts as stalled after stall_after_s={stall_after_s:g}"
    return Health("stalled", step_s, since_step_s, running, waiting, reason)
