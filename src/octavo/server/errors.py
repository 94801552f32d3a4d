"""From whatever went wrong to what a client is told: one `Problem`, which each API spells in its own way.

A problem's text is for strangers: it never holds a traceback, an address or a path. Errors that may hold one (of files
and of code) are replaced by a general sentence, and go to the server's log.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from octavo.core.errors import (
    ContextLengthError,
    EngineClosedError,
    InvalidParameterError,
    MemoryPlanError,
    OctavoError,
    QueueFullError,
    RequestError,
)
from octavo.core.params import SamplingParams

__all__ = ["ApiError", "Dialect", "Problem", "describe", "invalid_body"]

logger = logging.getLogger("octavo.server")

RETRY_AFTER_S = 1
_PARAMETERS = {field.name for field in fields(SamplingParams)} | {"priority", "cache_salt", "messages"}


@dataclass(frozen=True)
class Problem:
    """Why a request was refused or failed.

    status: of HTTP, as the OpenAI API has it; a dialect may use another. param: the field it is about. code: a word for
    programs. retry_after_s: after how long the same request may be taken.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_s: int | None = None


class ApiError(OctavoError):
    """A request that the server itself refuses."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.problem = Problem(status, message, param, code, retry_after_s)

    @classmethod
    def of(cls, problem: Problem) -> ApiError:
        """The error that a problem stands for."""
        error = cls(problem.status, problem.message)
        error.problem = problem
        return error


@dataclass(frozen=True)
class Dialect:
    """How an API spells a problem.

    body: what is sent as JSON. type: of that, for the API's description. status: where it differs from the problem's.
    """

    name: str
    body: Callable[[Problem], Any]
    type: Any = Any
    status: Callable[[Problem], int] = lambda problem: problem.status

    def encode(self, problem: Problem) -> bytes:
        return msgspec.json.encode(self.body(problem))


def describe(error: BaseException) -> Problem:
    """The problem that an exception stands for."""
    if isinstance(error, ApiError):
        return error.problem
    if isinstance(error, ContextLengthError):
        return Problem(400, str(error), None, "context_length_exceeded")
    if isinstance(error, RequestError):
        return Problem(400, str(error), _parameter(error), None)
    if isinstance(error, QueueFullError):
        return Problem(503, str(error), None, "queue_full", RETRY_AFTER_S)
    if isinstance(error, EngineClosedError):
        return Problem(503, "the model takes no requests now; try again later", None, "unavailable", RETRY_AFTER_S)
    if isinstance(error, MemoryPlanError):
        return Problem(503, str(error), None, "out_of_memory", RETRY_AFTER_S)
    if isinstance(error, RecursionError):
        return Problem(400, "the request is nested too deeply", None, "invalid_json")
    logger.error("a request failed", exc_info=error)
    return Problem(500, "the server failed to answer this request; its log says why", None, "internal_error")


def invalid_body(error: msgspec.MsgspecError, refused: Mapping[str, str]) -> Problem:
    """What is wrong with a body that its type does not allow.

    refused: known fields -> why they are not supported. Those of inner objects are written "options.num_gpu", items of
    lists "messages[].images", and one value of a field "messages[].content[].type=image".
    """
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return Problem(400, f"the body is not valid JSON: {_plain_json(text)}", None, "invalid_json")
    what, _, path = text.partition(" - at `")
    param = path.removesuffix("`").removeprefix("$").removeprefix(".") or None
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", what, re.DOTALL)
    if unknown is not None:
        name = unknown[1] if param is None else f"{param}.{unknown[1]}"
        reason = refused.get(_without_numbers(name))
        told = f"{name} is not supported: {reason}" if reason else f"unknown field {name!r:.100}; leave it out"
        return Problem(400, told, name[:100], "unsupported_field" if reason else "unknown_field")
    missing = re.fullmatch(r"Object missing required field `(.*)`", what)
    if missing is not None:
        param = missing[1] if param is None else f"{param}.{missing[1]}"
        return Problem(400, f"{param} is missing; it is required", param, "missing_field")
    value = re.fullmatch(r"Invalid (?:enum )?value '(.*)'", what, re.DOTALL)
    reason = refused.get(f"{_without_numbers(param or '')}={value[1]}") if value is not None else None
    if value is not None and reason is not None:
        return Problem(400, f"{param} {value[1]!r} is not supported: {reason}", param, "unsupported_value")
    where = "the body" if param is None else param
    return Problem(400, f"{where}: {what[:1].lower()}{what[1:].replace('`', '')}", param, "invalid_value")


def _without_numbers(path: str) -> str:
    return re.sub(r"\[\d+\]", "[]", path)


def _plain_json(text: str) -> str:
    if text == "Input data was truncated":
        return "it ends too early, or holds half of a surrogate pair"
    return text.removeprefix("JSON is malformed: ").lower()


def _parameter(error: RequestError) -> str | None:
    """The field that an error names first, as those of SamplingParams do."""
    if not isinstance(error, InvalidParameterError):
        return None
    first = re.match(r"\w+", str(error))
    return first[0] if first is not None and first[0] in _PARAMETERS else None
