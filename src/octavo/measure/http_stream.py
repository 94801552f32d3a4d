"""An HTTP client that only writes down what comes, and when: a load generator must not take the server's cores.

While requests run, each piece of an answer costs one append; chunks, events and JSON are taken apart afterwards, when
nothing is being measured. Each request has a connection of its own, which the server closes at its end (RFC 9112, 9.6),
so nothing needs to be parsed to know that an answer is complete.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from octavo.core.errors import ConfigError

__all__ = ["Answer", "Event", "Exchange", "Site", "exchange", "parse"]

_URL = re.compile(r"(https?)://(\[[0-9a-fA-F:.]+\]|[^/:@?#\s]+)(?::(\d{1,5}))?(/[^?#\s]*)?")
_LAST_CHUNK = b"\r\n0\r\n\r\n"


@dataclass(frozen=True)
class Site:
    """Where a server is. path: what its routes begin with, without a slash at its end."""

    tls: bool
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, url: str) -> Site:
        """Raises ConfigError: it is no address of a server."""
        found = _URL.fullmatch(url.strip())
        if found is None or int(found[3] or 1) not in range(1, 65536):
            raise ConfigError(f"{url!r} is no address of a server; write it as http://127.0.0.1:8000 (--url)")
        tls = found[1] == "https"
        return cls(tls, found[2].strip("[]"), int(found[3] or (443 if tls else 80)), (found[4] or "").rstrip("/"))

    @property
    def name(self) -> str:
        """For the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    def request(self, method: str, path: str, body: Any = None, key: str | None = None) -> bytes:
        """The bytes of a request. body: sent as JSON. Raises ConfigError: a header cannot hold the key."""
        if key is not None and not (key.isascii() and key.isprintable()):
            raise ConfigError("the API key must be printable ASCII text (--api-key)")
        content = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {self.path}{path} HTTP/1.1", f"host: {self.name}", "connection: close"]
        lines += ["accept: text/event-stream, application/json", f"content-length: {len(content)}"]
        lines += [] if body is None else ["content-type: application/json"]
        lines += [] if key is None else [f"authorization: Bearer {key}"]
        return "\r\n".join([*lines, "", ""]).encode() + content


@dataclass
class Exchange:
    """One request and the pieces of its answer, with their times by the clock of `exchange`.

    sent_s: when it was written, after connecting. ended: whether the answer is complete, as far as the connection
    tells. error: why there is none.
    """

    sent_s: float = 0.0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    ended: bool = False
    error: str | None = None


class _Recorder(asyncio.Protocol):
    def __init__(self, request: bytes, into: Exchange, clock: Callable[[], float]) -> None:
        self._request, self._into, self._clock = request, into, clock
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._into.sent_s = self._clock()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._into.pieces.append((self._clock(), data))
        if data.endswith(_LAST_CHUNK) or data == _LAST_CHUNK[2:]:
            assert self._transport is not None
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            self._into.error = _reason(error)
        self._into.ended = error is None
        if not self.closed.done():
            self.closed.set_result(None)


async def exchange(
    site: Site,
    request: bytes,
    into: Exchange | None = None,
    *,
    timeout_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Exchange:
    """Send a request and write down its answer; what fails is told by `error`.

    into: filled as the answer comes, so that a run that is broken off has what there was.
    """
    made = Exchange() if into is None else into
    context = ssl.create_default_context() if site.tls else None
    loop, transport = asyncio.get_running_loop(), None
    try:
        async with asyncio.timeout(timeout_s):
            transport, recorder = await loop.create_connection(
                lambda: _Recorder(request, made, clock), site.host, site.port, ssl=context
            )
            await recorder.closed
    except TimeoutError:
        made.error = f"no end within {timeout_s:g} s"
    except OSError as error:
        made.error = _reason(error)
    finally:
        if transport is not None:
            transport.abort()
    return made


@dataclass(frozen=True)
class Event:
    """The data of one server-sent event, and when its last byte came."""

    time_s: float
    data: str


@dataclass(frozen=True)
class Answer:
    """status: 0 if there is no answer. body: without chunks. events: of a text/event-stream.

    complete: all that the server meant to send has come.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    events: list[Event]
    complete: bool

    def json(self) -> Any:
        """The body as JSON; None if it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def parse(made: Exchange) -> Answer:
    """Take an answer apart. What is not HTTP has status 0."""
    raw = b"".join(data for _, data in made.pieces)
    head, separator, rest = raw.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    status = re.match(r"HTTP/1\.[01] (\d{3})", lines[0])
    if not separator or status is None:
        return Answer(0, {}, b"", [], False)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    start = len(head) + len(separator)
    if "chunked" in headers.get("transfer-encoding", "").lower():
        spans, complete = _chunks(raw, start)
    else:
        length = headers.get("content-length")
        spans, complete = [(start, len(raw))], made.ended and (length is None or int(length) <= len(rest))
    body = b"".join(raw[first:last] for first, last in spans)
    events: list[Event] = []
    if headers.get("content-type", "").startswith("text/event-stream"):
        events = _events(body, spans, made.pieces)
    return Answer(int(status[1]), headers, body, events, complete)


def _chunks(raw: bytes, start: int) -> tuple[list[tuple[int, int]], bool]:
    """Where the content of chunks stands (RFC 9112, 7.1), and whether the last one has come."""
    spans: list[tuple[int, int]] = []
    while (line := raw.find(b"\r\n", start)) >= 0:
        size = re.match(rb"[0-9a-fA-F]+", raw[start:line])
        if size is None:
            break
        length = int(size[0], 16)
        if length == 0:
            return spans, True
        spans.append((line + 2, min(line + 2 + length, len(raw))))
        start = line + 2 + length + 2
    return spans, False


def _events(body: bytes, spans: list[tuple[int, int]], pieces: list[tuple[float, bytes]]) -> list[Event]:
    """Each `data:` line with the time of the piece that brought its end."""
    arrived, total = [], 0  # bytes that had come with each piece
    for _, data in pieces:
        total += len(data)
        arrived.append(total)
    filled, total = [], 0  # bytes of the body after each span
    for first, last in spans:
        total += last - first
        filled.append(total)
    events, place = [], 0
    for line in body.splitlines(keepends=True):
        place += len(line)
        if line.startswith(b"data:") and line.endswith(b"\n"):
            span = bisect_left(filled, place)
            offset = spans[span][1] - (filled[span] - place)
            time_s = pieces[bisect_left(arrived, offset)][0]
            events.append(Event(time_s, line[5:].strip().decode("utf-8", "replace")))
    return events


def _reason(error: Exception) -> str:
    """Why a connection failed, without the address, which is the same for all requests."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    if isinstance(error, OSError) and error.errno is not None:
        return (os.strerror(error.errno) if error.errno > 0 else str(error.strerror)).lower()
    return str(error) or type(error).__name__
