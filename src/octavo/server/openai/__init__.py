"""The API of OpenAI, with the fields that vLLM adds to it."""

from __future__ import annotations

from typing import Any

from octavo.server.errors import Dialect, Problem
from octavo.server.sse import DONE, event

__all__ = ["OPENAI", "stream_error"]

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


def _body(problem: Problem) -> dict[str, Any]:
    kind = _TYPES.get(problem.status, "invalid_request_error" if problem.status < 500 else "server_error")
    return {"error": {"message": problem.message, "type": kind, "param": problem.param, "code": problem.code}}


OPENAI = Dialect("openai", _body)


def stream_error(problem: Problem) -> bytes:
    """The last events of a stream that fails."""
    return event(_body(problem)) + DONE
