"""GET /api/tags, /api/ps, /api/version and POST /api/show: what there is, what is loaded, what a model is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal

from msgspec import Struct

from octavo.core.errors import OctavoError
from octavo.formats.store import ModelStore
from octavo.server.errors import ApiError
from octavo.server.facts import ModelFacts, facts_of, metadata_of
from octavo.server.http import Call, Refusal, Reply
from octavo.server.models import ServedModel
from octavo.server.ollama.names import changes_allowed, find_model, required
from octavo.server.system import octavo_version

__all__ = ["SHOW_REFUSED", "ModelList", "Running", "ShowRequest", "Shown", "Version", "ps", "show", "tags", "version"]

NEVER = "9999-12-31T23:59:59Z"

SHOW_REFUSED = {name: Refusal("a model is shown as it is", ("",)) for name in ("system", "template", "options")}


class Version(Struct):
    version: str


class ModelDetails(Struct):
    """family: the architecture. quantization_level: of the file."""

    parent_model: str = ""
    format: str = "gguf"
    family: str = ""
    families: list[str] = []
    parameter_size: str = ""
    quantization_level: str = ""


class ListedModel(Struct, kw_only=True):
    """size: of the file, 0 while it is not downloaded. digest: its SHA-256 if it has been verified, else 32 digits that
    identify its content."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails


class ModelList(Struct):
    models: list[ListedModel]


class RunningModel(Struct, kw_only=True):
    """size: bytes of memory. size_vram: 0, as there is no GPU. expires_at: far away where it is never unloaded.
    context_length: tokens."""

    name: str
    model: str
    size: int
    digest: str
    details: ModelDetails
    expires_at: str
    size_vram: Literal[0] = 0
    context_length: int


class Running(Struct):
    models: list[RunningModel]


class ShowRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """verbose: with the vocabulary and other arrays, in place of which null stands otherwise."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


class Shown(Struct, kw_only=True):
    """template: in Jinja. parameters: of the model while it is loaded, one a line. model_info: the file's metadata."""

    license: str
    modelfile: str
    parameters: str
    template: str
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[Literal["completion"]]
    modified_at: str


async def version(call: Call) -> Reply:
    return Reply(Version(octavo_version()))


async def tags(call: Call) -> Reply:
    """The models that requests may name: those that are served, and those of the model folder where that is allowed."""
    served = [(name, model.spec.reference) for model in call.service.registry.models for name in model.spec.names]
    return Reply(await asyncio.to_thread(_listed, served, changes_allowed(call.service.config)))


async def ps(call: Call) -> Reply:
    loaded = [model for model in call.service.registry.models if model.llm is not None]
    known = await asyncio.to_thread(lambda: [_facts(model.spec.reference) for model in loaded])
    return Reply(
        Running(
            [
                _running(model, facts)
                for model, facts in zip(loaded, known, strict=True)
                if model.llm is not None  # it may be gone by now
            ]
        )
    )


async def show(call: Call, body: ShowRequest) -> Reply:
    model = await find_model(call, required(body.model, body.name))
    try:
        facts = await asyncio.to_thread(facts_of, model.spec.reference)
        information = await asyncio.to_thread(lambda: metadata_of(facts.path, arrays=bool(body.verbose)))
    except OctavoError:
        told = f"the file of {model.name} is not on this machine yet; /api/pull brings it"
        raise ApiError(404, told, param="model", code="model_not_found") from None
    parameters = "\n".join(_parameters(model))
    return Reply(
        Shown(
            license=facts.licence or "",
            modelfile="\n".join(_modelfile(model.name, facts, parameters)),
            parameters=parameters,
            template=facts.template or "",
            details=_details(facts),
            model_info=information,
            capabilities=["completion"],
            modified_at=_time(facts.modified),
        )
    )


def _listed(served: list[tuple[str, str]], folder: bool) -> ModelList:
    """What is served hides what the folder calls the same, as it does when a request names it."""
    models, paths, names = [], set(), {name for name, _ in served}
    for name, reference in served:
        facts = _facts(reference)
        paths.add(None if facts is None else facts.path)
        models.append(_one(name, facts))
    for stored in ModelStore.default().models() if folder else ():
        if stored.path not in paths and stored.name not in names:
            with suppress(OctavoError):  # the folder may hold files that are no models
                models.append(_one(stored.name, facts_of(str(stored.path))))
    return ModelList(models)


def _one(name: str, facts: ModelFacts | None) -> ListedModel:
    return ListedModel(
        name=name,
        model=name,
        modified_at=_time(0.0 if facts is None else facts.modified),
        size=0 if facts is None else facts.size_bytes,
        digest="" if facts is None else facts.digest,
        details=_details(facts),
    )


def _running(model: ServedModel, facts: ModelFacts | None) -> RunningModel:
    expires = None if model.expires is None else time.time() + model.expires - time.monotonic()
    return RunningModel(
        name=model.name,
        model=model.name,
        size=model.engine.memory_plan.total_bytes,
        digest="" if facts is None else facts.digest,
        details=_details(facts),
        expires_at=NEVER if expires is None else _time(expires),
        context_length=model.engine.max_model_len,
    )


def _facts(reference: str) -> ModelFacts | None:
    """None: the file is not here."""
    with suppress(OctavoError):
        return facts_of(reference)
    return None


def _details(facts: ModelFacts | None) -> ModelDetails:
    if facts is None:
        return ModelDetails()
    return ModelDetails(
        family=facts.family,
        families=[facts.family],
        parameter_size=_count(facts.parameters),
        quantization_level=facts.quantization,
    )


def _parameters(model: ServedModel) -> Iterator[str]:
    """What a loaded model runs with."""
    if model.llm is not None:
        tokenizer = model.llm.tokenizer
        yield f"{'num_ctx':<30} {model.llm.max_model_len}"
        for token in sorted(tokenizer.eog_ids):
            yield f'{"stop":<30} "{tokenizer.token_text(token)}"'


def _modelfile(name: str, facts: ModelFacts, parameters: str) -> Iterator[str]:
    yield f"FROM {name}"
    if facts.template is not None:
        yield f'TEMPLATE """{facts.template}"""'
    for each in parameters.splitlines():
        yield f"PARAMETER {' '.join(each.split(maxsplit=1))}"
    if facts.licence is not None:
        yield f'LICENSE """{facts.licence}"""'


def _count(parameters: int) -> str:
    """134515008 -> "134.52M"."""
    if parameters >= 10**9:
        return f"{parameters / 1e9:.1f}B"
    return f"{parameters / 1e6:.2f}M" if parameters >= 10**6 else f"{parameters / 1e3:.2f}K"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
