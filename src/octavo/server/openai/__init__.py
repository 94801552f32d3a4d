"""The API of OpenAI, with the fields that vLLM adds to it."""

from __future__ import annotations

from msgspec import Struct

from octavo.server.errors import Dialect, Problem
from octavo.server.sse import DONE, event

__all__ = ["OPENAI", "ErrorBody", "ErrorDetail", "stream_error"]

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


class ErrorDetail(Struct):
    """param: the field that it is about. code: a word for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Struct):
    error: ErrorDetail


def _body(problem: Problem) -> ErrorBody:
    kind = _TYPES.get(problem.status, "invalid_request_error" if problem.status < 500 else "server_error")
    return ErrorBody(ErrorDetail(problem.message, kind, problem.param, problem.code))


OPENAI = Dialect("openai", _body, ErrorBody)


def stream_error(problem: Problem) -> bytes:
    """The last events of a stream that fails."""
    return event(_body(problem)) + DONE
