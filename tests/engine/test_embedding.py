"""Embeddings: what they are, and that they depend on their text alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.engines import BACKENDS, check_idle, load_tiny, queue, run, vocabulary
from octavo import AsyncLLM, SamplingParams
from octavo.core.batch import RaggedBatch
from octavo.core.config import EngineConfig
from octavo.core.errors import ContextLengthError, RequestError
from octavo.engine.embedding import Embedder, EmbeddingJob, Pooling
from octavo.engine.runner import Runner
from octavo.engine.step import Engine
from octavo.models.decoder import Model

TEXTS = [[5, 9, 77], list(range(40, 120)), [7], list(range(200, 233))]


def embedder_for(model: Model, *, num_pages: int = 64, max_model_len: int = 256, batch: int = 64) -> Embedder:
    config = EngineConfig(
        max_model_len=max_model_len,
        num_pages=num_pages,
        block_size=16,
        max_num_seqs=4,
        max_num_batched_tokens=batch,
        kv_cache_dtype="float32",
    )
    kv = model.new_kv(num_pages, 16, "float32")
    return Embedder(Engine(Runner(model, kv), config, vocabulary(model.config.vocab)), model, kv)


def finish(job: EmbeddingJob, most: int = 200) -> list[Any]:
    for _ in range(most):
        if job.advance():
            return job.results
    raise AssertionError("not finished")


@pytest.fixture(scope="module")
def model(tiny_gguf: Callable[..., Path]) -> Model:
    return load_tiny(tiny_gguf("llama"))


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_vector_is_the_pooled_normed_state(tiny_gguf: Callable[..., Path], arch: str, pooling: Pooling) -> None:
    model = load_tiny(tiny_gguf(arch))
    ids = list(range(30, 51))
    (vector,) = finish(embedder_for(model).job([ids], pooling))
    batch = RaggedBatch(
        tokens=np.array(ids, np.int32),
        positions=np.arange(21, dtype=np.int32),
        query_starts=np.array([0, 21], np.int32),
        kv_lens=np.array([21], np.int32),
        page_tables=np.array([[0, 1]], np.int32),
        logit_rows=np.empty(0, np.int32),
    )
    residual = model.hidden(batch, model.new_kv(2, 16, "float32")).astype(np.float64)
    norm = model.decoder.weights.output_norm
    states = residual / np.sqrt((residual**2).mean(1, keepdims=True) + norm.eps) * norm.weight
    pooled = states.mean(0) if pooling == "mean" else states[-1]
    np.testing.assert_allclose(vector, pooled / np.linalg.norm(pooled), atol=1e-5)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_chunks_and_neighbours_change_no_bit(tiny_gguf: Callable[..., Path], backend: str, pooling: Pooling) -> None:
    model = load_tiny(tiny_gguf("llama"), backend)
    alone = [finish(embedder_for(model, batch=128).job([text], pooling))[0] for text in TEXTS]
    for batch in (4, 16, 33):
        embedder = embedder_for(model, batch=batch)
        together = finish(embedder.job(TEXTS, pooling))
        for one, other in zip(alone, together, strict=True):
            # NumPy's own matrix products, which the reference is made of, depend on the number of rows.
            np.testing.assert_allclose(one, other, atol=0 if backend == "native" else 1e-6, rtol=0)
        check_idle(embedder.engine)


def test_answers_that_run_stay_the_same_and_get_on(model: Model) -> None:
    expected = embedder_for(model).engine
    params = SamplingParams(temperature=0, max_tokens=20)
    plain = queue(expected, [1, 2, 3], params)
    run(expected, [plain])

    embedder = embedder_for(model, batch=16)
    group = queue(embedder.engine, [1, 2, 3], params)
    job = embedder.job([list(range(160))], "mean")
    steps = 0
    while not job.advance():
        embedder.engine.step()
        steps += 1
    assert steps >= 8, "the text was not cut into chunks"
    run(embedder.engine, [group])
    assert group.output().outputs[0].token_ids == plain.output().outputs[0].token_ids
    check_idle(embedder.engine)


def test_texts_leave_pages_for_the_longest_sequence(model: Model) -> None:
    """Of 10 pages the longest sequence needs 4: while texts hold pages between steps, it still runs to its end."""
    embedder = embedder_for(model, num_pages=10, max_model_len=64, batch=4)
    job = embedder.job([list(range(64))] * 3, "mean")
    group = queue(embedder.engine, list(range(30)), SamplingParams(temperature=0, max_tokens=34, ignore_eos=True))
    done = False
    for _ in range(200):
        done = done or job.advance()
        assert embedder.held <= 6
        embedder.engine.step()
    assert done
    assert len(group.output().outputs[0].token_ids) == 34
    assert group.output().error is None
    check_idle(embedder.engine)


def test_a_cache_of_one_sequence_embeds_between_steps_at_one_go(model: Model) -> None:
    embedder = embedder_for(model, num_pages=4, max_model_len=64, batch=16)
    job = embedder.job([list(range(60))], "last")
    assert job.advance()
    assert embedder.held == 0
    (wide,) = finish(embedder_for(model).job([list(range(60))], "last"))
    np.testing.assert_allclose(job.results[0], wide, atol=1e-6)


def test_what_is_given_up_gives_back_its_pages(model: Model) -> None:
    embedder = embedder_for(model, batch=16)
    job = embedder.job([list(range(100))], "mean")
    assert not job.advance()
    assert embedder.held == 7
    job.close()
    check_idle(embedder.engine)


def test_bad_texts_are_refused(model: Model) -> None:
    embedder = embedder_for(model)
    with pytest.raises(RequestError, match="input 1 is empty"):
        embedder.job([[1], []], "mean")
    with pytest.raises(RequestError, match="token id 320"):
        embedder.job([[320]], "mean")
    with pytest.raises(ContextLengthError, match=r"300 tokens.*256"):
        embedder.job([[1] * 300], "mean")
    with pytest.raises(RequestError, match="pooling must be one of mean, last"):
        embedder.job([[1]], "max")  # type: ignore[arg-type]


def test_async_llm_embeds_while_it_answers(tiny_gguf: Callable[..., Path]) -> None:
    async def work() -> tuple[list[Any], list[Any]]:
        async with AsyncLLM(tiny_gguf("llama"), backend="reference", kv_cache_bytes=1 << 22) as llm:
            answer = llm.generate([1, 2, 3], SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))
            first = await asyncio.gather(*[llm.embed(TEXTS) for _ in range(4)])
            states = [state async for state in answer]
            assert len(states[-1].outputs[0].token_ids) == 30
            task = asyncio.create_task(llm.embed([list(range(300))] * 20))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            again = await llm.embed(TEXTS)
            assert llm.stats().cache.used_pages == 0
            return first, again

    first, again = _run(work())
    for each in first:
        np.testing.assert_allclose(each, again, atol=1e-6)


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 60))
