"""Names of models as Ollama's clients write them, and the models that they mean."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from octavo.formats.store import ModelStore, StoredModel
from octavo.server.auth import LOOPBACK
from octavo.server.config import ModelSpec, ServerConfig
from octavo.server.errors import ApiError
from octavo.server.http import Call
from octavo.server.models import ModelRegistry, ServedModel

__all__ = ["changes_allowed", "check_changes", "find_model", "plain_name", "put_up", "required"]

_OF_ONE_MODEL = ("chat_template", "tokenizer_pre")


def plain_name(name: str) -> str:
    """The name without what Ollama adds to it: a tag where none is meant, and the host of Hugging Face."""
    for host in ("hf.co/", "huggingface.co/"):
        name = name.removeprefix(host)
    return name.removesuffix(":latest")


def required(model: str | None, name: str | None) -> str:
    """Older clients call it name. Raises ApiError 400 if there is neither, or two that differ."""
    given = {each for each in (model, name) if each}
    if len(given) != 1:
        told = "model is missing; it is required" if not given else "model and name differ; give one of them"
        raise ApiError(400, told, param="model", code="missing_field")
    return given.pop()


def changes_allowed(config: ServerConfig) -> bool:
    """Whether clients may change what models there are, and use all of the model folder."""
    return config.host in LOOPBACK if config.allow_model_changes is None else config.allow_model_changes


def check_changes(config: ServerConfig) -> None:
    """Raises ApiError 403 where clients may not change what models there are."""
    if not changes_allowed(config):
        told = "changing models is not allowed here; the server's --model-changes allows it"
        raise ApiError(403, told, code="model_changes_not_allowed")


async def find_model(call: Call, name: str) -> ServedModel:
    """The model of a name: one that is served, or, where that is allowed, one of the model folder, which is put up.

    Raises ApiError 400 (it can be no name), 404 (there is none).
    """
    registry, plain = call.service.registry, plain_name(name)
    served = _served(registry, name) or _served(registry, plain)
    if served is not None:
        return served
    if changes_allowed(call.service.config):
        stored = await asyncio.to_thread(ModelStore.default().find, plain)
        if stored is not None:
            return put_up(registry, stored, plain)
    return registry.find(name)


def put_up(registry: ModelRegistry, stored: StoredModel, *names: str) -> ServedModel:
    """Serve a model of the folder under these names and its own, with the options of the first model."""
    known = _served(registry, names[0])
    if known is not None:
        return known
    free = [name for name in dict.fromkeys([*names, stored.name]) if _served(registry, name) is None]
    first: dict[str, Any] = {**registry.models[0].spec.options}
    options = {name: value for name, value in first.items() if name not in _OF_ONE_MODEL}
    return registry.add(ModelSpec(str(stored.path), tuple(free), options))


def _served(registry: ModelRegistry, name: str) -> ServedModel | None:
    with suppress(ApiError):
        return registry.find(name)
    return None
