"""Same request, same tokens: whatever the neighbours, the chunk size, the cache, preemption, or n.

Log-probabilities are compared bit for bit on the native backend. NumPy's BLAS may round a row differently in another
batch, so on the reference backend they are compared closely and token ids exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.engines import BACKENDS, NATIVE, engine_for, generate, load_tiny
from octavo.core.outputs import CompletionOutput, RequestOutput
from octavo.core.params import SamplingParams
from octavo.models.decoder import Model

RNG = np.random.default_rng(7)
PROMPTS = [RNG.integers(0, 256, n).tolist() for n in (1, 15, 16, 17, 40, 33, 50, 5)]
GREEDY = SamplingParams(temperature=0, max_tokens=12, logprobs=2)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=11, max_tokens=12, logprobs=2, repetition_penalty=1.1)


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def model(request: pytest.FixtureRequest, backend: str, tiny_gguf: Callable[..., Path]) -> Model:
    return load_tiny(tiny_gguf(request.param), backend)


@pytest.fixture(scope="module", params=[GREEDY, SEEDED], ids=["greedy", "seeded"])
def params(request: pytest.FixtureRequest) -> SamplingParams:
    assert isinstance(request.param, SamplingParams)
    return request.param


@pytest.fixture(scope="module")
def alone(model: Model, params: SamplingParams) -> list[RequestOutput]:
    """Each prompt on its own, whole prompt in one step, nothing cached."""
    return [
        generate(engine_for(model, enable_prefix_caching=False, max_num_batched_tokens=256), [p], params)[0]
        for p in PROMPTS
    ]


def assert_same(a: CompletionOutput, b: CompletionOutput, backend: str) -> None:
    assert a.token_ids == b.token_ids
    assert a.logprobs is not None
    assert b.logprobs is not None
    for x, y in zip(a.logprobs, b.logprobs, strict=True):
        if backend == "native":
            assert x == y
        else:
            assert next(iter(x.values())).logprob == pytest.approx(next(iter(y.values())).logprob, abs=1e-3)


def assert_all_same(got: list[RequestOutput], expected: list[RequestOutput], backend: str) -> None:
    for a, b in zip(got, expected, strict=True):
        assert a.error is None
        assert_same(a.outputs[0], b.outputs[0], backend)


@pytest.mark.parametrize("caching", [True, False])
def test_in_one_batch(
    model: Model, params: SamplingParams, alone: list[RequestOutput], backend: str, caching: bool
) -> None:
    assert_all_same(generate(engine_for(model, enable_prefix_caching=caching), PROMPTS, params), alone, backend)


@pytest.mark.parametrize("chunk", [1, 3, 16, 17, 31])
def test_whatever_the_chunk_size(
    model: Model, params: SamplingParams, alone: list[RequestOutput], backend: str, chunk: int
) -> None:
    engine = engine_for(model, max_num_batched_tokens=chunk, max_num_seqs=min(chunk, 4))
    assert_all_same(generate(engine, PROMPTS, params), alone, backend)


def test_from_the_cache(model: Model, params: SamplingParams, alone: list[RequestOutput], backend: str) -> None:
    engine = engine_for(model)
    generate(engine, PROMPTS, params)
    again = generate(engine, PROMPTS, params)
    assert_all_same(again, alone, backend)
    hits = [output.metrics.cached_prompt_tokens for output in again]
    # Full pages of prompt and output are cached, the last token's KV is never computed, one token always is.
    full = [(len(prompt) + 12 - 1) // 16 * 16 for prompt in PROMPTS]
    assert hits == [min(len(prompt) - 1, cached) for prompt, cached in zip(PROMPTS, full, strict=True)]


def test_from_a_copied_part_of_a_page(
    model: Model, params: SamplingParams, alone: list[RequestOutput], backend: str
) -> None:
    engine = engine_for(model)
    longest = PROMPTS[6]
    forked = longest[:25] + PROMPTS[4][:20]
    expected = generate(engine_for(model, enable_prefix_caching=False), [forked], params)
    generate(engine, [longest], params)
    got = generate(engine, [forked], params)
    assert got[0].metrics.cached_prompt_tokens == 25
    assert_all_same(got, expected, backend)
    assert_all_same(generate(engine, [longest], params), [alone[6]], backend)


@pytest.mark.parametrize("caching", [True, False])
def test_when_pages_run_out(
    model: Model, params: SamplingParams, alone: list[RequestOutput], backend: str, caching: bool
) -> None:
    engine = engine_for(model, num_pages=9, max_model_len=100, enable_prefix_caching=caching)
    assert_all_same(generate(engine, PROMPTS, params), alone, backend)
    assert engine.stats().preemptions > 0


@pytest.mark.parametrize("caching", [True, False])
def test_n_completions_are_those_of_n_seeds(model: Model, backend: str, caching: bool) -> None:
    """Completion i of a request is the same whatever n is and however it got the prompt's pages."""
    many = SamplingParams(n=4, temperature=1.0, seed=3, max_tokens=8, logprobs=0)
    few = SamplingParams(n=2, temperature=1.0, seed=3, max_tokens=8, logprobs=0)
    for prompt in (PROMPTS[0], PROMPTS[2], PROMPTS[4]):
        four = generate(engine_for(model, enable_prefix_caching=caching), [prompt], many)[0].outputs
        tight = generate(
            engine_for(model, enable_prefix_caching=caching, num_pages=6, max_model_len=90, max_num_seqs=2),
            [prompt],
            many,
        )[0].outputs
        two = generate(engine_for(model, enable_prefix_caching=False, max_num_seqs=1), [prompt], few)[0].outputs
        assert len({tuple(output.token_ids) for output in four}) > 1
        assert [output.index for output in four] == [0, 1, 2, 3]
        for a, b in zip(four, tight, strict=True):
            assert_same(a, b, backend)
        for a, b in zip(four[:2], two, strict=True):
            assert_same(a, b, backend)


def test_prompt_logprobs(model: Model, backend: str) -> None:
    """The same whether the prompt is computed whole, in chunks, beside others, or with its prefix in the cache."""
    asked = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=1)
    whole = generate(engine_for(model, enable_prefix_caching=False, max_num_batched_tokens=256), [PROMPTS[4]], asked)[0]
    assert whole.prompt_logprobs is not None
    assert whole.prompt_logprobs[0] is None
    assert len(whole.prompt_logprobs) == len(PROMPTS[4])
    engine = engine_for(model, max_num_batched_tokens=9, max_num_seqs=3)
    generate(engine, [PROMPTS[4]], GREEDY)
    for neighbours in ([], PROMPTS[:3]):
        got = generate(engine, [PROMPTS[4], *neighbours], [asked, *[GREEDY] * len(neighbours)])[0]
        assert got.prompt_logprobs is not None
        for token, a, b in zip(PROMPTS[4][1:], got.prompt_logprobs[1:], whole.prompt_logprobs[1:], strict=True):
            assert a is not None
            assert b is not None
            assert next(iter(a)) == token
            assert list(a) == list(b)
            if backend == "native":
                assert a == b
            else:
                assert a[token].logprob == pytest.approx(b[token].logprob, abs=1e-3)


@pytest.mark.slow
@pytest.mark.skipif(not NATIVE, reason="the native extension is not built")
def test_on_a_real_model(real_model: Callable[[str], Path]) -> None:
    """SmolLM2-135M with quantized weights and KV in f16: alone, together in small chunks, cached, preempted."""
    model = load_tiny(real_model("SmolLM2-135M-Instruct.Q4_1.gguf"), "native")
    rng = np.random.default_rng(3)
    prompts = [rng.integers(20, 40_000, n).tolist() for n in (3, 40, 70, 129)]
    asked = [
        SamplingParams(temperature=t, seed=5, top_p=0.9, max_tokens=24, logprobs=1, ignore_eos=True)
        for t in (0, 1, 0, 1)
    ]

    def outputs(**settings: Any) -> list[RequestOutput]:
        engine = engine_for(model, kv_cache_dtype="float16", **settings)
        first = generate(engine, prompts, asked)
        assert_all_same(generate(engine, prompts, asked), first, "native")
        return first

    one_by_one = [
        generate(
            engine_for(model, kv_cache_dtype="float16", enable_prefix_caching=False, max_num_batched_tokens=256), [p], a
        )[0]
        for p, a in zip(prompts, asked, strict=True)
    ]
    assert_all_same(outputs(), one_by_one, "native")
    assert_all_same(outputs(max_num_batched_tokens=7, max_num_seqs=4), one_by_one, "native")
    assert_all_same(outputs(num_pages=12, max_model_len=160), one_by_one, "native")
