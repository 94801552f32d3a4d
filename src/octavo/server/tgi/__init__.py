"""The API of Hugging Face's Text Generation Inference.

It knows one model: requests go to the first that is served.
"""

from __future__ import annotations

from msgspec import Struct

from octavo.server.errors import Dialect, Problem
from octavo.server.sse import event

__all__ = ["TGI", "ErrorBody", "stream_error"]

VALIDATION, GENERATION, OVERLOADED = 422, 424, 429

_STATUS_OF_CODE = {
    "queue_full": OVERLOADED,
    "queue_timeout": OVERLOADED,
    "engine_error": GENERATION,
    "invalid_json": 400,
}
_TYPES = {VALIDATION: "validation", GENERATION: "generation", OVERLOADED: "overloaded", 503: "unhealthy"}


class ErrorBody(Struct):
    """error_type: validation, generation, overloaded, incomplete_generation, unhealthy, or request for what any server
    may refuse."""

    error: str
    error_type: str


def _status(problem: Problem) -> int:
    known = _STATUS_OF_CODE.get(problem.code or "")
    return known or (VALIDATION if problem.status == 400 else problem.status)


def _body(problem: Problem) -> ErrorBody:
    kind = "incomplete_generation" if problem.code in ("aborted", "timeout") else _TYPES.get(_status(problem))
    return ErrorBody(problem.message, kind or ("request" if problem.status < 500 else "generation"))


TGI = Dialect("tgi", _body, ErrorBody, _status)


def stream_error(problem: Problem) -> bytes:
    """The last event of a stream that fails."""
    return event(_body(problem))
