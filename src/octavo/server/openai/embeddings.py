"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.server.http import Call, Refusal, Reply
from octavo.server.openai.fields import limited
from octavo.server.openai.prompts import encode_prompts
from octavo.server.openai.schema import Prompts

__all__ = ["EMBEDDING_REFUSED", "EmbeddingRequest", "Embeddings", "embeddings"]

MAX_INPUTS = 2048
"""OpenAI's."""

EMBEDDING_REFUSED = {
    "dimensions": Refusal("vectors cannot be shortened unless a model was trained for it; leave it out"),
}


class EmbeddingRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """pooling: of the final hidden states, whose mean over all tokens or whose last one is scaled to length 1."""

    input: Prompts
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    pooling: Literal["mean", "last"] | None = None
    user: str | None = None


class Embedding(Struct, kw_only=True):
    """embedding: numbers, or base64 of little-endian f32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | Annotated[str, limited(format="byte")]


class EmbeddingUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class Embeddings(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


async def embeddings(call: Call, body: EmbeddingRequest) -> Reply:
    call.record.user = body.user
    model = await call.use_model(body.model)
    prompts = await encode_prompts(model.engine, body.input, MAX_INPUTS, name="input")
    count = sum(len(prompt.ids) for prompt in prompts)
    vectors = await model.engine.embed([prompt.ids for prompt in prompts], pooling=body.pooling or "mean")
    call.record.prompt_tokens = count
    base = body.encoding_format == "base64"
    return Reply(
        Embeddings(
            data=[
                Embedding(index=index, embedding=_base64(vector) if base else vector.tolist())
                for index, vector in enumerate(vectors)
            ],
            model=model.name if body.model is None else body.model,
            usage=EmbeddingUsage(count, count),
        )
    )


def _base64(vector: NDArray[np.float32]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
