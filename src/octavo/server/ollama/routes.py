"""The routes of Ollama's API."""

from __future__ import annotations

from octavo.server.http import NDJSON, Endpoint
from octavo.server.ollama import OLLAMA
from octavo.server.ollama.changes import (
    CREATE_REFUSED,
    CopyRequest,
    CreateRequest,
    DeleteRequest,
    copy,
    create,
    delete,
    refuse_upload,
)
from octavo.server.ollama.embed import (
    EMBED_REFUSED,
    Embedded,
    Embedding,
    EmbeddingRequest,
    EmbedRequest,
    embed,
    embeddings,
)
from octavo.server.ollama.generate import chat, generate
from octavo.server.ollama.listing import (
    SHOW_REFUSED,
    ModelList,
    Running,
    Shown,
    ShowRequest,
    Version,
    ps,
    show,
    tags,
    version,
)
from octavo.server.ollama.pull import PULL_REFUSED, PullRequest, Status, pull
from octavo.server.ollama.schema import (
    CHAT_REFUSED,
    GENERATE_REFUSED,
    ChatLine,
    ChatRequest,
    GenerateLine,
    GenerateRequest,
)

__all__ = ["ollama_routes"]


def ollama_routes() -> list[Endpoint]:
    return [*_generating(), *_listing(), *_changes()]


def _generating() -> list[Endpoint]:
    return [
        Endpoint(
            "/api/generate",
            "POST",
            generate,
            OLLAMA,
            "Continue a prompt, as Ollama has it.",
            body=GenerateRequest,
            reply=GenerateLine,
            refused=GENERATE_REFUSED,
            working=True,
            streams=NDJSON,
        ),
        Endpoint(
            "/api/chat",
            "POST",
            chat,
            OLLAMA,
            "Answer a conversation, as Ollama has it.",
            body=ChatRequest,
            reply=ChatLine,
            refused=CHAT_REFUSED,
            working=True,
            streams=NDJSON,
        ),
        Endpoint(
            "/api/embed",
            "POST",
            embed,
            OLLAMA,
            "Texts as vectors of length 1.",
            body=EmbedRequest,
            reply=Embedded,
            refused=EMBED_REFUSED,
            working=True,
        ),
        Endpoint(
            "/api/embeddings",
            "POST",
            embeddings,
            OLLAMA,
            "One text as a vector of length 1.",
            body=EmbeddingRequest,
            reply=Embedding,
            refused=EMBED_REFUSED,
            working=True,
        ),
    ]


def _listing() -> list[Endpoint]:
    return [
        Endpoint("/api/version", "GET", version, OLLAMA, "The version of the server.", reply=Version),
        Endpoint("/api/tags", "GET", tags, OLLAMA, "The models that there are.", reply=ModelList),
        Endpoint("/api/ps", "GET", ps, OLLAMA, "The models that are loaded.", reply=Running),
        Endpoint(
            "/api/show",
            "POST",
            show,
            OLLAMA,
            "What a model is.",
            body=ShowRequest,
            reply=Shown,
            refused=SHOW_REFUSED,
            statuses=(404,),
        ),
    ]


def _changes() -> list[Endpoint]:
    return [
        Endpoint(
            "/api/pull",
            "POST",
            pull,
            OLLAMA,
            "Download a model.",
            body=PullRequest,
            reply=Status,
            refused=PULL_REFUSED,
            streams=NDJSON,
            statuses=(404, 424),
        ),
        Endpoint(
            "/api/create",
            "POST",
            create,
            OLLAMA,
            "Give a model another name.",
            body=CreateRequest,
            reply=Status,
            refused=CREATE_REFUSED,
            streams=NDJSON,
            statuses=(404, 409),
        ),
        Endpoint(
            "/api/copy",
            "POST",
            copy,
            OLLAMA,
            "Give a model another name.",
            body=CopyRequest,
            statuses=(404, 409),
        ),
        Endpoint("/api/delete", "DELETE", delete, OLLAMA, "Delete a model.", body=DeleteRequest, statuses=(404, 409)),
        Endpoint("/api/push", "POST", refuse_upload, OLLAMA, "Not in this version.", statuses=(400,)),
        Endpoint("/api/blobs/{digest}", "POST", refuse_upload, OLLAMA, "Not in this version.", statuses=(400,)),
    ]
