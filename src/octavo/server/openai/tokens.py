"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Struct

from octavo.server.errors import ApiError
from octavo.server.generation import off_loop
from octavo.server.http import Call, Reply
from octavo.server.openai.fields import TokenId, limited
from octavo.server.openai.prompts import encode_messages, encode_prompts, refuse_request_template
from octavo.server.openai.schema import ChatMessage

__all__ = ["DetokenizeRequest", "Detokenized", "TokenizeRequest", "Tokenized", "detokenize", "tokenize"]


class TokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Either prompt, or messages for which the model's chat template is rendered."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], limited(minItems=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class Tokenized(Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    tokens: Annotated[list[TokenId], limited()]


class Detokenized(Struct):
    prompt: str


_FOR_MESSAGES = ("add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs")


async def tokenize(call: Call, body: TokenizeRequest) -> Reply:
    refuse_request_template(call.service.config.allow_request_chat_template, body.chat_template)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give either prompt or messages", param="prompt", code="invalid_value")
    llm = (await call.use_model(body.model)).engine
    if body.messages is not None:
        _refuse(body, ("add_special_tokens",), "messages: the chat template says which special tokens there are")
        ids = await encode_messages(
            llm,
            body.messages,
            chat_template=body.chat_template,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=bool(body.continue_final_message),
            chat_template_kwargs=body.chat_template_kwargs,
        )
    else:
        _refuse(body, _FOR_MESSAGES, "prompt: no chat template is used for it")
        special = body.add_special_tokens is not False
        ((ids, _),) = await encode_prompts(llm, body.prompt, 1, add_special_tokens=special)
    strings = [llm.tokenizer.token_text(token) for token in ids] if body.return_token_strs else None
    return Reply(Tokenized(len(ids), llm.max_model_len, ids, strings))


async def detokenize(call: Call, body: DetokenizeRequest) -> Reply:
    llm = (await call.use_model(body.model)).engine
    text = await off_loop(len(body.tokens), lambda: llm.tokenizer.decode(body.tokens, skip_special_tokens=False))
    return Reply(Detokenized(text))


def _refuse(body: TokenizeRequest, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if getattr(body, name) is not None:
            raise ApiError(400, f"{name} has no meaning with {why}", param=name, code="invalid_value")
