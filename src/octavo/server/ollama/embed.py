"""POST /api/embed and /api/embeddings: the mean of a text's final hidden states, scaled to length 1."""

from __future__ import annotations

import time
from typing import Annotated

from msgspec import Struct

from octavo.engine.async_llm import AsyncLLM
from octavo.server.errors import ApiError
from octavo.server.generation import off_loop
from octavo.server.http import Call, Refusal, Reply
from octavo.server.ollama.durations import keep_alive_s
from octavo.server.ollama.names import find_model
from octavo.server.ollama.options import check_context, check_threads, context_of
from octavo.server.ollama.schema import OPTIONS_REFUSED, KeepAlive, Options
from octavo.server.openai.fields import limited

__all__ = ["EMBED_REFUSED", "EmbedRequest", "Embedded", "Embedding", "EmbeddingRequest", "embed", "embeddings"]

MAX_INPUTS = 2048

EMBED_REFUSED = {
    **OPTIONS_REFUSED,
    "dimensions": Refusal("vectors cannot be shortened unless a model was trained for it"),
}


class EmbedRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """truncate: true cuts off the ends of texts that are longer than the context; otherwise they are refused."""

    model: str
    input: str | Annotated[list[str], limited(maxItems=MAX_INPUTS)]
    truncate: bool | None = None
    options: Options | None = None
    keep_alive: KeepAlive | None = None


class Embedded(Struct):
    """Times in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class EmbeddingRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Without a prompt the model is loaded, and the vector is empty."""

    model: str
    prompt: str | None = None
    options: Options | None = None
    keep_alive: KeepAlive | None = None


class Embedding(Struct):
    embedding: list[float]


async def embed(call: Call, body: EmbedRequest) -> Reply:
    texts = [body.input] if isinstance(body.input, str) else body.input
    if len(texts) > MAX_INPUTS:
        told = f"input holds {len(texts)} texts, and {MAX_INPUTS} are possible; send fewer at once"
        raise ApiError(400, told, param="input", code="invalid_value")
    started = time.monotonic()
    llm = await _use(call, body)
    loaded_s = time.monotonic() - started
    vectors = await _vectors(call, llm, body.options or Options(), texts, cut=bool(body.truncate))
    return Reply(
        Embedded(
            model=body.model,
            embeddings=vectors,
            total_duration=round(call.record.elapsed() * 1e9),
            load_duration=round(loaded_s * 1e9),
            prompt_eval_count=call.record.prompt_tokens,
        )
    )


async def embeddings(call: Call, body: EmbeddingRequest) -> Reply:
    llm = await _use(call, body)
    vectors = await _vectors(call, llm, body.options or Options(), [body.prompt] if body.prompt else [], cut=False)
    return Reply(Embedding(vectors[0] if vectors else []))


async def _use(call: Call, body: EmbedRequest | EmbeddingRequest) -> AsyncLLM:
    keep = keep_alive_s(body.keep_alive)
    model = await find_model(call, body.model)
    return (await call.use_model(model.name, keep)).engine


async def _vectors(call: Call, llm: AsyncLLM, options: Options, texts: list[str], *, cut: bool) -> list[list[float]]:
    _check(llm, options)
    prompts = await off_loop(sum(map(len, texts)), lambda: [llm.tokenizer.encode(text) for text in texts])
    most = context_of(llm, options)
    if cut:
        prompts = [ids[:most] for ids in prompts]
    for ids in prompts:
        check_context(llm, options, len(ids))
    call.record.prompt_tokens = sum(map(len, prompts))
    return [vector.tolist() for vector in await llm.embed(prompts)] if prompts else []


def _check(llm: AsyncLLM, options: Options) -> None:
    """Raises ApiError for options that embeddings do not depend on."""
    check_threads(llm, options)
    for name in Options.__struct_fields__:
        if name not in ("num_ctx", "num_thread", "num_keep") and getattr(options, name) is not None:
            told = f"options.{name} has no meaning for embeddings; leave it out"
            raise ApiError(400, told, param=f"options.{name}", code="invalid_value")
