"""The Messages API of Anthropic."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from octavo.server.errors import Dialect, Problem
from octavo.server.sse import named_event

__all__ = ["ANTHROPIC", "OVERLOADED", "ErrorBody", "ErrorDetail", "stream_error"]

OVERLOADED = 529
"""Status of a request that finds the queue full; no standard has it."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}


class ErrorDetail(Struct):
    type: str
    message: str


class ErrorBody(Struct):
    error: ErrorDetail
    type: Literal["error"] = "error"


def _status(problem: Problem) -> int:
    return OVERLOADED if problem.code in ("queue_full", "queue_timeout") else problem.status


def _body(problem: Problem) -> ErrorBody:
    status = _status(problem)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return ErrorBody(ErrorDetail(kind, problem.message))


ANTHROPIC = Dialect("anthropic", _body, ErrorBody, _status)


def stream_error(problem: Problem) -> bytes:
    """The last event of a stream that fails."""
    return named_event("error", _body(problem))
