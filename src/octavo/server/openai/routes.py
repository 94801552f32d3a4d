"""The routes of the OpenAI API."""

from __future__ import annotations

from octavo.server.http import EVENTS, Endpoint
from octavo.server.openai import OPENAI
from octavo.server.openai.chat import CHAT_REFUSED, chat_completions
from octavo.server.openai.completions import COMPLETION_REFUSED, completions
from octavo.server.openai.embeddings import EMBEDDING_REFUSED, EmbeddingRequest, Embeddings, embeddings
from octavo.server.openai.models import Model, ModelList, list_models, show_model
from octavo.server.openai.responses import (
    RESPONSE_REFUSED,
    cancel_response,
    create_response,
    delete_response,
    get_response,
)
from octavo.server.openai.responses_schema import Deleted, Response, ResponseRequest
from octavo.server.openai.schema import ChatCompletion, ChatRequest, Completion, CompletionRequest
from octavo.server.openai.tokens import (
    Detokenized,
    DetokenizeRequest,
    Tokenized,
    TokenizeRequest,
    detokenize,
    tokenize,
)

__all__ = ["openai_routes"]


def openai_routes() -> list[Endpoint]:
    return [*_models(), *_generating(), *_responses(), *_tokens()]


def _models() -> list[Endpoint]:
    path = "/v1/models/{model:path}"
    return [
        Endpoint("/v1/models", "GET", list_models, OPENAI, "The models that are served.", reply=ModelList),
        Endpoint(path, "GET", show_model, OPENAI, "One model.", reply=Model, statuses=(400, 404)),
    ]


def _generating() -> list[Endpoint]:
    return [
        Endpoint(
            "/v1/chat/completions",
            "POST",
            chat_completions,
            OPENAI,
            "Answer a conversation.",
            body=ChatRequest,
            reply=ChatCompletion,
            refused=CHAT_REFUSED,
            working=True,
            streams=EVENTS,
        ),
        Endpoint(
            "/v1/completions",
            "POST",
            completions,
            OPENAI,
            "Continue text.",
            body=CompletionRequest,
            reply=Completion,
            refused=COMPLETION_REFUSED,
            working=True,
            streams=EVENTS,
        ),
        Endpoint(
            "/v1/embeddings",
            "POST",
            embeddings,
            OPENAI,
            "Texts as vectors of length 1.",
            body=EmbeddingRequest,
            reply=Embeddings,
            refused=EMBEDDING_REFUSED,
            working=True,
        ),
    ]


def _responses() -> list[Endpoint]:
    one = "/v1/responses/{id}"
    return [
        Endpoint(
            "/v1/responses",
            "POST",
            create_response,
            OPENAI,
            "Answer, and keep the answer to go on from.",
            body=ResponseRequest,
            reply=Response,
            refused=RESPONSE_REFUSED,
            working=True,
            streams=EVENTS,
        ),
        Endpoint(one, "GET", get_response, OPENAI, "A response.", reply=Response, statuses=(404,)),
        Endpoint(one, "DELETE", delete_response, OPENAI, "Forget a response.", reply=Deleted, statuses=(404,)),
        Endpoint(f"{one}/cancel", "POST", cancel_response, OPENAI, "End a response.", reply=Response, statuses=(404,)),
    ]


def _tokens() -> list[Endpoint]:
    return [
        Endpoint(
            "/tokenize",
            "POST",
            tokenize,
            OPENAI,
            "Text or a conversation as token ids.",
            body=TokenizeRequest,
            reply=Tokenized,
            working=True,
        ),
        Endpoint(
            "/detokenize",
            "POST",
            detokenize,
            OPENAI,
            "Token ids as text.",
            body=DetokenizeRequest,
            reply=Detokenized,
            working=True,
        ),
    ]
