"""`AsyncLLM` on tiny model files: what `LLM` gives, for many callers at once."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.engines import BACKENDS
from octavo import LLM, AsyncLLM, SamplingParams
from octavo.core.errors import (
    ConfigError,
    ContextLengthError,
    EngineClosedError,
    InvalidParameterError,
    QueueFullError,
    RequestError,
)
from octavo.core.outputs import RequestOutput
from octavo.engine.stream import OutputKind, RequestStream

GREEDY = SamplingParams(temperature=0, max_tokens=10)
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
PROMPTS = ["the answer is", "in the", "a", "one two three four five six"]


@pytest.fixture(scope="module")
def options(tiny_gguf: Callable[..., Path]) -> dict[str, Any]:
    return {"model": tiny_gguf("llama"), "backend": "reference", "kv_cache_bytes": 1 << 22}


@pytest.fixture(scope="module", params=BACKENDS)
def both(request: pytest.FixtureRequest, options: dict[str, Any]) -> Iterator[tuple[LLM, AsyncLLM]]:
    """The same model for both kinds of callers."""
    given = {**options, "backend": request.param, "threads": 2 if request.param == "native" else None}
    llm = AsyncLLM(**given)
    with LLM(**given) as plain:
        yield plain, llm
    asyncio.run(llm.close())


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 120))


async def collect(stream: RequestStream) -> list[RequestOutput]:
    return [state async for state in stream]


async def last(stream: RequestStream) -> RequestOutput:
    return (await collect(stream))[-1]


def assert_idle(llm: AsyncLLM) -> None:
    stats = llm.stats()
    assert stats.running == stats.waiting == 0
    assert stats.cache.used_pages == 0


@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SamplingParams(temperature=0.8, seed=3, max_tokens=12, n=2, logprobs=2),
        SamplingParams(temperature=0, max_tokens=12, stop=["e", "zz"], prompt_logprobs=1),
    ],
)
def test_many_streams_give_what_one_list_of_prompts_gives(both: tuple[LLM, AsyncLLM], params: SamplingParams) -> None:
    async def generate(kind: OutputKind) -> list[list[RequestOutput]]:
        return await asyncio.gather(*[collect(llm.generate(each, params, output_kind=kind)) for each in PROMPTS])

    plain, llm = both
    expected = plain.generate(PROMPTS, params)
    known = [[state.outputs for state in plain.stream(each, params)] for each in PROMPTS]
    whole, new, end = (run(generate(kind)) for kind in ("cumulative", "delta", "final"))
    for index, output in enumerate(expected):
        assert whole[index][-1].outputs == end[index][0].outputs == output.outputs
        assert whole[index][-1].prompt_logprobs == new[index][0].prompt_logprobs == output.prompt_logprobs
        if params.n == 1:  # else it depends on the load in which step the siblings of the first begin
            assert all(state.outputs in known[index] for state in whole[index])
        assert len(end[index]) == 1
        for completion in output.outputs:
            parts = [part for state in new[index] for part in state.outputs if part.index == completion.index]
            assert "".join(part.text for part in parts) == completion.text
            assert [token for part in parts for token in part.token_ids] == completion.token_ids
            assert parts[-1].finish_reason == completion.finish_reason
    assert_idle(llm)


def test_requests_report_their_times_and_what_was_cached(both: tuple[LLM, AsyncLLM]) -> None:
    async def twice() -> list[RequestOutput]:
        await llm.reset_prefix_cache()
        prompt = list(range(100))
        return [await last(llm.generate(prompt, GREEDY)) for _ in range(2)]

    _, llm = both
    first, again = run(twice())
    for output in (first, again):
        metrics = output.metrics
        assert metrics.queue_s is not None
        assert metrics.prefill_s is not None
        assert metrics.decode_s is not None
        assert metrics.finished_s == pytest.approx(metrics.queue_s + metrics.prefill_s + metrics.decode_s)
    assert (first.metrics.cached_prompt_tokens, again.metrics.cached_prompt_tokens) == (0, 96)
    assert first.outputs == again.outputs
    assert run(llm.reset_prefix_cache()) > 0


def test_chat_answers_one_conversation(both: tuple[LLM, AsyncLLM]) -> None:
    turns = [{"role": "user", "content": "hi"}]
    plain, llm = both
    output = run(last(llm.chat(turns, GREEDY, request_id="talk")))
    assert output.request_id == "talk"
    assert output.prompt_token_ids == llm.encode_chat(turns)
    assert output.outputs == plain.chat(turns, GREEDY)[0].outputs
    with pytest.raises(InvalidParameterError, match="does not read colour"):
        llm.chat(turns, chat_template_kwargs={"colour": 1})


def test_errors_come_before_anything_is_queued(both: tuple[LLM, AsyncLLM]) -> None:
    _, llm = both
    steps = llm.stats().steps
    too_long = [1] * (llm.max_model_len + 5)
    for call, error, message in (
        (lambda: llm.generate(too_long, GREEDY), ContextLengthError, f"has {len(too_long)} tokens"),
        (lambda: llm.generate("", GREEDY), RequestError, "the prompt is empty"),
        (lambda: llm.generate(["a", "b"], GREEDY), RequestError, "one prompt, not 2"),  # type: ignore[list-item]
        (lambda: llm.generate("a", [GREEDY] * 2), RequestError, "2 sampling_params"),  # type: ignore[arg-type]
        (lambda: llm.generate("a", GREEDY, output_kind="all"), RequestError, "output_kind must"),  # type: ignore[arg-type]
        (lambda: llm.generate("a", GREEDY, priority="1"), RequestError, "priority must"),  # type: ignore[arg-type]
        (lambda: llm.generate("a", GREEDY, queue_timeout_s=-1), RequestError, "queue_timeout_s must"),
        (lambda: llm.generate("a", GREEDY, cache_salt=1), RequestError, "cache_salt must"),  # type: ignore[arg-type]
        (
            lambda: llm.generate({"prompt": "a", "cache_salt": "x"}, GREEDY, cache_salt="y"),
            RequestError,
            "cache_salt is 'y', and 'x' in the prompt's dict",
        ),
    ):
        with pytest.raises(error, match=message):
            call()
    assert llm.stats().steps == steps
    assert_idle(llm)


def test_a_salt_keeps_prefixes_apart(both: tuple[LLM, AsyncLLM]) -> None:
    async def cached(prompt: Any, **request: Any) -> int:
        return (await last(llm.generate(prompt, GREEDY, **request))).metrics.cached_prompt_tokens

    async def ask() -> list[int]:
        prompt = list(range(200, 300))
        salted = {"prompt_token_ids": prompt, "cache_salt": "s"}
        return [
            await cached(prompt, cache_salt="s"),
            await cached(prompt),
            await cached(prompt, cache_salt="s"),
            await cached(salted),
            await cached(salted, cache_salt="s"),
        ]

    _, llm = both
    assert run(ask()) == [0, 0, 96, 96, 96]


def test_aborting_by_id_ends_the_stream_and_frees_the_pages(both: tuple[LLM, AsyncLLM]) -> None:
    async def abort() -> None:
        other = asyncio.ensure_future(last(llm.generate("in the", GREEDY)))
        stream = llm.generate("the answer is", LONG, request_id="doomed")
        assert stream.request_id == "doomed"
        await anext(stream)
        with pytest.raises(RequestError, match="'doomed' runs already"):
            llm.generate("a", GREEDY, request_id="doomed")
        assert await llm.abort("doomed")
        assert not await llm.abort("doomed")
        assert not await llm.abort("nobody")
        assert (await last(stream)).outputs[0].finish_reason == "abort"
        assert (await other).outputs == plain.generate("in the", GREEDY)[0].outputs

    plain, llm = both
    run(abort())
    assert_idle(llm)


def test_leaving_streams_frees_their_pages(both: tuple[LLM, AsyncLLM]) -> None:
    async def leave() -> None:
        async for _ in llm.generate("the answer is", LONG):
            break
        task = asyncio.ensure_future(last(llm.generate("in the", LONG)))
        await anext(llm.generate("a", LONG))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await llm.reset_prefix_cache()  # comes after all that has been asked for

    _, llm = both
    run(leave())
    assert_idle(llm)


def test_a_full_queue_and_a_wait_that_is_too_long(options: dict[str, Any]) -> None:
    async def fill() -> None:
        async with AsyncLLM(**options, max_num_seqs=1, max_waiting=1) as llm:
            running = llm.generate("the answer is", LONG)
            await anext(running)
            late = llm.generate("in the", GREEDY, queue_timeout_s=0.001)
            with pytest.raises(QueueFullError, match="max_waiting"):
                llm.generate("a", GREEDY)
            (output,) = await collect(late)
            assert output.outputs[0].finish_reason == "timeout"
            assert "queue_timeout_s" in str(output.error)

    run(fill())


def test_a_smaller_priority_runs_first(options: dict[str, Any]) -> None:
    async def ask() -> list[str]:
        async def follow(stream: RequestStream) -> None:
            await last(stream)
            ended.append(stream.request_id)

        ended: list[str] = []
        async with AsyncLLM(**options, max_num_seqs=1) as llm:
            streams = [llm.generate("a", LONG, request_id=f"p{p}", priority=p) for p in (3, 2, 1)]
            await asyncio.gather(*map(follow, streams))
        return ended

    assert run(ask()) == ["p1", "p2", "p3"]


def test_a_failing_step_is_reported_and_the_next_request_works(options: dict[str, Any]) -> None:
    async def fail() -> None:
        async with AsyncLLM(**options) as llm:
            expected = (await last(llm.generate("a", GREEDY))).outputs
            executor = llm._engine._executor
            sound = executor.run
            executor.run = lambda plan: sound(plan) * float("nan")  # type: ignore[method-assign]
            output = await last(llm.generate("a", GREEDY))
            assert output.outputs[0].finish_reason == "error"
            assert "NaN" in str(output.error)
            executor.run = sound  # type: ignore[method-assign]
            assert (await last(llm.generate("a", GREEDY))).outputs == expected
            assert llm.health().ok

    run(fail())


def test_draining_in_time_and_not(options: dict[str, Any]) -> None:
    async def drain(params: SamplingParams, timeout_s: float | None) -> tuple[bool, list[str | None]]:
        async with await AsyncLLM.load(**options, max_num_seqs=2) as llm:
            tasks = [asyncio.ensure_future(last(llm.generate(prompt, params))) for prompt in PROMPTS]
            draining = asyncio.ensure_future(llm.drain(timeout_s))
            await asyncio.sleep(0)
            with pytest.raises(EngineClosedError, match="drains"):
                llm.generate("a", GREEDY)
            assert llm.health().state == "draining"
            in_time = await draining
            reasons = [(await task).outputs[0].finish_reason for task in tasks]
            assert_idle(llm)
            assert await llm.drain()
            return in_time, reasons

    assert run(drain(GREEDY, None)) == (True, ["length"] * 4)
    in_time, reasons = run(drain(LONG, 0.0))
    assert not in_time
    assert reasons == ["abort"] * 4


def test_closing_ends_what_runs_and_says_so_afterwards(options: dict[str, Any]) -> None:
    async def close() -> None:
        llm = AsyncLLM(**options)
        tasks = [asyncio.ensure_future(last(llm.generate(prompt, LONG))) for prompt in PROMPTS]
        await anext(llm.generate("a", LONG))
        weights = weakref.ref(llm._open().model)
        await asyncio.gather(llm.close(), llm.close())
        await llm.close()
        assert [(await task).outputs[0].finish_reason for task in tasks] == ["abort"] * 4
        gc.collect()
        assert weights() is None
        for use in (
            lambda: llm.generate("a"),
            lambda: llm.chat([{"role": "user", "content": "a"}]),
            lambda: llm.stats(),
            lambda: llm.tokenizer,
        ):
            with pytest.raises(EngineClosedError, match="this AsyncLLM has been closed"):
                use()
        for wait in (llm.abort("x"), llm.drain(), llm.reset_prefix_cache(), llm.pin([1] * 64)):
            with pytest.raises(EngineClosedError, match="this AsyncLLM has been closed"):
                await wait
        assert (llm.health().state, llm.health().ok) == ("closed", False)

    run(close())


def test_dropping_an_open_one_ends_its_thread(options: dict[str, Any]) -> None:
    async def drop() -> None:
        llm = AsyncLLM(**options)
        loop, stream = llm._loop, llm.generate("the answer is", LONG)
        del llm
        await anext(stream)  # which keeps it
        assert loop.health().ok
        del stream
        gc.collect()
        await asyncio.to_thread(loop.join, 60)
        assert loop.health().state == "closed"

    run(drop())


def test_the_death_of_the_thread_is_named_by_later_calls(options: dict[str, Any]) -> None:
    def die(plan: object) -> Any:
        raise SystemExit("out of luck")

    async def kill() -> None:
        llm = AsyncLLM(**options)
        llm._engine._executor.run = die  # type: ignore[method-assign]
        output = await last(llm.generate("a", GREEDY))
        assert output.error == "the engine's thread has failed: SystemExit: out of luck"
        for call in (lambda: llm.generate("a", GREEDY), lambda: llm.chat([{"role": "user", "content": "a"}])):
            with pytest.raises(EngineClosedError, match="out of luck"):
                call()
        with pytest.raises(EngineClosedError, match="out of luck"):
            await llm.reset_prefix_cache()
        assert llm.health().state == "dead"
        await llm.close()

    run(kill())


def test_pinned_prompts_are_pinned_between_steps(both: tuple[LLM, AsyncLLM]) -> None:
    async def pin() -> None:
        prompt = list(range(64))
        await llm.reset_prefix_cache()
        assert await llm.pin(prompt) == 0
        await last(llm.generate([*prompt, 1], GREEDY))
        await llm.reset_prefix_cache()
        assert (await last(llm.generate([*prompt, 2], GREEDY))).metrics.cached_prompt_tokens == 64
        assert await llm.unpin(prompt)
        assert not await llm.unpin(prompt)
        with pytest.raises(ConfigError):
            await llm.pin([1])

    _, llm = both
    run(pin())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_program_ends_while_a_model_runs(backend: str, options: dict[str, Any]) -> None:
    code = f"""
import asyncio, sys
from octavo import AsyncLLM, SamplingParams
llm = AsyncLLM({str(options["model"])!r}, backend={backend!r}, kv_cache_bytes=1 << 22)
async def main():
    streams = [llm.generate([i], SamplingParams(max_tokens=500, ignore_eos=True)) for i in range(4)]
    await anext(streams[0])
    sys.exit(5)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (5, "")
