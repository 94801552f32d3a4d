"""The API of Ollama.

generate.py   text and conversations, as lines of JSON
embed.py      vectors
listing.py    what there is, what is loaded, what a model is
changes.py    models pulled, copied and deleted
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from octavo.server.errors import Dialect, Problem

__all__ = ["OLLAMA", "ErrorBody", "line", "stream_error"]

_encode = msgspec.json.Encoder().encode


class ErrorBody(Struct):
    error: str


def _body(problem: Problem) -> ErrorBody:
    return ErrorBody(problem.message)


OLLAMA = Dialect("ollama", _body, ErrorBody)


def line(content: Any) -> bytes:
    """One object of a stream."""
    return _encode(content) + b"\n"


def stream_error(problem: Problem) -> bytes:
    """The last line of a stream that fails."""
    return line(_body(problem))
