"""Waking callers: once for each step, never too seldom, and what becomes of those whose event loop is closed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from helpers.loops import Held, prepared, running
from octavo.core.params import SamplingParams
from octavo.engine.mailbox import Mailbox

PROMPT = [3, 1, 4, 1, 5]


def test_a_change_between_looking_and_waiting_is_not_slept_through() -> None:
    with running() as (loop, engine, _):
        box = Mailbox(prepared(engine, PROMPT, SamplingParams(max_tokens=3)))
        loop.add(box)
        loop.drain().result(30)
        asyncio.run(asyncio.wait_for(box.wait(box.group.version - 1), 30))


def test_callers_of_a_closed_event_loop_do_not_keep_their_requests() -> None:
    async def leave(box: Mailbox) -> None:
        waiting = asyncio.ensure_future(box.wait(box.group.version))
        await asyncio.sleep(0)
        left.append(waiting)

    left: list[Any] = []
    with running() as (loop, engine, oracle):
        held = Held(oracle)
        params = SamplingParams(temperature=0, max_tokens=200)
        box = Mailbox(prepared(engine, PROMPT, params))
        loop.add(box)
        assert held.entered.wait(30)
        events = asyncio.new_event_loop()
        events.run_until_complete(leave(box))
        left[0]._log_destroy_pending = False
        events.close()
        held.pass_()
        while loop._calls.empty():  # the courier finds out in its own time
            pass
        held.pass_(1000)
        loop.drain().result(30)
        assert box.group.sequences[0].finish_reason == "abort"


class Counting(asyncio.SelectorEventLoop):
    """Counts how often another thread wakes it."""

    wakes = 0

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> asyncio.Handle:
        self.wakes += 1
        return super().call_soon_threadsafe(*args, **kwargs)


@pytest.mark.parametrize("final", [False, True])
def test_a_caller_is_woken_once_for_each_step_however_many_requests_it_has(final: bool) -> None:
    async def follow(box: Mailbox) -> None:
        while not box.group.finished:
            await box.wait(box.group.version)

    async def follow_all(boxes: list[Mailbox]) -> None:
        tasks = [asyncio.ensure_future(follow(box)) for box in boxes]
        await asyncio.sleep(0)
        for box in boxes:
            loop.add(box)
        await asyncio.gather(*tasks)

    with running() as (loop, engine, _):
        params = SamplingParams(temperature=0, max_tokens=30)
        boxes = [Mailbox(prepared(engine, [i, *PROMPT], params), final=final) for i in range(8)]
        events = Counting()
        try:
            events.run_until_complete(follow_all(boxes))
        finally:
            events.close()
        # Those who want the end alone are woken by the steps in which one of them ends.
        assert 0 < events.wakes <= (len(boxes) if final else engine.stats().steps)
