"""SamplingParams: every range is held at both ends, by name; lists are normalized; nothing is accepted and ignored."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.errors import InvalidParameterError, OctavoError, RequestError
from octavo.core.params import SamplingParams

NAN, INF = math.nan, math.inf
SWITCHES = ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output")

ACCEPTED = [
    ("n", [1, 128]),
    ("temperature", [0, 0.0, 1, 100.0]),
    ("top_p", [1e-9, 1, 1.0]),
    ("top_k", [0, 1, 2**31 - 1]),
    ("min_p", [0, 1.0]),
    ("presence_penalty", [-2, 2.0]),
    ("frequency_penalty", [-2, 2.0]),
    ("repetition_penalty", [1e-9, 100]),
    ("seed", [None, 0, -(2**63), 2**64 - 1]),
    ("max_tokens", [None, 1, 2**31 - 1]),
    ("min_tokens", [0, 256]),
    ("logprobs", [None, 0, 20]),
    ("prompt_logprobs", [None, 0, 20]),
    ("stop", [("a",), ("a",) * 16]),
    ("stop_token_ids", [(0, 2**31 - 1)]),
    *((name, [True, False]) for name in SWITCHES),
    ("logit_bias", [{}, {0: -100, 2**31 - 1: 100.0}, dict.fromkeys(range(1024), 1.0)]),
]
REFUSED = [
    ("n", [0, 129, 10**5000, -1, 1.0, True, "1", None]),
    ("temperature", [-0.1, 100.1, 10**5000, -(10**400), NAN, INF, True, "1", None]),
    ("top_p", [0, -0.1, 1.01, 2, NAN, False]),
    ("top_k", [-2, 2**31, 1.5, True]),
    ("min_p", [-0.01, 1.01, NAN]),
    ("presence_penalty", [-2.1, 2.1, NAN]),
    ("frequency_penalty", [-2.1, 2.1, -INF]),
    ("repetition_penalty", [0, -1, 100.1, NAN]),
    ("seed", [2**64, -(2**63) - 1, 1.0, "7", True]),
    ("max_tokens", [0, -1, 2**63, 1.0, True]),
    ("min_tokens", [-1, 2**31, 1.0]),
    ("logprobs", [-1, 21, True, 1.0]),
    ("prompt_logprobs", [-1, 21, True]),
    ("stop", [True, 5, {}, ("",), ("a", ""), ("a",) * 17, (1,), ("a", None)]),
    ("stop_token_ids", ["12", 5, True, (-1,), (2**31,), ("a",), (1.0,), (True,)]),
    ("logit_bias", [{-1: 0}, {2**31: 0}, {"1": 0}, {1: 101}, {1: -100.5}, {1: NAN}, {1: None}]),
    ("logit_bias", [dict.fromkeys(range(1025), 1.0), [1], True]),
    *((name, [None, 0, 1, "yes"]) for name in SWITCHES),
]


def pairs(table):
    return [
        pytest.param(name, value, id=f"{name}-{number}")
        for name, values in table
        for number, value in enumerate(values)
    ]


@pytest.mark.parametrize(("name", "value"), pairs(ACCEPTED))
def test_the_ends_of_each_range_are_possible(name: str, value: object) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value


@pytest.mark.parametrize(("name", "value"), pairs(REFUSED))
def test_past_the_range_is_refused_by_name_in_one_line(name: str, value: object) -> None:
    with pytest.raises(InvalidParameterError) as raised:
        SamplingParams(**{name: value})
    assert name in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 200


def test_every_field_is_tested_both_ways() -> None:
    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    assert fields == {name for name, _ in ACCEPTED} == {name for name, _ in REFUSED}


@pytest.mark.parametrize(("given_", "kept"), [("a", ("a",)), (["a", "b"], ("a", "b")), (None, ()), ([], ()), ((), ())])
def test_stop_may_be_one_string_a_list_or_none(given_: object, kept: tuple[str, ...]) -> None:
    assert SamplingParams(stop=given_).stop == kept


@pytest.mark.parametrize("empty", [None, [], ()])
def test_empty_lists_of_ids(empty: object) -> None:
    assert SamplingParams(stop_token_ids=empty).stop_token_ids == ()
    assert SamplingParams(logit_bias=None).logit_bias == {}


def test_an_empty_stop_string_is_not_no_stop() -> None:
    with pytest.raises(InvalidParameterError, match="non-empty"):
        SamplingParams(stop="")


def test_top_k_minus_one_means_all() -> None:
    assert SamplingParams(top_k=-1).top_k == 0


def test_min_tokens_above_max_tokens() -> None:
    with pytest.raises(InvalidParameterError, match="min_tokens 5 is above max_tokens 4"):
        SamplingParams(min_tokens=5, max_tokens=4)
    assert SamplingParams(min_tokens=5, max_tokens=None).min_tokens == 5


def test_greedy_is_temperature_zero() -> None:
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams(temperature=1e-6).greedy


def test_the_callers_dict_is_copied() -> None:
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[2] = 500.0
    assert params.logit_bias == {1: 2.0}


def test_fields_cannot_be_set_and_are_named() -> None:
    params = SamplingParams()
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.n = 2
    with pytest.raises(TypeError):
        SamplingParams(0.5)
    with pytest.raises(TypeError, match="no_such_field"):
        SamplingParams(no_such_field=1)


def test_the_error_is_a_request_error_and_a_value_error() -> None:
    with pytest.raises(InvalidParameterError) as raised:
        SamplingParams(n=0)
    assert isinstance(raised.value, OctavoError | RequestError)
    assert isinstance(raised.value, ValueError)


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.integers())


@given(st.dictionaries(st.sampled_from([f.name for f in dataclasses.fields(SamplingParams)]), ANYTHING, max_size=4))
def test_anything_is_either_good_or_refused(fields) -> None:
    """No other exception and no value out of range comes through, whatever a client sends."""
    try:
        params = SamplingParams(**fields)
    except InvalidParameterError:
        return
    assert 1 <= params.n <= 128
    assert 0 <= params.temperature <= 100
    assert 0 < params.top_p <= 1
    assert all(isinstance(text, str) and text for text in params.stop)
    assert all(isinstance(token, int) for token in params.stop_token_ids)


def test_numbers_of_numpy_become_plain() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),
        max_tokens=np.int64(3),
        seed=np.uint64(2**63),
        stop_token_ids=[np.int32(4)],
        logit_bias={np.int64(5): np.float32(1)},
    )
    assert params == SamplingParams(temperature=0.5, max_tokens=3, seed=2**63, stop_token_ids=[4], logit_bias={5: 1.0})
    plain = (params.temperature, params.max_tokens, params.seed, *params.stop_token_ids, *params.logit_bias)
    assert [type(value) for value in plain] == [float, int, int, int, int]
    with pytest.raises(InvalidParameterError, match="max_tokens"):
        SamplingParams(max_tokens=np.float32(3))
