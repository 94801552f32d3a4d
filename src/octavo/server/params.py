"""Fields of a request into `SamplingParams`, for APIs that spell them otherwise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from octavo.core.errors import InvalidParameterError
from octavo.core.params import SamplingParams
from octavo.server.errors import ApiError

__all__ = ["params_of"]


def params_of(names: Mapping[str, str], **given: Any) -> SamplingParams:
    """SamplingParams of what was given; None: its default.

    names: what the request calls the fields that it calls otherwise. Raises ApiError 400, in the request's words.
    """
    try:
        return SamplingParams(**{name: value for name, value in given.items() if value is not None})
    except InvalidParameterError as error:
        field, _, rest = str(error).partition(" ")
        field = names.get(field, field)
        told = re.sub(rf"\b({'|'.join(names)})\b", lambda found: names[found[0]], rest) if names else rest
        raise ApiError(400, f"{field} {told}", param=field, code="invalid_value") from None
