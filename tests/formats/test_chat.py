"""Chat templates: what they render, what they refuse, and that a hostile one is stopped."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from helpers.vocabularies import CONTROL, bpe_metadata
from octavo.core.errors import InvalidParameterError, ModelFormatError, RequestError
from octavo.formats import chat_sandbox
from octavo.formats.chat import ChatTemplate
from octavo.formats.gguf import GGUFFile
from octavo.formats.tokenizer import Tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
USER = [{"role": "user", "content": "Hi"}]
TALK = [*USER, {"role": "assistant", "content": "Hello there"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def render(source: str, messages: Any = USER, **options: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(messages, **options)


def real(real_model: Callable[[str], Path], name: str) -> tuple[ChatTemplate, Tokenizer]:
    metadata = GGUFFile.open(real_model(name)).metadata
    tokenizer = Tokenizer.from_metadata(metadata)
    return ChatTemplate.from_metadata(metadata, tokenizer), tokenizer


# --- real models -----------------------------------------------------------------------------------------------------


def test_smollm2(real_model: Callable[[str], Path]) -> None:
    template, tokenizer = real(real_model, "SmolLM2-135M-Instruct.Q4_1.gguf")
    text = template.render(USER)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer.encode(text, parse_special=True)
    assert ids.count(1) == 3
    assert ids.count(2) == 2
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert template.render([{"role": "system", "content": "S"}, *TALK], add_generation_prompt=False) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello there<|im_end|>\n"
    )
    with pytest.raises(RequestError, match="does not read tools"):
        template.render(USER, tools=[TOOL])


def test_qwen_with_tools(real_model: Callable[[str], Path]) -> None:
    template, _ = real(real_model, "qwen2.5-coder-1.5b-instruct-q4.gguf")
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": "é"}'}}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "3"},
    ]
    text = template.render(messages, tools=[TOOL])
    assert '<tools>\n{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}\n' in text
    assert (
        '<|im_start|>assistant\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "é"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    ) in text
    assert "<tools>" not in template.render(USER)
    assert template.render(USER, tools=[]) == template.render(USER)


def test_a_base_model_says_that_it_has_no_template(real_model: Callable[[str], Path]) -> None:
    metadata = GGUFFile.open(real_model("gemma-3-270m-q4_k_m.gguf")).metadata
    template = ChatTemplate.from_metadata(metadata, Tokenizer.from_metadata(bpe_metadata()))
    assert not template.available
    with pytest.raises(RequestError, match=r"no chat template.*chat_template"):
        template.render(USER)


# --- choosing a template ---------------------------------------------------------------------------------------------


def test_templates_of_a_file() -> None:
    keys = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "{{ tools[0].type }}"}
    metadata = {**bpe_metadata([], extra={"<s>": CONTROL}, bos_token_id=256), **keys}
    tokenizer = Tokenizer.from_metadata(metadata)
    template = ChatTemplate.from_metadata(metadata, tokenizer)
    assert template.available
    assert (template.bos_token, template.eos_token) == ("<s>", "")
    assert template.render(USER) == "plain"
    assert template.render(USER, tools=[TOOL]) == "function"
    named = ChatTemplate.from_metadata(metadata, tokenizer, name="tool_use")
    assert named.render(USER, tools=[TOOL]) == "function"
    with pytest.raises(InvalidParameterError, match=r"'rag'.*tool_use"):
        ChatTemplate.from_metadata(metadata, tokenizer, name="rag")
    del metadata["tokenizer.chat_template"]
    with pytest.raises(RequestError, match="no default chat template, only ones named tool_use"):
        ChatTemplate.from_metadata(metadata, tokenizer).render(USER)
    with pytest.raises(ModelFormatError, match="must be a string"):
        ChatTemplate.from_metadata({**metadata, "tokenizer.chat_template": 3}, tokenizer)


# --- what templates may use ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{% for m in messages %}\n{{ m['content'] }}\n{% endfor %}\n", "Hi\n"),  # trim_blocks
        ("a\n    {% if true %}\n    b\n    {% endif %}\nc", "a\n    b\nc"),  # lstrip_blocks
        ("{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}"
         "{{ i }}{% endfor %}", "02"),
        ("{{ {'k': '<é>', 'a': [1, true, none]} | tojson }}", '{"k": "<é>", "a": [1, true, null]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{% for x in 'abc' %}{{ loop.index }}/{{ loop.length }}{{ ' ' if not loop.last }}{% endfor %}", "1/3 2/3 3/3"),
        ("{% for x in 'abc' if x != 'b' %}{{ loop.index0 }}{{ x }}{% else %}none{% endfor %}", "0a1c"),
        ("{% for x in nothing %}{{ x }}{% else %}none{% endfor %}", "none"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{% for x in [1, [2]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}", "12"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "Hi!"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{% macro f(x) %}{% for c in x %}{{ c ~ '-' }}{% endfor %}{% endmacro %}{{ f('ab') }}", "a-b-"),
        ("{{ messages | map(attribute='role') | join(',') }}{{ 'a' * 3 }}{{ '%s|%03d' % ('x', 7) }}", "useraaax|007"),
        ("{{ '{}:{:>4}'.format('a', 'b') }}{{ tools is none }}{{ missing is defined }}", "a:   bTrueFalse"),
        ("{{ strftime_now('%Y') }}", None),
    ],
)  # fmt: skip
def test_what_templates_rely_on(source: str, wanted: str | None) -> None:
    got = render(source, add_generation_prompt=False)
    assert got == (wanted if wanted is not None else datetime.now().strftime("%Y"))


def test_further_variables() -> None:
    source = "{{ 'think' if enable_thinking else 'answer' }}"
    assert render(source, enable_thinking=True) == "think"
    assert render(source) == "answer"
    with pytest.raises(InvalidParameterError, match=r"does not read documents.*enable_thinking"):
        render(source, documents=[])


def test_generation_prompt_and_continuation() -> None:
    head = "<|im_start|>user\nHi<|im_end|>\n"
    assert render(CHATML) == head + "<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == head
    whole = head + "<|im_start|>assistant\nHello there"
    assert render(CHATML, TALK, continue_final_message=True) == whole
    spaced = [*USER, {"role": "assistant", "content": " Hello there \n"}]
    assert render(CHATML, spaced, continue_final_message=True) == head + "<|im_start|>assistant\n Hello there \n"
    stripping = CHATML.replace("m.content", "m.content | trim")
    assert render(stripping, spaced, continue_final_message=True) == whole
    with pytest.raises(InvalidParameterError, match="exclude each other"):
        render(CHATML, TALK, continue_final_message=True, add_generation_prompt=True)
    with pytest.raises(RequestError, match="continue_final_message"):
        render("nothing of it", TALK, continue_final_message=True)


def test_text_parts_are_joined_by_newlines() -> None:
    parts = [{"type": "text", "text": "one"}, "two", {"text": "three"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "one\ntwo\nthree"


def test_messages_are_not_changed() -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "assistant", "content": ["a"], "tool_calls": [call]}]
    assert render("{{ messages[0].tool_calls[0].function.arguments }}", messages) == "{}"
    assert messages == [{"role": "assistant", "content": ["a"], "tool_calls": [call]}]
    assert call["function"]["arguments"] == "{}"


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages is empty"),
        ("Hi", "must be a list"),
        ({"role": "user", "content": "Hi"}, "must be a list"),
        (["Hi"], r"messages\[0\] must be an object"),
        ([{"content": "Hi"}], r"messages\[0\].role"),
        ([{"role": "", "content": "Hi"}], r"messages\[0\].role"),
        ([*USER, {"role": "user"}], r"messages\[1\] has no content"),
        ([{"role": "user", "content": 5}], "must be text or a list of text parts"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "image_url.*only text parts"),
        ([{"role": "user", "content": [{"type": "text"}]}], "only text parts"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}], "not valid JSON"),
    ],
)
def test_bad_messages(messages: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        render(CHATML, messages)
    assert "\n" not in str(caught.value)


def test_bad_tools() -> None:
    for tools in ("add", [1], {"type": "function"}):
        with pytest.raises(RequestError, match="tools must be a list"):
            render("{{ tools }}", tools=tools)


def test_the_templates_own_words_reach_the_user() -> None:
    source = "{% if messages[0].role != 'system' %}{{ raise_exception('Start with a\nsystem turn') }}{% endif %}"
    with pytest.raises(RequestError, match="refuses this chat: Start with a system turn"):
        render(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ messages[0].tool.name }}", "has no attribute 'tool'"),
        ("{{ messages[9].content }}", "has no element 9"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{% include 'other' %}", "fails on this chat"),
    ],
)
def test_templates_that_fail(source: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        render(source)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ ", "{% for x in %}{% endfor %}", "{{ a | nofilter }}", "{% nope %}"]
)
def test_malformed_templates_fail_at_first_use(source: str) -> None:
    template = ChatTemplate(source)
    for _ in range(2):
        with pytest.raises(ModelFormatError, match="chat template"):
            template.render(USER)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
        "{% for i in range(90000) %}{% for j in range(90000) %}{{ j }}{% endfor %}{% endfor %}",
        "{% for i in range(9000) %}{{ range(90000) | list | length }}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(30) }}",
        "{% for m in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 40 }}{% endfor %}",
        "{{ range(10 ** 9) | list }}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ 10 ** 9 * 'a' }}",
        "{{ [1] * 10 ** 9 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{% set ns = namespace(s='aaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='aaaa') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s=9) %}{% for i in range(60) %}{% set ns.s = ns.s * ns.s %}{% endfor %}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ 'a' | center(999999999) }}",
        "{{ 'a' | center(width=999999999) }}",
        "{{ 'a'.ljust(999999999) }}",
        "{{ 'a' | indent(999999999, true) }}",
        "{{ ().__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.keys() }}",
    ],
)
def test_hostile_templates_are_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_sandbox, "MAX_STEPS", 1 << 17)
    with pytest.raises(RequestError, match="was stopped"):
        render(source)


def test_each_rendering_has_its_own_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_sandbox, "MAX_STEPS", 2200)
    template = ChatTemplate("{% for i in range(1000) %}{% endfor %}ok")
    for _ in range(4):
        assert template.render(USER) == "ok"


def test_a_template_that_takes_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_sandbox, "MAX_SECONDS", -1.0)
    with pytest.raises(RequestError, match="was stopped: it runs for more than"):
        render("{% for m in messages %}{% endfor %}")
