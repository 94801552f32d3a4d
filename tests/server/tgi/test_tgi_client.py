"""`huggingface_hub.InferenceClient`, unmodified, against a server on a socket. Skipped where it is not installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.busy import busy_site
from helpers.servers import Site

hub = pytest.importorskip("huggingface_hub")
hub_errors = pytest.importorskip("huggingface_hub.errors")

INPUTS = "The rest is in the"


@pytest.fixture(scope="module")
def client(site: Site) -> hub.InferenceClient:
    return hub.InferenceClient(model=site.url, token="none")


def test_text_and_details(client: hub.InferenceClient, site: Site) -> None:
    text = client.text_generation(INPUTS, max_new_tokens=8)
    assert text == site.post("/generate", inputs=INPUTS, parameters={"max_new_tokens": 8}).json()["generated_text"]
    told = client.text_generation(
        INPUTS, max_new_tokens=8, details=True, decoder_input_details=True, top_n_tokens=2, seed=1
    )
    assert told.generated_text == text
    assert (told.details.finish_reason, told.details.generated_tokens, told.details.seed) == ("length", 8, 1)
    assert "".join(each.text for each in told.details.tokens) == text
    assert "".join(each.text for each in told.details.prefill) == INPUTS
    assert len(told.details.top_tokens[0]) == 2


def test_sampling_parameters_and_stop(client: hub.InferenceClient) -> None:
    options = {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.1, "seed": 4}
    first = client.text_generation(INPUTS, max_new_tokens=12, return_full_text=True, **options)
    assert first.startswith(INPUTS)
    assert client.text_generation(INPUTS, max_new_tokens=12, **options) == first.removeprefix(INPUTS)
    greedy = client.text_generation(INPUTS, max_new_tokens=8)
    assert client.text_generation(INPUTS, max_new_tokens=8, stop=[greedy[2:4]]) == greedy[:4]


def test_streams(client: hub.InferenceClient) -> None:
    text = client.text_generation(INPUTS, max_new_tokens=8)
    assert "".join(client.text_generation(INPUTS, max_new_tokens=8, stream=True)) == text
    events = list(client.text_generation(INPUTS, max_new_tokens=8, stream=True, details=True))
    assert events[-1].generated_text == text
    assert events[-1].details.generated_tokens == len(events) == 8


def test_chat_over_the_openai_route(client: hub.InferenceClient, site: Site) -> None:
    messages = [{"role": "user", "content": "Hello there"}]
    answer = client.chat_completion(messages, max_tokens=8, temperature=0)
    same = site.chat("Hello there", temperature=0).json()["choices"][0]["message"]["content"]
    assert answer.choices[0].message.content == same
    pieces = client.chat_completion(messages, max_tokens=8, temperature=0, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == same


def test_errors_have_their_classes(client: hub.InferenceClient, tiny_gguf: Callable[..., Path]) -> None:
    with pytest.raises(hub_errors.ValidationError, match="context window holds 256"):
        client.text_generation("word " * 300)
    with pytest.raises(hub_errors.ValidationError, match="watermark is not supported"):
        client.text_generation(INPUTS, watermark=True, stream=True)
    with busy_site(tiny_gguf) as busy, pytest.raises(hub_errors.OverloadedError):
        hub.InferenceClient(model=busy.url).text_generation(INPUTS)


def test_a_model_can_be_named_beside_the_address(site: Site) -> None:
    named = hub.InferenceClient(base_url=site.url, token="none")
    with pytest.raises(hub_errors.HfHubHTTPError, match="no model 'nope'"):
        named.chat_completion([{"role": "user", "content": "Hi"}], model="nope")
    answer = named.chat_completion([{"role": "user", "content": "Hi"}], model="alias", max_tokens=1)
    assert answer.model == "alias"
