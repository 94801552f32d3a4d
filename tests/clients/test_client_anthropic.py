"""The `anthropic` package."""

from __future__ import annotations

from typing import Any

import pytest

anthropic = pytest.importorskip("anthropic")

ASKED = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="module")
def client(url: str) -> Any:
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


def test_messages(client: Any, model: str) -> None:
    answer = client.messages.create(model=model, max_tokens=12, messages=ASKED, system="Be brief.")
    assert answer.content[0].type == "text"
    assert answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert answer.usage.output_tokens <= 12
    blocks = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    sampling = {"top_k": 5, "temperature": 0.5}  # no arguments of its newer versions any more
    answer = client.messages.create(
        model=model, max_tokens=4, messages=blocks, metadata={"user_id": "u"}, extra_body=sampling
    )
    assert answer.content[0].text


def test_stream(client: Any, model: str) -> None:
    with client.messages.stream(model=model, max_tokens=12, messages=ASKED) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text
    assert final.usage.output_tokens > 0


def test_raw_events(client: Any, model: str) -> None:
    kinds = [event.type for event in client.messages.create(model=model, max_tokens=4, messages=ASKED, stream=True)]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 1


def test_stop_sequences(client: Any, model: str) -> None:
    counted = [{"role": "user", "content": "Repeat exactly: one two three four"}]
    answer = client.messages.create(
        model=model,
        max_tokens=60,
        messages=counted,
        stop_sequences=["three", "3", "."],
        extra_body={"temperature": 0},
    )
    assert answer.stop_reason == "stop_sequence"
    assert answer.stop_sequence in ("three", "3", ".")


def test_count_tokens(client: Any, model: str) -> None:
    count = client.messages.count_tokens(model=model, messages=ASKED).input_tokens
    usage = client.messages.create(model=model, max_tokens=1, messages=ASKED).usage
    assert count == usage.input_tokens + usage.cache_read_input_tokens


def test_errors_are_the_clients_own(client: Any, model: str) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="huge", max_tokens=4, messages=ASKED)
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model=model, max_tokens=4, messages=[])
