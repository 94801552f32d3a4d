"""GET /info, and the tokens of a text."""

from __future__ import annotations

import asyncio

from octavo.core.errors import OctavoError
from octavo.core.params import MAX_N, MAX_STOP
from octavo.server.errors import ApiError
from octavo.server.facts import facts_of
from octavo.server.generation import off_loop
from octavo.server.http import Call, Reply
from octavo.server.system import octavo_version
from octavo.server.tgi.schema import GenerateRequest, Info
from octavo.server.tgi.tokens import tokenized

__all__ = ["info", "tokenize"]


async def info(call: Call) -> Reply:
    model = call.service.registry.find(None)
    llm = model.llm
    try:
        dtype = (await asyncio.to_thread(facts_of, model.spec.reference)).quantization
    except OctavoError:
        dtype = None
    return Reply(
        Info(
            model_id=model.name,
            model_dtype=dtype,
            max_concurrent_requests=None if llm is None else llm.config.max_num_seqs,
            max_best_of=MAX_N,
            max_stop_sequences=MAX_STOP,
            max_input_tokens=None if llm is None else llm.max_model_len - 1,
            max_total_tokens=None if llm is None else llm.max_model_len,
            max_client_batch_size=1,
            version=octavo_version(),
        )
    )


async def tokenize(call: Call, body: GenerateRequest) -> Reply:
    """The tokens of inputs; parameters would change nothing, and are refused."""
    if body.parameters is not None and body.parameters.truncate is not None:
        raise ApiError(400, "truncate: all tokens are listed", param="truncate", code="invalid_value")
    llm = (await call.use_model(None)).engine
    tokenizer = llm.tokenizer
    return Reply(await off_loop(len(body.inputs), lambda: tokenized(tokenizer, tokenizer.encode(body.inputs))))
