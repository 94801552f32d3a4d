"""Routes about the server itself: health, version, load."""

from __future__ import annotations

import importlib.metadata

import msgspec

from octavo.server.http import Call, Endpoint, Reply
from octavo.server.openai import OPENAI

__all__ = ["octavo_version", "system_routes"]


class Health(msgspec.Struct, omit_defaults=True):
    """status: "ok" or "unavailable". reason: why."""

    status: str
    reason: str | None = None


class Version(msgspec.Struct):
    version: str


class ModelLoad(msgspec.Struct):
    """running, waiting: sequences."""

    model: str
    state: str
    running: int
    waiting: int


class Load(msgspec.Struct):
    """server_load: HTTP requests under way, as vLLM counts them."""

    server_load: int
    models: list[ModelLoad]


def system_routes() -> list[Endpoint]:
    return [
        Endpoint("/health", "GET", health, OPENAI, "Whether requests are served.", reply=Health, public=True),
        Endpoint("/version", "GET", version, OPENAI, "The version of the server.", reply=Version),
        Endpoint("/load", "GET", load, OPENAI, "How much is running and waiting.", reply=Load),
    ]


def octavo_version() -> str:
    try:
        return importlib.metadata.version("octavo")
    except importlib.metadata.PackageNotFoundError:
        return "source"


async def health(call: Call) -> Reply:
    reason = call.service.problem()
    return Reply(Health("ok") if reason is None else Health("unavailable", reason), 200 if reason is None else 503)


async def version(call: Call) -> Reply:
    return Reply(Version(octavo_version()))


async def load(call: Call) -> Reply:
    models = []
    for model in call.service.registry.models:
        stats = None if model.llm is None else model.llm.stats()
        running, waiting = (0, 0) if stats is None else (stats.running, stats.waiting)
        models.append(ModelLoad(model.name, model.state, running, waiting))
    return Reply(Load(len(call.service.active) - 1, models))
