"""Prompts in every form that callers use, and clear words for those that are none."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest

from octavo.core.errors import RequestError
from octavo.core.params import SamplingParams
from octavo.engine.inputs import ChatTokens, PromptInput, conversations, pair_params, parse


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("hi", [PromptInput("hi", None)]),
        (["a", "b"], [PromptInput("a", None), PromptInput("b", None)]),
        ([1, 2], [PromptInput(None, [1, 2])]),
        ((np.int32(4),), [PromptInput(None, [4])]),
        (np.array([1, 2]), [PromptInput(None, [1, 2])]),
        (np.array([[1, 2], [3, 4]], np.uint16), [PromptInput(None, [1, 2]), PromptInput(None, [3, 4])]),
        ([np.array([1]), array("i", [2])], [PromptInput(None, [1]), PromptInput(None, [2])]),
        (range(3), [PromptInput(None, [0, 1, 2])]),
        ((text for text in ("a", "b")), [PromptInput("a", None), PromptInput("b", None)]),
        ([[1], [2, 3]], [PromptInput(None, [1]), PromptInput(None, [2, 3])]),
        ([[]], [PromptInput(None, [])]),
        ([], []),
        ({"prompt": "x", "cache_salt": "s"}, [PromptInput("x", None, "s")]),
        ([{"prompt_token_ids": [5], "prompt": "five"}, "y"], [PromptInput("five", [5]), PromptInput("y", None)]),
        (ChatTokens([1, 2]), [PromptInput(None, [1, 2], starts_text=True)]),
        ([ChatTokens([1])], [PromptInput(None, [1], starts_text=True)]),
    ],
)
def test_every_form_of_prompt(prompts: Any, expected: list[PromptInput]) -> None:
    assert parse(prompts) == expected


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (5, "prompts must be text, token ids, a dict, or a list of these, not int"),
        (None, "not NoneType"),
        (b"ab", "prompts must be text, token ids, a dict, or a list of these, not bytes"),
        ([b"ab"], "prompt 0 must be text, a list of token ids, or a dict, not bytes"),
        (np.array([0.5]), "prompt 0 must be text, a list of token ids, or a dict, not float64"),
        ([np.array([0.5])], "prompt 0 must be text, a list of token ids, or a dict, not ndarray"),
        (["a", 5], "prompt 1 must be text, a list of token ids, or a dict, not int"),
        ([1, "a"], "the prompt must be text, a list of token ids"),
        ([1, 2.5], "the prompt must be text, a list of token ids"),
        ([True], "prompt 0 must be text"),
        ({"text": "x"}, "the prompt has the key 'text'; possible keys are prompt, prompt_token_ids and cache_salt"),
        ([{}], "prompt 0 has neither prompt nor prompt_token_ids"),
        ([{"prompt": 3}], "prompt 0: prompt must be text, not int"),
    ],
)
def test_what_is_no_prompt(prompts: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        parse(prompts)


def test_parameters_are_one_for_all_or_one_for_each() -> None:
    one, two = SamplingParams(), SamplingParams(seed=2)
    assert pair_params(None, 2) == [SamplingParams()] * 2
    assert pair_params(one, 3) == [one] * 3
    assert pair_params([one, two], 2) == [one, two]
    with pytest.raises(RequestError, match="2 sampling_params for 3 prompts"):
        pair_params([one, two], 3)
    with pytest.raises(RequestError, match="must be SamplingParams, not dict"):
        pair_params([{}], 1)  # type: ignore[list-item]
    with pytest.raises(RequestError, match="must be SamplingParams, not dict"):
        pair_params({"temperature": 0}, 1)  # type: ignore[arg-type]


def test_one_conversation_or_several() -> None:
    turn = {"role": "user", "content": "hi"}
    assert conversations([turn]) == [[turn]]
    assert conversations([[turn], [turn, turn]]) == [[turn], [turn, turn]]
    for bad in ("hi", [], [[]], ["hi"], [[turn], "hi"], 5):
        with pytest.raises(RequestError, match="list"):
            conversations(bad)  # type: ignore[arg-type]
