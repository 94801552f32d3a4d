"""POST /api/copy, /api/create and DELETE /api/delete: what models the folder has.

Like `pull`, only where that is allowed. A copy is another name for the same file.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import msgspec
from msgspec import Struct

from octavo.core.errors import ModelError, OctavoError
from octavo.formats.catalog import CATALOG
from octavo.formats.store import ModelStore, StoredModel
from octavo.server.errors import ApiError
from octavo.server.facts import facts_of
from octavo.server.http import NDJSON, Call, Refusal, Reply, Stream
from octavo.server.ollama import line, stream_error
from octavo.server.ollama.names import check_changes, find_model, plain_name, put_up, required
from octavo.server.ollama.pull import Status, without_paths

__all__ = [
    "CREATE_REFUSED",
    "CopyRequest",
    "CreateRequest",
    "DeleteRequest",
    "copy",
    "create",
    "delete",
    "refuse_upload",
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}(:[A-Za-z0-9][A-Za-z0-9._-]{0,39})?")
_NOT_KEPT = "models are files here and keep no settings; send it with each request"

CREATE_REFUSED: dict[str, Refusal] = {
    "files": Refusal("models are not uploaded; put a .gguf file into the model folder", ({},)),
    "adapters": Refusal("adapters are not in this version", ({},)),
    "quantize": Refusal("models are not quantized by the server; pull another quantization", ("",)),
    "template": Refusal(_NOT_KEPT, ("",)),
    "system": Refusal(_NOT_KEPT, ("",)),
    "parameters": Refusal(_NOT_KEPT, ({},)),
    "messages": Refusal(_NOT_KEPT, ([],)),
    "license": Refusal("a copy has the licence of what it is a copy of", ("", [])),
    "modelfile": Refusal("send model and from"),
    "path": Refusal("files of this machine cannot be named"),
}


class CopyRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """destination: without slashes, perhaps with a tag after a colon."""

    source: str
    destination: str


class CreateRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """model: another name for `from`. stream: true if left out."""

    model: str | None = None
    name: str | None = None
    source: str = msgspec.field(name="from")
    stream: bool | None = None


class DeleteRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    name: str | None = None


async def copy(call: Call, body: CopyRequest) -> Reply:
    await _copy(call, body.source, body.destination)
    return Reply(b"")


async def create(call: Call, body: CreateRequest) -> Reply | Stream:
    new = required(body.model, body.name)
    await _copy(call, body.source, new)
    if body.stream is False:
        return Reply(Status(status="success"))
    return Stream(_created(), stream_error, NDJSON)


async def delete(call: Call, body: DeleteRequest) -> Reply:
    """The file goes, unless the server was started with it or requests use it."""
    check_changes(call.service.config)
    stored = await _stored(call, required(body.model, body.name))
    registry = call.service.registry
    for model in list(registry.models):
        if await asyncio.to_thread(_is_file_of, model.spec.reference, stored):
            await registry.remove(model)
    try:
        await asyncio.to_thread(ModelStore.default().remove, stored.name)
    except ModelError as error:
        raise ApiError(409, without_paths(error), param="model", code="model_in_use") from None
    return Reply(b"")


async def refuse_upload(call: Call) -> Reply:
    raise ApiError(
        400,
        "models are not uploaded, nor published: put a .gguf file into the model folder, or pull it",
        code="unsupported",
    )


async def _created() -> AsyncIterator[bytes]:
    yield line(Status(status="using existing layer"))
    yield line(Status(status="success"))


async def _copy(call: Call, source: str, destination: str) -> None:
    """Raises ApiError."""
    check_changes(call.service.config)
    stored, new = await _stored(call, source), plain_name(destination)
    if _NAME.fullmatch(new) is None or new in CATALOG:
        why = "the short name of another model" if new in CATALOG else "no name for a copy"
        told = (
            f"{destination!r:.90} is {why}; a name has letters, digits, '.', '_' and '-', and perhaps a tag after ':'"
        )
        raise ApiError(400, told, param="destination", code="invalid_model")
    try:
        made = await asyncio.to_thread(ModelStore.default().copy, stored.name, new)
    except ModelError as error:
        raise ApiError(409, without_paths(error), param="destination", code="not_copied") from None
    put_up(call.service.registry, made, new)


async def _stored(call: Call, name: str) -> StoredModel:
    """The model of the folder that a name means. Raises ApiError 404, and 400 for one that lies elsewhere."""
    model = await find_model(call, name)
    for stored in await asyncio.to_thread(ModelStore.default().models):
        if await asyncio.to_thread(_is_file_of, model.spec.reference, stored):
            return stored
    told = f"{model.name} is not in the model folder, so it can be neither copied nor deleted"
    raise ApiError(400, told, param="model", code="not_in_folder")


def _is_file_of(reference: str, stored: StoredModel) -> bool:
    try:
        return facts_of(reference).path == stored.path
    except OctavoError:
        return False
