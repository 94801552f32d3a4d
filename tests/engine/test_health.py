"""What the times of an engine's steps say about it."""

from __future__ import annotations

import time

import pytest

from octavo.engine.health import DEFAULT_STALL_AFTER_S, health_of


def test_states_follow_from_the_step_that_runs() -> None:
    now = time.monotonic()
    fresh = health_of(None, None, running=0, waiting=0)
    assert (fresh.state, fresh.ok, fresh.step_s, fresh.since_step_s, fresh.reason) == ("ready", True, None, None, None)
    between = health_of(None, now - 5, running=1, waiting=2)
    assert (between.state, between.running, between.waiting) == ("ready", 1, 2)
    assert between.since_step_s is not None
    assert between.since_step_s >= 5
    stepping = health_of(now - DEFAULT_STALL_AFTER_S / 2, now - 100, running=1, waiting=0)
    assert (stepping.state, stepping.ok) == ("stepping", True)


@pytest.mark.parametrize("limit", [0.5, 1.5])
def test_a_step_counts_as_stalled_after_the_time_given(limit: float) -> None:
    stalled = health_of(time.monotonic() - 2, None, running=1, waiting=0, stall_after_s=limit)
    assert (stalled.state, stalled.ok) == ("stalled", False)
    assert stalled.step_s is not None
    assert stalled.step_s >= 2
    assert f"stall_after_s={limit:g}" in str(stalled.reason)


def test_a_clock_that_is_read_too_early_gives_no_negative_time() -> None:
    ahead = time.monotonic() + 100
    health = health_of(ahead, ahead, running=0, waiting=0)
    assert (health.step_s, health.since_step_s) == (0, 0)
