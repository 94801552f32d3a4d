"""Streams of one request's states: complete, in order, cheap to follow, and ended when they are left."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Coroutine
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from helpers.engines import Oracle, generate, oracle_engine, queue
from helpers.loops import Held, prepared, running
from octavo.core.errors import EngineClosedError, RequestError
from octavo.core.outputs import CompletionOutput, RequestOutput
from octavo.core.params import SamplingParams
from octavo.engine.loop import EngineLoop
from octavo.engine.step import Engine
from octavo.engine.stream import OutputKind, RequestStream, _News

PROMPT = [3, 1, 4, 1, 5]


def greedy(max_tokens: int = 20, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, **more)


def wait_for(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def stream(
    loop: EngineLoop,
    engine: Engine,
    prompt: list[int],
    params: SamplingParams,
    kind: OutputKind = "cumulative",
    **request: Any,
) -> RequestStream:
    return RequestStream(loop, prepared(engine, prompt, params, **request), kind)


async def collect(states: RequestStream) -> list[RequestOutput]:
    return [state async for state in states]


def added(deltas: list[RequestOutput]) -> list[CompletionOutput]:
    """The completions that deltas add up to."""
    whole: dict[int, CompletionOutput] = {}
    for part in [part for delta in deltas for part in delta.outputs]:
        new = CompletionOutput(part.index, "", [], None if part.logprobs is None else [])
        known = whole.setdefault(part.index, new)
        assert known.finish_reason is None, "something came after a completion's end"
        known.text += part.text
        known.token_ids += part.token_ids
        if known.logprobs is not None and part.logprobs is not None:
            known.logprobs += part.logprobs
        known.cumulative_logprob = part.cumulative_logprob
        known.finish_reason, known.stop_reason = part.finish_reason, part.stop_reason
    return [whole[index] for index in sorted(whole)]


def test_a_state_for_each_token_when_the_caller_keeps_up() -> None:
    async def follow(kind: OutputKind) -> list[RequestOutput]:
        states, got = stream(loop, engine, PROMPT, greedy(6), kind), []
        async for state in states:
            got.append(state)
            held.pass_()
        return got

    with running() as (loop, engine, oracle):
        held = Held(oracle, free=1)
        answer = oracle.answer(PROMPT, 6)
        whole = wait_for(follow("cumulative"))
        assert [state.outputs[0].token_ids for state in whole] == [answer[: i + 1] for i in range(6)]
        new = wait_for(follow("delta"))  # the last state has let one more step pass
        assert [state.outputs[0].token_ids for state in new] == [[token] for token in answer]
        for states in (whole, new):
            assert [state.finished for state in states] == [False] * 5 + [True]
            assert [state.outputs[0].finish_reason for state in states] == [None] * 5 + ["length"]
            assert states[-1].metrics.finished_s is not None
        held.pass_(100)
        (end,) = wait_for(collect(stream(loop, engine, PROMPT, greedy(6), "final")))
        assert end.outputs == whole[-1].outputs == added(new)


def test_what_a_slow_caller_missed_is_one_state() -> None:
    async def follow(kind: OutputKind) -> list[RequestOutput]:
        states = stream(loop, engine, PROMPT, greedy(40), kind, request_id="slow")
        first = await anext(states)
        held.pass_(1000)
        await asyncio.wrap_future(loop.call(lambda engine: None))
        while loop.find("slow") is not None:
            await asyncio.wrap_future(loop.call(lambda engine: None))
        return [first, *await collect(states)]

    with running() as (loop, engine, oracle):
        for kind in ("cumulative", "delta"):
            held = Held(oracle, free=1)
            first, rest = wait_for(follow(kind))  # type: ignore[arg-type]
            assert rest.finished
            answer = oracle.answer(PROMPT, 40)
            assert first.outputs[0].token_ids == answer[:1]
            assert rest.outputs[0].token_ids == (answer if kind == "cumulative" else answer[1:])


@given(
    looks=st.lists(st.booleans(), min_size=30, max_size=30),
    n=st.integers(1, 3),
    logprobs=st.sampled_from([None, 0, 2]),
    prompt_logprobs=st.sampled_from([None, 1]),
    stop=st.booleans(),
    aborted=st.sampled_from([None, 0, 3, 12]),
)
@settings(max_examples=60)
def test_deltas_add_up_to_the_output(
    looks: list[bool], n: int, logprobs: int | None, prompt_logprobs: int | None, stop: bool, aborted: int | None
) -> None:
    engine, oracle = oracle_engine()
    text = "".join(chr(0x100 + token) for token in oracle.answer(PROMPT, 20))
    params = greedy(
        20, n=n, logprobs=logprobs, prompt_logprobs=prompt_logprobs, stop=[text[9:12], text[4] + "~"] if stop else []
    )
    group = queue(engine, PROMPT, params)
    news, deltas = _News(group), []
    for step, look in enumerate(looks):
        if step == aborted:
            engine.abort(group)
        engine.step()
        if look or group.finished:
            deltas.append(news.take())
        if group.finished:
            break
    output = group.output()
    assert added(deltas) == output.outputs
    assert deltas[-1].finished
    assert deltas[-1].metrics == output.metrics
    assert [delta.prompt_logprobs for delta in deltas] == [output.prompt_logprobs, *[None] * (len(deltas) - 1)]
    assert {delta.request_id for delta in deltas} == {output.request_id}


def test_the_states_are_those_between_two_steps() -> None:
    """Read while steps go on as fast as they can, text, tokens and log-probabilities still belong together."""

    async def follow(states: RequestStream) -> None:
        async for state in states:
            for completion in state.outputs:
                assert completion.logprobs is not None
                assert [next(iter(each)) for each in completion.logprobs] == completion.token_ids
                assert completion.text == "".join(chr(0x100 + token) for token in completion.token_ids)
                assert (completion.finish_reason is None) == (len(completion.token_ids) < 200)

    with running() as (loop, engine, _):
        requests = [stream(loop, engine, [i, *PROMPT], greedy(200, logprobs=0, n=2)) for i in range(4)]

        async def follow_all() -> None:
            await asyncio.gather(*map(follow, requests))

        wait_for(follow_all())


def test_a_state_is_read_under_the_lock_of_results() -> None:
    with running() as (loop, engine, _):
        states = stream(loop, engine, PROMPT, greedy(3), "delta")
        assert states._news is not None
        take, held = states._news.take, []

        def reading() -> RequestOutput:
            held.append(engine.results._is_owned())  # type: ignore[attr-defined]
            return take()

        states._news.take = reading  # type: ignore[method-assign]
        wait_for(collect(states))
        assert held
        assert all(held)


@pytest.mark.parametrize("how", ["break", "exception", "cancel", "aclose", "with", "dropped"])
def test_leaving_a_stream_ends_its_request(how: str) -> None:
    async def follow(states: RequestStream) -> None:
        async for _ in states:
            if how == "exception":
                raise KeyError
            if how == "break":
                break

    async def leave() -> None:
        states = stream(loop, engine, PROMPT, greedy(200, n=2), request_id="left")
        if how == "cancel":
            task = asyncio.ensure_future(follow(states))
            await asyncio.sleep(0)
            assert held.entered.wait(30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(StopAsyncIteration):
                await anext(states)
        elif how == "with":
            async with states as entered:
                await anext(entered)
        elif how == "aclose":
            await anext(states)
            await states.aclose()
            await states.aclose()
            assert await collect(states) == []
        elif how == "dropped":
            assert held.entered.wait(30)
            del states
        else:
            task = asyncio.ensure_future(follow(states))
            del states
            await asyncio.wait([task])
            assert isinstance(task.exception(), KeyError) == (how == "exception")

    with running() as (loop, engine, oracle):
        held = Held(oracle, free=0 if how in ("cancel", "dropped") else 1)
        wait_for(leave())
        gc.collect()
        held.pass_()  # the step that may run by now, and no other
        assert loop.call(lambda engine: engine.cache.usage().used_pages).result(30) == 0
        assert loop.find("left") is None


def test_a_cancelled_caller_leaves_others_alone() -> None:
    async def follow() -> None:
        a, b = (stream(loop, engine, [i, *PROMPT], greedy(30)) for i in range(2))
        task, other = asyncio.ensure_future(collect(a)), asyncio.ensure_future(collect(b))
        await asyncio.sleep(0)
        task.cancel()
        assert (await other)[-1].outputs[0].token_ids == oracle.answer([1, *PROMPT], 30)

    with running() as (loop, engine, oracle):
        wait_for(follow())


def test_the_end_of_a_stopped_loop_reaches_its_callers() -> None:
    async def follow() -> list[RequestOutput]:
        states = stream(loop, engine, PROMPT, greedy(200), "delta")
        task = asyncio.ensure_future(collect(states))
        assert await asyncio.to_thread(held.entered.wait, 30)
        loop.stop()
        held.pass_()
        return await task

    with running() as (loop, engine, oracle):
        held = Held(oracle, free=3)
        got = wait_for(follow())
        assert got[-1].finished
        (whole,) = added(got)
        assert (whole.finish_reason, whole.token_ids) == ("abort", oracle.answer(PROMPT, 4))
        with pytest.raises(EngineClosedError, match="closed"):
            stream(loop, engine, PROMPT, greedy())


def test_an_error_is_a_state() -> None:
    def fail(plan: object) -> None:
        raise ValueError("a kernel gave up")

    with running() as (loop, engine, oracle):
        oracle.fail = fail
        (state,) = wait_for(collect(stream(loop, engine, PROMPT, greedy(), "delta")))
        assert state.error == "ValueError: a kernel gave up"
        assert state.outputs[0].finish_reason == "error"
        oracle.fail = lambda plan: None
        states = wait_for(collect(stream(loop, engine, PROMPT, greedy())))
        assert states[-1].outputs[0].token_ids == oracle.answer(PROMPT, 20)


def test_two_tasks_cannot_wait_for_one_request() -> None:
    async def follow() -> None:
        states = stream(loop, engine, PROMPT, greedy())
        first, second = asyncio.ensure_future(anext(states)), asyncio.ensure_future(anext(states))
        with pytest.raises(RuntimeError, match="two tasks wait"):
            await second
        held.pass_(100)
        assert (await first).outputs[0].token_ids

    with running() as (loop, engine, oracle):
        held = Held(oracle)
        wait_for(follow())


def test_an_unknown_kind_is_refused_before_anything_is_queued() -> None:
    with running() as (loop, engine, _):
        with pytest.raises(RequestError, match="output_kind must be one of cumulative, delta, final, not 'all'"):
            stream(loop, engine, PROMPT, greedy(), "all")  # type: ignore[arg-type]
        assert not engine.has_work


def test_event_loops_in_several_threads() -> None:
    failures: list[object] = []

    async def follow(number: int, loop: EngineLoop, engine: Engine, oracle: Oracle) -> None:
        kinds: tuple[OutputKind, ...] = ("cumulative", "delta", "final")
        prompts = [[number, i, *PROMPT] for i in range(6)]
        streams = [stream(loop, engine, prompt, greedy(25), kinds[i % 3]) for i, prompt in enumerate(prompts)]
        for prompt, kind, got in zip(prompts, kinds * 2, await asyncio.gather(*map(collect, streams)), strict=True):
            (whole,) = added(got) if kind == "delta" else got[-1].outputs
            if whole.token_ids != oracle.answer(prompt, 25):
                failures.append((prompt, kind))

    with running(num_pages=40, max_model_len=100) as parts:
        threads = [threading.Thread(target=wait_for, args=(follow(i, *parts),)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_five_hundred_requests_at_once() -> None:
    async def follow() -> list[list[RequestOutput]]:
        streams = [stream(loop, engine, prompt, greedy(8), "delta") for prompt in prompts]
        return await asyncio.gather(*map(collect, streams))

    prompts = [[i % 50, i // 50, *PROMPT] for i in range(500)]
    with running(max_num_seqs=32) as (loop, engine, oracle):
        for prompt, got in zip(prompts, wait_for(follow()), strict=True):
            assert added(got)[0].token_ids == oracle.answer(prompt, 8)
            assert got[-1].finished


def test_sampled_answers_are_those_of_an_engine_without_a_thread() -> None:
    params = SamplingParams(temperature=1.5, seed=7, max_tokens=12, n=3, logprobs=1)
    expected = generate(oracle_engine()[0], [PROMPT], params)[0]
    with running() as (loop, engine, _):
        assert added(wait_for(collect(stream(loop, engine, PROMPT, params, "delta")))) == expected.outputs
