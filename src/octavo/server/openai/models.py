"""GET /v1/models and /v1/models/{model}."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from octavo.server.http import Call, Reply
from octavo.server.models import ServedModel

__all__ = ["Model", "ModelList", "list_models", "show_model"]


class Model(Struct, kw_only=True):
    """max_model_len: tokens of its context window; null while it is not loaded. root: the name it was started with."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["octavo"] = "octavo"
    root: str
    max_model_len: int | None


class ModelList(Struct):
    data: list[Model]
    object: Literal["list"] = "list"


async def list_models(call: Call) -> Reply:
    models = call.service.registry.models
    return Reply(ModelList([_shown(model, name) for model in models for name in model.spec.names]))


async def show_model(call: Call) -> Reply:
    name = call.path["model"]
    return Reply(_shown(call.service.registry.find(name), name))


def _shown(model: ServedModel, name: str) -> Model:
    length = None if model.llm is None else model.llm.max_model_len
    return Model(id=name, created=model.created, root=model.name, max_model_len=length)
