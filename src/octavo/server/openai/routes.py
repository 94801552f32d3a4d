"""The routes of the OpenAI API."""

from __future__ import annotations

from octavo.server.http import Endpoint
from octavo.server.openai import OPENAI
from octavo.server.openai.chat import CHAT_REFUSED, chat_completions
from octavo.server.openai.models import Model, ModelList, list_models, show_model
from octavo.server.openai.schema import ChatCompletion, ChatRequest

__all__ = ["openai_routes"]


def openai_routes() -> list[Endpoint]:
    return [
        Endpoint("/v1/models", "GET", list_models, OPENAI, "The models that are served.", reply=ModelList),
        Endpoint("/v1/models/{model:path}", "GET", show_model, OPENAI, "One model.", reply=Model, statuses=(400, 404)),
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
            streams=True,
        ),
    ]
