"""The `anthropic` client, unmodified, against a server on a socket. Skipped where it is not installed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.busy import busy_site
from helpers.servers import Site

anthropic = pytest.importorskip("anthropic")


@pytest.fixture(scope="module")
def client(site: Site) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=site.url, api_key="none", max_retries=0) as made:
        yield made


def ask(text: str = "Hello there", **more: object) -> dict[str, object]:
    """Arguments of a greedy request; newer clients know no temperature."""
    messages = [{"role": "user", "content": text}]
    return {"model": "tiny", "max_tokens": 8, "messages": messages, "extra_body": {"temperature": 0}, **more}


def test_a_message_and_its_request_id(client: anthropic.Anthropic, site: Site) -> None:
    message = client.messages.create(**ask())
    assert message.content[0].text == site.chat("Hello there").json()["choices"][0]["message"]["content"]
    assert (message.role, message.stop_reason, message.usage.output_tokens) == ("assistant", "max_tokens", 8)
    assert message.id == f"msg_{message._request_id}"


def test_the_stream_helper_puts_the_message_together(client: anthropic.Anthropic) -> None:
    fields = ask(system="Be brief.", metadata={"user_id": "u"}, stop_sequences=["\0"])
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(texts) == final.content[0].text == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


def test_raw_events(client: anthropic.Anthropic) -> None:
    events = list(client.messages.create(**ask(), stream=True))
    assert [events[0].type, events[1].type, events[-1].type] == ["message_start", "content_block_start", "message_stop"]


def test_many_at_once_with_the_async_client(site: Site) -> None:
    async def one(client: anthropic.AsyncAnthropic, text: str) -> str:
        async with client.messages.stream(**ask(text)) as stream:
            return "".join([each async for each in stream.text_stream])

    async def main() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=site.url, api_key="none") as client:
            return await asyncio.gather(*[one(client, f"Question {index}") for index in range(6)])

    alone = [site.chat(f"Question {index}").json()["choices"][0]["message"]["content"] for index in range(6)]
    assert asyncio.run(main()) == alone


def test_count_tokens(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ask("How many?"))
    counted = client.messages.count_tokens(model="tiny", messages=[{"role": "user", "content": "How many?"}])
    assert counted.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


def test_an_answer_goes_on_in_the_next_turn(client: anthropic.Anthropic) -> None:
    """The blocks of an answer are sent back as the client holds them."""
    first = client.messages.create(**ask())
    turns = [
        {"role": "user", "content": "Hello there"},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": "Go on"},
    ]
    assert client.messages.create(model="tiny", max_tokens=4, messages=turns).content[0].type == "text"


def test_errors_have_their_classes(client: anthropic.Anthropic, tiny_gguf: Callable[..., Path]) -> None:
    with pytest.raises(anthropic.NotFoundError, match="no model 'nope'"):
        client.messages.create(**ask(model="nope"))
    with pytest.raises(anthropic.BadRequestError, match="tools is not supported"):
        client.messages.create(**ask(tools=[{"name": "f", "input_schema": {"type": "object"}}]))
    with pytest.raises(anthropic.BadRequestError, match="context window holds 256"):
        client.messages.create(**ask("word " * 300, stream=True))
    with busy_site(tiny_gguf) as busy, anthropic.Anthropic(base_url=busy.url, api_key="x", max_retries=0) as other:
        with pytest.raises(anthropic.APIStatusError) as caught:
            other.messages.create(**ask())
        assert caught.value.status_code == 529
