"""POST /api/pull: a model is downloaded into the model folder, and served."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path

from msgspec import UNSET, Struct, UnsetType

from octavo.core.errors import DownloadError, ModelNotFoundError, OctavoError
from octavo.formats.references import resolve
from octavo.formats.store import ModelStore
from octavo.server.errors import ApiError
from octavo.server.facts import facts_of
from octavo.server.http import NDJSON, Call, Refusal, Reply, Stream
from octavo.server.models import in_thread
from octavo.server.ollama import line, stream_error
from octavo.server.ollama.names import check_changes, plain_name, put_up, required

__all__ = ["PULL_REFUSED", "PullRequest", "Status", "pull", "without_paths"]

logger = logging.getLogger("octavo.server")

_LOOK_S = 0.1  # how often a stream tells what has come

PULL_REFUSED = {"insecure": Refusal("downloads are checked, and come over HTTPS", (False,))}


class PullRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """model: a short name, or org/repo[:file-or-quant] on Hugging Face. stream: true if left out."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None


class Status(Struct, kw_only=True):
    """total, completed: bytes of what is downloaded now."""

    status: str
    total: int | UnsetType = UNSET
    completed: int | UnsetType = UNSET


async def pull(call: Call, body: PullRequest) -> Reply | Stream:
    check_changes(call.service.config)
    name = plain_name(required(body.model, body.name))
    if body.stream is not False:
        return Stream(_lines(call, name), stream_error, NDJSON)
    *_, last = [each async for each in _statuses(call, name)]
    return Reply(last)


async def _lines(call: Call, name: str) -> AsyncIterator[bytes]:
    async with aclosing(_statuses(call, name)) as statuses:
        async for each in statuses:
            yield line(each)


async def _statuses(call: Call, name: str) -> AsyncGenerator[Status]:
    yield Status(status="pulling manifest")
    if await _is_here(call, name):
        yield Status(status="success")
        return
    progress = _Progress()
    download = asyncio.ensure_future(in_thread(lambda: _fetch(name, progress)))
    try:
        while not download.done():
            await asyncio.wait((download,), timeout=_LOOK_S)
            news = progress.news()
            if news is not None:
                yield news
    finally:
        progress.stop()
    path = download.result()
    stored = next((each for each in await asyncio.to_thread(ModelStore.default().models) if each.path == path), None)
    if stored is not None:
        put_up(call.service.registry, stored, name)
    yield Status(status="success")


async def _is_here(call: Call, name: str) -> bool:
    """Whether it is served already, wherever its file lies."""
    try:
        model = call.service.registry.find(name)
        await asyncio.to_thread(facts_of, model.spec.reference)
    except OctavoError:
        return False
    return True


def _fetch(name: str, progress: _Progress) -> Path:
    """Runs in a thread. Raises ApiError, which tells no path."""
    try:
        return resolve(name, progress=progress, paths=False)
    except ModelNotFoundError as error:
        raise ApiError(404, without_paths(error), param="model", code="model_not_found") from None
    except OctavoError as error:
        logger.error("%s cannot be pulled: %s", name, error)
        status = 424 if isinstance(error, DownloadError) else 400
        raise ApiError(status, without_paths(error), param="model", code="not_pulled") from None


def without_paths(error: Exception) -> str:
    """An error's text for strangers: URLs stay, paths of this machine do not."""
    return re.sub(r"(?<![\w:/.])[~.]{0,2}/[^\s'\",;]+", "...", str(error))


class _Stopped(Exception):
    """Nobody waits for the download any more; what has come is kept to go on from."""


class _Progress:
    """What formats.download reports, looked at from another thread now and then."""

    def __init__(self) -> None:
        self._latest = Status(status="")
        self._told: Status | None = self._latest
        self._stopped = False

    def begin(self, label: str, total_bytes: int | None) -> None:
        total = UNSET if total_bytes is None else total_bytes
        self._latest = Status(status=label if total_bytes is None else f"pulling {label}", total=total)

    def update(self, done_bytes: int) -> None:
        if self._stopped:
            raise _Stopped
        now = self._latest
        self._latest = Status(status=now.status, total=now.total, completed=done_bytes)

    def note(self, message: str) -> None:
        """It may name paths, so it is for the log."""
        logger.info("%s", message)

    def end(self) -> None: ...

    def news(self) -> Status | None:
        """The latest state; None if it has been told."""
        latest = self._latest
        if latest is self._told:
            return None
        self._told = latest
        return latest

    def stop(self) -> None:
        """Give up at the next chunk."""
        self._stopped = True
