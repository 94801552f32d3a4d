"""What comes over a connection, cut anywhere, is taken apart with the right times."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.errors import ConfigError
from octavo.measure.http_stream import Answer, Exchange, Site, exchange, parse

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = [b'data: {"a": "\xc3\xa4"}\n\n', b": a remark\n\ndata: two\r\n\r\n", b"data:three\n\n", b"data: [DONE]\n\n"]
SEEN = ['{"a": "ä"}', "two", "three", "[DONE]"]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def made(raw: bytes, cuts: list[int] | None = None, ended: bool = True) -> Exchange:
    """An exchange whose pieces came at 0, 1, 2, ..."""
    edges = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts or [])})
    parts = [raw[a:b] for a, b in pairwise(edges)]
    return Exchange(0.0, [(float(time), part) for time, part in enumerate(parts)], ended)


@given(st.lists(st.integers(0, 1000), max_size=12), st.lists(st.integers(1, 200), max_size=6))
def test_events_come_out_however_they_are_cut(cuts: list[int], chunk_cuts: list[int]) -> None:
    body = b"".join(EVENTS)
    edges = sorted({0, len(body), *(cut % len(body) for cut in chunk_cuts)})
    chunks = b"".join(chunk(body[a:b]) for a, b in pairwise(edges))
    exchanged = made(HEAD + chunks + b"0\r\n\r\n", cuts)
    answer = parse(exchanged)
    assert (answer.status, answer.complete, answer.body) == (200, True, body)
    assert [event.data for event in answer.events] == SEEN
    # An event is there with the first piece after which all of its line has come.
    for event in answer.events:
        upto = b"".join(data for time, data in exchanged.pieces if time <= event.time_s)
        before = b"".join(data for time, data in exchanged.pieces if time < event.time_s)
        assert event.data in [each.data for each in parse(made(upto, ended=False)).events]
        assert event.data not in [each.data for each in parse(made(before, ended=False)).events]


def test_each_event_has_the_time_of_its_piece() -> None:
    exchanged = Exchange(0.0, [(0.5, HEAD), *[(1.0 + n, chunk(event)) for n, event in enumerate(EVENTS)]], True)
    assert [event.time_s for event in parse(exchanged).events] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("raw", "status", "complete"),
    [
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}", 404, True),
        (b"HTTP/1.0 200 OK\r\n\r\nall until the end", 200, True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\nhalf", 200, False),
        (HEAD + chunk(EVENTS[0]), 200, False),
        (HEAD + b"5\r\nda", 200, False),
        (HEAD + b"what is this", 200, False),
        (b"HTTP/1.1 200 OK\r\nno end of the head", 0, False),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", 0, False),
        (b"", 0, False),
    ],
)
def test_answers_that_are_short_broken_or_no_http(raw: bytes, status: int, complete: bool) -> None:
    answer = parse(made(raw))
    assert (answer.status, answer.complete) == (status, complete)
    assert Answer(200, {}, b"{", [], True).json() is None


@pytest.mark.parametrize(
    ("url", "site"),
    [
        ("http://127.0.0.1:8000", Site(False, "127.0.0.1", 8000, "")),
        ("https://example.org/v1/", Site(True, "example.org", 443, "/v1")),
        ("http://[::1]:80/a/b", Site(False, "::1", 80, "/a/b")),
    ],
)
def test_addresses(url: str, site: Site) -> None:
    assert Site.of(url) == site
    assert f"host: {site.name}\r\n".encode() in site.request("GET", "/x")


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://a", "http://", "http://a:99999", "http://a b", "http://a\r\nb"]
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ConfigError, match="--url"):
        Site.of(url)


def test_requests() -> None:
    head, _, body = Site.of("http://a:1/v1").request("POST", "/chat", {"text": "ä"}, "key").partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat HTTP/1.1\r\nhost: a:1\r\n")
    assert b"authorization: Bearer key" in head
    assert f"content-length: {len(body)}".encode() in head
    assert json.loads(body) == {"text": "ä"}
    with pytest.raises(ConfigError, match="--api-key"):
        Site.of("http://a").request("GET", "/", None, "a\r\nx-evil: 1")


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def talk(handler: Handler, timeout_s: float = 20.0) -> Exchange:
    """One exchange with a server on this machine that does what the handler does."""

    async def main() -> Exchange:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        site = Site.of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with server:
            return await exchange(site, site.request("GET", "/"), timeout_s=timeout_s)

    return asyncio.run(main())


def test_a_whole_exchange() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + chunk(EVENTS[0]) + b"0\r\n\r\n")
        await writer.drain()
        await reader.read()  # who has the last chunk leaves
        writer.close()

    exchanged = talk(answer)
    assert (exchanged.error, exchanged.ended) == (None, True)
    assert parse(exchanged).events[0].data == SEEN[0]
    assert 0 < exchanged.sent_s <= exchanged.pieces[0][0]


def test_what_goes_wrong_is_told() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    assert talk(hang, timeout_s=0.05).error == "no end within 0.05 s"
    assert not talk(reset).pieces
    refused = asyncio.run(exchange(Site.of("http://127.0.0.1:9"), b"", timeout_s=5))
    assert refused.error == "connection refused"
