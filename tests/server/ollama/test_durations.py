"""keep_alive."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.errors import ApiError
from octavo.server.ollama.durations import keep_alive_s


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (0, 0),
        (300, 300),
        (1.5, 1.5),
        (-1, math.inf),
        ("0", 0),
        ("0s", 0),
        ("5m", 300),
        ("1h30m", 5400),
        ("1h0m0.5s", 3600.5),
        ("100ms", 0.1),
        ("250us", 250e-6),
        ("1µs", 1e-6),
        ("+2m", 120),
        ("-1", math.inf),
        ("-1m", math.inf),
        ("300", 300),
        (".5h", 1800),
    ],
)
def test_numbers_and_durations(value: float | str | None, seconds: float | None) -> None:
    assert keep_alive_s(value) == (seconds if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    "value", ["", "soon", "5 m", "5x", "m", "1h-5m", "--1", "1e3", "9" * 400, "inf", "nan", 1e9, math.inf]
)
def test_anything_else_is_refused(value: float | str) -> None:
    with pytest.raises(ApiError, match=r"^keep_alive is") as caught:
        keep_alive_s(value)
    assert caught.value.problem.param == "keep_alive"


@given(st.integers(0, 10**5), st.integers(0, 59), st.integers(0, 59))
def test_parts_add_up(hours: int, minutes: int, seconds: int) -> None:
    assert keep_alive_s(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds


@given(st.text(max_size=20))
def test_any_text_is_a_time_or_refused(text: str) -> None:
    try:
        seconds = keep_alive_s(text)
    except ApiError:
        return
    assert seconds is not None
    assert seconds >= 0
