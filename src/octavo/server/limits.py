"""How large and how deep a request may be."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np

from octavo.server.errors import ApiError

__all__ = ["check_depth", "read_body"]

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


async def read_body(
    headers: Mapping[str, str], receive: Callable[[], Awaitable[Any]], most: int, timeout_s: float
) -> bytes | None:
    """The body of a request; None if the client is gone before it has come.

    Raises ApiError 413 as soon as it is clear that there are more than `most` bytes, without reading the rest; 408 if
    it takes longer than timeout_s to come.
    """
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > most:
        raise _too_large(most)
    try:
        async with asyncio.timeout(timeout_s):
            return await _read_all(receive, most)
    except TimeoutError:
        raise ApiError(408, f"the body took longer than {timeout_s:g} s to come", code="timeout") from None


async def _read_all(receive: Callable[[], Awaitable[Any]], most: int) -> bytes | None:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise _too_large(most)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def check_depth(body: bytes, most: int) -> None:
    """Raises ApiError 400 if brackets of a JSON text are nested deeper than `most`. Text that is no JSON may pass."""
    if body.count(b"[") + body.count(b"{") <= most:
        return
    brackets = np.frombuffer(_STRING.sub(b"", body).translate(None, _NOT_BRACKETS), np.uint8)
    steps = np.where((brackets == ord("[")) | (brackets == ord("{")), 1, -1)
    depth = int(np.cumsum(steps, dtype=np.int32).max(initial=0))
    if depth > most:
        raise ApiError(400, f"the body is nested {depth} deep; at most {most} is possible", code="invalid_json")


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the body is larger than {most} bytes, which is the most that this server takes")
