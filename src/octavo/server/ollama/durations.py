"""keep_alive: how long a model stays loaded after a request."""

from __future__ import annotations

import math
import re

from octavo.server.errors import ApiError

__all__ = ["keep_alive_s"]

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = r"(\d{1,15}(?:\.\d{0,15})?|\.\d{1,15})(ns|us|µs|ms|s|m|h)"
_DURATION = re.compile(rf"([+-]?)((?:{_PART})+)")
_LONGEST_S = 1e9


def keep_alive_s(value: float | str | None) -> float | None:
    """Seconds of a number, or of a text such as "5m" or "1h30m"; below 0: infinity; None: nothing was said.

    Raises ApiError 400.
    """
    if value is None:
        return None
    seconds = _parsed(value) if isinstance(value, str) else float(value)
    if seconds is None or not seconds < _LONGEST_S:
        raise ApiError(
            400,
            f"keep_alive is {value!r:.60}; it must be a number of seconds below 1e9 or a duration such as 5m or 1h30m; "
            "0 unloads the model, and -1 keeps it for ever",
            param="keep_alive",
            code="invalid_value",
        )
    return math.inf if seconds < 0 else seconds


def _parsed(text: str) -> float | None:
    found = _DURATION.fullmatch(text)
    if found is not None:
        seconds = sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(_PART, found[2]))
        return -seconds if found[1] == "-" else seconds
    return float(text) if re.fullmatch(r"[+-]?\d{1,15}(\.\d{1,15})?", text) else None
