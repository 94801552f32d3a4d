"""Server-sent events (WHATWG HTML, section 9.2), each encoded once, straight to bytes."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["DONE", "event", "named_event"]

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def event(content: Any) -> bytes:
    """`data:` with the content as JSON, which never holds a line break."""
    return b"data: %b\n\n" % _encode(content)


def named_event(name: str, content: Any) -> bytes:
    """The same with a line for the event's name."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(content))
