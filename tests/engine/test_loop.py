"""The engine's thread: what it is told between two steps, how it drains, ends and dies, and what its health says."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.engines import Oracle, oracle_engine
from helpers.loops import Held, prepared, running
from octavo.core.errors import ConfigError, EngineClosedError, QueueFullError, RequestError
from octavo.core.outputs import RequestOutput
from octavo.core.params import SamplingParams
from octavo.engine.loop import EngineLoop
from octavo.engine.mailbox import Mailbox
from octavo.engine.plan import StepPlan
from octavo.engine.sequence import Group
from octavo.engine.step import Engine

PROMPT = [3, 1, 4, 1, 5]
TESTS = Path(__file__).parents[1]


def submit(loop: EngineLoop, engine: Engine, prompt: list[int], max_tokens: int = 8, **request: Any) -> Mailbox:
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    box = Mailbox(prepared(engine, prompt, params, **request), final=True)
    loop.add(box)
    return box


def result(box: Mailbox) -> RequestOutput:
    """Wait for a request's end in an event loop of its own."""

    async def wait() -> RequestOutput:
        while not box.group.finished:
            await box.wait(box.group.version)
        return box.group.output()

    return asyncio.run(asyncio.wait_for(wait(), 30))


def reason(box: Mailbox) -> str | None:
    return result(box).outputs[0].finish_reason


def test_requests_run_as_they_come_and_the_thread_sleeps_between() -> None:
    with running() as (loop, engine, oracle):
        for turn in range(3):
            box = submit(loop, engine, [turn, *PROMPT])
            assert result(box).outputs[0].token_ids == oracle.answer([turn, *PROMPT], 8)
            assert loop.find(box.group.request.request_id) is None
        steps = engine.stats().steps
        assert steps == 3 * 8
        loop.call(lambda engine: None).result(30)
        assert engine.stats().steps == steps


def test_a_request_joins_those_that_run() -> None:
    with running() as (loop, engine, oracle):
        held = Held(oracle)
        first = submit(loop, engine, PROMPT, 6)
        held.pass_(3)
        assert held.entered.wait(30)
        second = submit(loop, engine, [7, 7], 6)  # while a step is held: nobody waits for it
        held.pass_(100)
        for box, prompt in ((first, PROMPT), (second, [7, 7])):
            assert result(box).outputs[0].token_ids == oracle.answer(prompt, 6)
        assert max(len(plan) for plan in oracle.plans) == 2


def test_an_abort_frees_the_pages_before_the_next_step() -> None:
    with running() as (loop, engine, oracle):
        held = Held(oracle, free=3)
        doomed, other = submit(loop, engine, PROMPT, 100), submit(loop, engine, [9] * 40, 5)
        assert held.entered.wait(30)
        steps = len(oracle.plans)
        answer = loop.abort_id(doomed.group.request.request_id)
        assert not answer.done()
        held.pass_()
        assert answer.result(30)
        assert held.entered.wait(30)
        assert doomed.group.finished
        assert engine.cache.usage().used_pages == len(other.group.sequences[0].table.pages)  # type: ignore[union-attr]
        held.pass_(100)
        assert reason(doomed) == "abort"
        assert result(other).outputs[0].token_ids == oracle.answer([9] * 40, 5)
        mine = doomed.group.sequences[0].order
        assert all(order != mine for plan in oracle.plans[steps + 1 :] for order, _ in plan)
        assert not loop.abort_id(doomed.group.request.request_id).result(30)


def test_errors_of_a_request_come_from_add_and_leave_nothing_behind() -> None:
    with running(max_waiting=1, max_num_seqs=1) as (loop, engine, oracle):
        held = Held(oracle)
        submit(loop, engine, PROMPT, request_id="a")
        assert held.entered.wait(30)
        with pytest.raises(RequestError, match=r"a request with the id 'a' runs already; .*request_id"):
            submit(loop, engine, PROMPT, request_id="a")
        submit(loop, engine, PROMPT, request_id="b")
        with pytest.raises(QueueFullError, match="max_waiting"):
            submit(loop, engine, PROMPT, request_id="c")
        assert loop.find("c") is None
        held.pass_(100)
        loop.drain().result(30)


def test_an_id_is_free_as_soon_as_its_request_has_ended() -> None:
    with running() as (loop, engine, _):
        step, ended, told = engine.step, threading.Event(), threading.Event()

        def pause() -> list[Group]:
            groups = step()
            if any(group.finished for group in groups):
                ended.set()
                told.wait(30)
            return groups

        engine.step = pause  # type: ignore[method-assign]
        first = submit(loop, engine, PROMPT, 1, request_id="again")
        assert ended.wait(30)
        assert loop.find("again") is None  # before the thread has told anybody
        second = submit(loop, engine, PROMPT, 3, request_id="again")
        told.set()
        assert (reason(first), reason(second)) == ("length", "length")
        assert loop._names == {}


def test_what_callers_see_changes_under_the_lock_of_results_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def guarded(name: str) -> Callable[..., Any]:
        plain = getattr(engine.scheduler, name)

        def change(*args: Any) -> Any:
            seen.add((name, engine.results._is_owned()))  # type: ignore[attr-defined]
            return plain(*args)

        return change

    seen: set[tuple[str, bool]] = set()
    with running() as (loop, engine, _):
        for name in ("commit", "advance", "end"):
            monkeypatch.setattr(engine.scheduler, name, guarded(name))
        box, aborted = submit(loop, engine, PROMPT), submit(loop, engine, [1, *PROMPT], 200)
        loop.abort(aborted.group)
        result(box)
        result(aborted)
    assert seen == {("commit", True), ("advance", True), ("end", True)}


def test_calls_run_between_steps_and_hand_on_errors() -> None:
    def fail(engine: Engine) -> None:
        raise ConfigError("no")

    with running() as (loop, engine, oracle):
        held = Held(oracle)
        submit(loop, engine, PROMPT)
        assert held.entered.wait(30)
        cached, failed = loop.call(lambda engine: engine.reset_prefix_cache()), loop.call(fail)
        assert not cached.done()
        held.pass_(100)
        assert cached.result(30) == 0
        with pytest.raises(ConfigError, match="no"):
            failed.result(30)


def test_an_exception_in_a_step_fails_its_requests_and_the_next_one_works() -> None:
    def fail(plan: StepPlan) -> None:
        raise ValueError("a kernel gave up")

    with running() as (loop, engine, oracle):
        oracle.fail = fail
        boxes = [submit(loop, engine, [i, *PROMPT]) for i in range(3)]
        for box in boxes:
            output = result(box)
            assert output.error == "ValueError: a kernel gave up"
            assert output.outputs[0].finish_reason == "error"
        oracle.fail = lambda plan: None
        assert result(submit(loop, engine, PROMPT)).outputs[0].token_ids == oracle.answer(PROMPT, 8)
        assert loop.health().ok


def test_draining_finishes_what_runs_and_waits_and_takes_no_more() -> None:
    with running(max_num_seqs=1) as (loop, engine, oracle):
        held = Held(oracle)
        boxes = [submit(loop, engine, [i, *PROMPT]) for i in range(3)]
        assert held.entered.wait(30)
        drained, again = loop.drain(), loop.drain()
        with pytest.raises(EngineClosedError, match="drains"):
            submit(loop, engine, PROMPT)
        assert (loop.health().state, loop.health().ok) == ("draining", False)
        assert not drained.done()
        held.pass_(100)
        drained.result(30)
        again.result(30)
        assert [reason(box) for box in boxes] == ["length"] * 3
        loop.drain().result(30)


def test_stopping_ends_every_request_and_is_final() -> None:
    with running(max_num_seqs=1) as (loop, engine, oracle):
        held = Held(oracle)
        boxes = [submit(loop, engine, [i, *PROMPT]) for i in range(3)]
        assert held.entered.wait(30)
        waiting, answer = loop.drain(), loop.call(lambda engine: 1)
        loop.stop()
        loop.stop()
        held.pass_(100)
        loop.ended.result(30)
        waiting.result(30)
        assert answer.result(30) == 1  # it was asked for before
        assert [reason(box) for box in boxes] == ["abort"] * 3
        for use in (lambda: submit(loop, engine, PROMPT), lambda: loop.call(lambda e: 1), lambda: loop.abort_id("0")):
            with pytest.raises(EngineClosedError, match="closed"):
                use()
        loop.abort(boxes[0].group)
        loop.drain().result(30)
        assert (loop.health().state, loop.health().ok) == ("closed", False)


def test_a_held_step_is_seen_as_stalled() -> None:
    with running() as (loop, engine, oracle):
        assert loop.health().state == "ready"
        assert (loop.health().step_s, loop.health().since_step_s) == (None, None)
        held = Held(oracle)
        box = submit(loop, engine, PROMPT)
        assert held.entered.wait(30)
        stalled, fine = loop.health(stall_after_s=1e-9), loop.health(stall_after_s=1000)
        assert (stalled.state, stalled.ok, fine.state, fine.ok) == ("stalled", False, "stepping", True)
        assert stalled.reason is not None
        assert "stall_after_s=1e-09" in stalled.reason
        assert stalled.step_s is not None
        assert stalled.step_s > 0
        assert fine.running == 1
        loop.drain()
        assert loop.health(stall_after_s=1e-9).state == "stalled"  # which matters more than that it drains
        held.pass_(100)
        result(box)
    assert loop.health().since_step_s is None


def test_the_death_of_the_thread_ends_every_request_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    def die(plan: StepPlan) -> None:
        raise SystemExit("out of luck")

    with running(max_num_seqs=1) as (loop, engine, oracle):
        held = Held(oracle)
        boxes = [submit(loop, engine, [i, *PROMPT]) for i in range(3)]
        assert held.entered.wait(30)
        drained = loop.drain()
        oracle.fail = die
        held.pass_(1)
        for box in boxes:
            output = result(box)
            assert output.error == "the engine's thread has failed: SystemExit: out of luck"
            assert output.outputs[0].finish_reason == "error"
        drained.result(30)
        loop.ended.result(30)
        with pytest.raises(EngineClosedError, match="SystemExit: out of luck"):
            submit(loop, engine, PROMPT)
        health = loop.health()
        assert (health.state, health.ok) == ("dead", False)
        assert health.reason is not None
        assert "out of luck" in health.reason
    assert "the engine's thread has failed" in caplog.text


def test_text_that_cannot_be_ended_does_not_keep_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """A detokenizer that fails breaks the step, and then the end of its request; every caller is told all the same."""

    class Broken:
        def append(self, token: int) -> str:
            raise ValueError("no text")

        def flush(self) -> str:
            raise ValueError("no text")

    engine, _ = oracle_engine()
    loop = EngineLoop(engine)
    box, other = (Mailbox(prepared(engine, [i, *PROMPT], SamplingParams())) for i in range(2))
    box.group.sequences[0].text._detokenizer = Broken()
    loop.add(box)
    loop.add(other)
    loop.ended.result(30)
    for each in (box, other):
        assert each.group.error is not None
        assert "ValueError: no text" in each.group.error
        assert each.group.finished
    assert loop.health().state == "dead"


def test_the_engine_that_cannot_be_closed_ends_its_requests(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError("no space")

    with running() as (loop, engine, oracle):
        held = Held(oracle)
        box = submit(loop, engine, PROMPT, 100)
        assert held.entered.wait(30)
        with monkeypatch.context() as patch:
            patch.setattr(engine, "close", fail)
            loop.stop()
            held.pass_(1)
            loop.ended.result(30)
        assert result(box).error == "the engine could not be closed: OSError: no space"
        engine.close()


def test_many_threads_add_and_abort_at_once() -> None:
    failures: list[object] = []

    def client(number: int, loop: EngineLoop, engine: Engine, oracle: Oracle) -> None:
        for turn in range(10):
            prompt = [number, turn, *PROMPT]
            box = submit(loop, engine, prompt, 20)
            if turn % 3 == 0:
                loop.abort(box.group)
            output = result(box).outputs[0]
            if output.token_ids != oracle.answer(prompt, len(output.token_ids)):
                failures.append((number, turn))

    with running(num_pages=20, max_model_len=100) as parts:
        threads = [threading.Thread(target=client, args=(i, *parts)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


EXIT = """
import sys, threading
from helpers.engines import oracle_engine
from octavo.core.params import SamplingParams
import octavo.engine.loop as module
from octavo.engine.mailbox import Mailbox

engine, oracle = oracle_engine(max_model_len=1000)
loop = module.EngineLoop(engine)
started = threading.Event()
def note(plan):
    started.set()
    HOLD
oracle.fail = note
box = Mailbox(engine.prepare(engine.make_request([1, 2], SamplingParams(max_tokens=900))))
loop.add(box)
started.wait()
END
"""


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise KeyError(1)"])
@pytest.mark.parametrize("hold", ["pass", "module._EXIT_WAIT_S = 0.1; threading.Event().wait()"])
def test_the_interpreter_exits_with_requests_running(end: str, hold: str) -> None:
    code = EXIT.replace("HOLD", hold).replace("END", end)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=TESTS, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == {"": 0, "sys.exit(3)": 3}.get(end, 1), done.stderr
    assert ("KeyError: 1" in done.stderr) if "raise" in end else done.stderr == ""


def test_no_finalizer_can_lock_up_the_thread() -> None:
    """A stream that is dropped while its own thread adds another one ends up in `abort` in the middle of `add`."""
    with running() as (loop, engine, _):
        dropped = submit(loop, engine, PROMPT, 200)
        add: Callable[[Any], None] = engine.add

        def adding(group: Any) -> None:
            loop.abort(dropped.group)
            assert not loop.abort_id("none").done()
            add(group)

        engine.add = adding  # type: ignore[method-assign]
        other = submit(loop, engine, [7, 7])
        assert reason(other) == "length"
        assert reason(dropped) in ("abort", "length")
