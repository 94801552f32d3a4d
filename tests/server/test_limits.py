"""Depth of JSON, counted without parsing it; errors as the decoder words them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.errors import ApiError, describe, invalid_body
from octavo.server.limits import check_depth

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=30,
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


def deeper_than(body: bytes, most: int) -> bool:
    try:
        check_depth(body, most)
    except ApiError:
        return True
    return False


@given(VALUES, st.booleans())
def test_depth_is_that_of_the_value(value: Any, ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    depth = depth_of(value)
    assert not deeper_than(body, max(1, depth))
    if depth > 1:
        assert deeper_than(body, depth - 1)


@given(st.binary(max_size=300))
def test_whatever_comes_is_taken_or_refused(body: bytes) -> None:
    deeper_than(body, 4)


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    x: int


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    items: list[Inner]
    name: str = ""


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b'{"items": [], "nam": 1}', "nam", "unknown_field"),
        (b'{"items": [{"x": 1}, {"x": 1, "y": 2}]}', "items[1].y", "unknown_field"),
        (b'{"name": "a"}', "items", "missing_field"),
        (b'{"items": [{}]}', "items[0].x", "missing_field"),
        (b'{"items": [{"x": "1"}]}', "items[0].x", "invalid_value"),
        (b"3", None, "invalid_value"),
        (b"{", None, "invalid_json"),
    ],
)
def test_a_decoders_words_become_a_problem(body: bytes, param: str | None, code: str) -> None:
    with pytest.raises(msgspec.MsgspecError) as caught:
        msgspec.json.decode(body, type=Outer)
    problem = invalid_body(caught.value, {})
    assert (problem.status, problem.param, problem.code) == (400, param, code)
    assert "`" not in problem.message


def test_an_error_of_the_program_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    problem = describe(OSError("/root/secret"))
    assert problem.status == 500
    assert "secret" not in problem.message
    assert "secret" in caplog.text
