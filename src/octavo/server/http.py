"""One HTTP request: read, checked, answered, and ended when its client leaves. ASGI, and no framework.

A route is an `Endpoint`: a function that takes a `Call`, with the body as the type that the endpoint names, and returns
a `Reply`. Bodies are decoded into msgspec structs, which refuse what their types do not allow before anything else
looks at it; openapi.py describes the same types.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from octavo.server.errors import ApiError, Dialect, Problem, describe, invalid_body
from octavo.server.limits import check_depth, read_body
from octavo.server.record import CLIENT_GONE, Record

if TYPE_CHECKING:
    from octavo.server.models import ServedModel
    from octavo.server.service import Service

__all__ = ["EVENTS", "JSON", "NDJSON", "Call", "Endpoint", "Refusal", "Reply", "Stream", "send_problem"]

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

JSON = "application/json"
EVENTS = "text/event-stream"
NDJSON = "application/x-ndjson"


@dataclass
class Call:
    """A request on its way.

    owner: the API key that it came with, or "". headers: names in lower case. path: what the pattern's parts in braces
    matched. stack: is left when the request has been answered or given up; what must end with it is pushed there.
    extra_headers: of the answer, whatever it is.
    """

    service: Service
    headers: Mapping[str, str]
    path: Mapping[str, str]
    query: str
    record: Record
    owner: str = ""
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    extra_headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    async def use_model(self, name: str | None, keep_alive_s: float | None = None) -> ServedModel:
        """A loaded model that stays loaded until the request has ended. Raises ApiError (see ModelRegistry.use)."""
        model = await self.stack.enter_async_context(self.service.registry.use(name, keep_alive_s))
        self.record.model = model.name
        return model

    def new_id(self, prefix: str) -> str:
        """An id for what this call makes, such as "chatcmpl-..."."""
        return f"{prefix}-{self.record.id}"


@dataclass(frozen=True)
class Reply:
    """A whole answer. content: bytes as they are, or what msgspec encodes as JSON."""

    content: Any
    status: int = 200
    media_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Stream:
    """An answer in pieces. on_error: what is sent last if it fails after it has begun."""

    chunks: AsyncIterator[bytes]
    on_error: Callable[[Problem], bytes]
    media_type: str = EVENTS


Handler = Callable[..., Awaitable[Reply | Stream]]


@dataclass(frozen=True)
class Endpoint:
    """What answers one method of one path.

    handler: called with the Call, and with the body if there is a type for it.
    body: the type of the request's body; None: it has none. reply: of the answer's, for the API's description; None: it
    is not JSON. refused: fields of the API that are known and not supported -> why (see `invalid_body` for inner ones).
    public: needs no API key. working: refused while the server drains. statuses: of errors, besides those of all.
    streams: the media type of a streamed answer. told_by: where two APIs have the same path, the field of its own that
    tells one's bodies from the other's; it is the `variant` of the other.
    """

    path: str
    method: str
    handler: Handler
    dialect: Dialect
    summary: str
    body: Any = None
    reply: Any = None
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    public: bool = False
    working: bool = False
    streams: str | None = None
    statuses: tuple[int, ...] = ()
    told_by: str | None = None
    variant: Endpoint | None = None

    async def run(self, call: Call, receive: Receive, send: Send) -> None:
        """Answer a request that has been let in."""
        out, endpoint = _Out(call, send), self
        try:
            if self.working and call.service.draining:
                raise ApiError(503, "the server is shutting down", code="draining", retry_after_s=1)
            body = None
            if self.body is not None:
                config = call.service.config
                content = await read_body(call.headers, receive, config.max_body_bytes, config.receive_timeout_s)
                if content is None:
                    call.record.status = CLIENT_GONE
                    return
                check_depth(content, config.max_json_depth)
                endpoint = self._meant_by(content)
                body = endpoint._decode(content)
            await endpoint._attend(call, body, receive, out)
        except Exception as error:
            await out.fail(endpoint.dialect, describe(error))

    def _meant_by(self, content: bytes) -> Endpoint:
        """The one of two APIs that a body is for."""
        if self.variant is None:
            return self
        try:
            names = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        except msgspec.MsgspecError:
            return self
        return self.variant if self.variant.told_by in names else self

    def _decode(self, content: bytes) -> Any:
        try:
            return msgspec.json.decode(content, type=self.body)
        except msgspec.MsgspecError as error:
            first = error
        without = _without_idle(content, self.refused)
        if without is not None:
            try:
                return msgspec.convert(without, type=self.body)
            except msgspec.MsgspecError as error:
                first = error
        raise ApiError.of(invalid_body(first, {name: each.reason for name, each in self.refused.items()})) from None

    async def _attend(self, call: Call, body: Any, receive: Receive, out: _Out) -> None:
        """Run the handler until it has ended or the client is gone."""
        work = asyncio.ensure_future(self._work(call, body, out))
        gone = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                call.record.error = "the client left"
                call.record.status = call.record.status or CLIENT_GONE
                work.cancel()
                await asyncio.wait((work,))
            elif not work.cancelled():
                work.result()
        finally:
            gone.cancel()
            work.cancel()

    async def _work(self, call: Call, body: Any, out: _Out) -> None:
        limit = call.service.config.request_timeout_s if self.working else None
        try:
            async with asyncio.timeout(limit) as timer, call.stack:
                answer = await (self.handler(call) if self.body is None else self.handler(call, body))
                if isinstance(answer, Reply):
                    await out.whole(answer)
                else:
                    call.record.stream = True
                    await out.pieces(answer)
        except TimeoutError:
            if not timer.expired():
                raise
            told = f"the request took longer than the {limit:g} s that this server allows (--request-timeout)"
            await out.fail(self.dialect, Problem(504, told, None, "timeout"))


@dataclass(frozen=True)
class Refusal:
    """A known field that is not supported. reason: why. idle: values that ask for nothing, besides null."""

    reason: str
    idle: tuple[Any, ...] = ()


class _Out:
    """What is sent to the client; knows how far it is."""

    def __init__(self, call: Call, send: Send) -> None:
        self._call, self._send = call, send
        self._stream: Stream | None = None

    async def whole(self, reply: Reply) -> None:
        content = reply.content if isinstance(reply.content, bytes) else msgspec.json.encode(reply.content)
        headers = [(name.encode(), value.encode("latin-1")) for name, value in reply.headers]
        headers.append((b"content-length", b"%d" % len(content)))
        await self._start(reply.status, reply.media_type, headers)
        await self._send({"type": "http.response.body", "body": content})

    async def pieces(self, stream: Stream) -> None:
        send = self._send
        async with aclosing(stream.chunks) as chunks:  # type: ignore[type-var]
            try:
                async for chunk in chunks:
                    if self._stream is None:
                        self._stream = stream
                        await self._start(200, stream.media_type, [(b"cache-control", b"no-cache")])
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except Exception as error:
                if self._stream is None:
                    raise
                await self._end_with(describe(error))
                return
        if self._stream is None:
            await self._start(200, stream.media_type, [(b"cache-control", b"no-cache")])
        await send({"type": "http.response.body", "body": b""})

    async def fail(self, dialect: Dialect, problem: Problem) -> None:
        if self._stream is not None:
            await self._end_with(problem)
            return
        self._call.record.error = problem.message
        status = dialect.status(problem)
        headers = () if problem.retry_after_s is None else (("retry-after", str(problem.retry_after_s)),)
        if status == 401:
            headers = (*headers, ("www-authenticate", "Bearer"))
        await self.whole(Reply(dialect.encode(problem), status, headers=headers))

    async def _start(self, status: int, media_type: str, headers: list[tuple[bytes, bytes]]) -> None:
        record = self._call.record
        record.status, record.first_byte_s = status, record.elapsed()
        own = [(b"content-type", media_type.encode()), (b"x-request-id", record.id.encode())]
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*own, *headers, *self._call.extra_headers]}
        )

    async def _end_with(self, problem: Problem) -> None:
        assert self._stream is not None
        self._call.record.error = problem.message
        await self._send({"type": "http.response.body", "body": self._stream.on_error(problem)})


async def send_problem(call: Call, dialect: Dialect, problem: Problem, send: Send) -> None:
    """Refuse a request that no endpoint has seen."""
    await _Out(call, send).fail(dialect, problem)


def new_record(method: str, route: str) -> Record:
    return Record(uuid4().hex, method, route, time.monotonic())


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _without_idle(content: bytes, refused: Mapping[str, Refusal]) -> dict[str, Any] | None:
    """The body without those refused fields that ask for nothing; None if that changes nothing."""
    if not refused:
        return None
    try:
        fields = msgspec.json.decode(content)
    except (msgspec.MsgspecError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    dropped = [_drop_idle(fields, name.split("."), refusal) for name, refusal in refused.items()]
    return fields if any(dropped) else None


def _drop_idle(holder: Any, path: list[str], refusal: Refusal) -> bool:
    """Take a field that asks for nothing out of the objects where its path leads; whether there was one.

    path: keys, with [] after those of lists, each item of which is looked at.
    """
    key, *rest = path
    name = key.removesuffix("[]")
    if not isinstance(holder, dict) or name not in holder:
        return False
    value = holder[name]
    if rest:
        inside = value if key.endswith("[]") and isinstance(value, list) else [value]
        dropped = [_drop_idle(each, rest, refusal) for each in inside]
        return any(dropped)
    if value is None or any(value is each or value == each for each in refusal.idle):
        del holder[name]
        return True
    return False
