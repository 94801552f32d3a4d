"""POST /generate, /generate_stream and /, and GET /info."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.busy import busy_site
from helpers.servers import Site, serve_tiny, tiny_spec_of
from helpers.tiny import write_tiny_gguf
from octavo.core.params import MAX_STOP

INPUTS = "The rest is in the"


def generate(site: Site, inputs: str = INPUTS, **parameters: Any) -> dict[str, Any]:
    answer = site.post("/generate", inputs=inputs, parameters={"max_new_tokens": 8, **parameters})
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(site: Site, inputs: str = INPUTS, **parameters: Any) -> list[dict[str, Any]]:
    answer = site.post("/generate_stream", inputs=inputs, parameters={"max_new_tokens": 8, **parameters})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream"
    return [json.loads(piece.removeprefix("data: ")) for piece in answer.text.split("\n\n") if piece]


def completion(site: Site, **fields: Any) -> dict[str, Any]:
    """What the OpenAI API makes of the same."""
    base = {"prompt": INPUTS, "max_tokens": 8, "temperature": 0}
    return site.post("/v1/completions", base, **fields).json()["choices"][0]


def test_greedy_without_parameters_and_a_hundred_tokens(site: Site) -> None:
    answer = site.post("/generate", inputs=INPUTS)
    assert answer.json() == {"generated_text": completion(site, max_tokens=100)["text"]}


def test_the_full_text(site: Site) -> None:
    assert generate(site, return_full_text=True)["generated_text"] == INPUTS + generate(site)["generated_text"]


@pytest.mark.parametrize(
    "parameters",
    [{"do_sample": True}, {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8}, {"do_sample": False, "temperature": 2}],
)
def test_what_makes_it_sample(site: Site, parameters: dict[str, Any]) -> None:
    same = {name: value for name, value in parameters.items() if name != "do_sample"}
    expected = completion(site, **{"temperature": 1, "seed": 5, **same})["text"]
    assert generate(site, seed=5, **parameters)["generated_text"] == expected
    assert expected != completion(site)["text"]


def test_details(site: Site) -> None:
    answer = generate(site, details=True, decoder_input_details=True, top_n_tokens=2, seed=7)
    details = answer["details"]
    assert "".join(each["text"] for each in details["tokens"] if not each["special"]) == answer["generated_text"]
    assert (details["finish_reason"], details["generated_tokens"], details["seed"]) == ("length", 8, 7)
    assert "".join(each["text"] for each in details["prefill"]) == INPUTS
    assert details["prefill"][0]["logprob"] is None
    expected = completion(site, echo=True, logprobs=2)["logprobs"]["token_logprobs"]
    listed = [each["logprob"] for each in [*details["prefill"], *details["tokens"]]]
    assert listed == expected
    assert [len(each) for each in details["top_tokens"]] == [2] * 8
    greedy = [each[0] for each in details["top_tokens"]]
    assert [each["id"] for each in greedy] == [each["id"] for each in details["tokens"]]
    assert all(first["logprob"] >= second["logprob"] for first, second in details["top_tokens"])
    assert "best_of_sequences" not in details


def test_details_list_no_more_than_was_asked_for(site: Site) -> None:
    details = generate(site, details=True)["details"]
    assert details["prefill"] == []
    assert details["seed"] is None
    assert "top_tokens" not in details


def test_a_stop_string_is_part_of_the_answer(site: Site) -> None:
    text = generate(site)["generated_text"]
    stop = text[3:5]
    answer = generate(site, stop=["\0", stop], details=True)
    assert answer["generated_text"] == text[: text.index(stop)] + stop
    assert answer["details"]["finish_reason"] == "stop_sequence"
    events = stream(site, stop=[stop], details=True)
    assert events[-1]["generated_text"] == answer["generated_text"]
    assert events[-1]["details"]["finish_reason"] == "stop_sequence"


def test_a_stream_has_an_event_for_each_token(site: Site) -> None:
    whole = generate(site, details=True)
    events = stream(site, details=True, top_n_tokens=3)
    assert [each["index"] for each in events] == list(range(1, 9))
    assert [each["token"] for each in events] == whole["details"]["tokens"]
    assert all(len(each["top_tokens"]) == 3 for each in events)
    assert {(each["generated_text"], each["details"]) for each in events[:-1]} == {(None, None)}
    length = len(site.llm.tokenizer.encode(INPUTS))
    end = {"finish_reason": "length", "generated_tokens": 8, "seed": None, "input_length": length}
    assert events[-1]["details"] == end
    assert events[-1]["generated_text"] == whole["generated_text"]
    assert stream(site)[-1]["details"] is None


def test_the_end_of_sequence_is_a_special_token(tmp_path: Path, site: Site) -> None:
    """A model whose likeliest token is made to be the end of sequence."""
    first = generate(site, details=True)["details"]["tokens"][0]["id"]
    kinds = [1] * 320
    kinds[first] = 3  # control
    changed = {"tokenizer.ggml.eos_token_id": first, "tokenizer.ggml.token_type": kinds}
    with serve_tiny(tiny_spec_of(write_tiny_gguf(tmp_path / "m.gguf", metadata=changed))) as other:
        answer = generate(other, details=True)
        (event,) = stream(other, details=True)
    assert answer["generated_text"] == event["generated_text"] == ""
    assert answer["details"]["finish_reason"] == event["details"]["finish_reason"] == "eos_token"
    assert [each["special"] for each in answer["details"]["tokens"]] == [True]
    assert event["token"]["id"] == first


def test_half_characters_come_with_the_rest(site: Site) -> None:
    """Bytes are tokens in this model, so that hot sampling makes many that are no characters by themselves."""
    for seed in range(5):
        events = stream(site, "🙂", temperature=3, seed=seed, max_new_tokens=40)
        shown = "".join(each["token"]["text"] for each in events if not each["token"]["special"])
        assert events[-1]["generated_text"].startswith(shown)


def test_the_best_of_several(site: Site) -> None:
    answer = generate(site, best_of=4, do_sample=True, seed=3, details=True)
    details = answer["details"]

    def worth(tokens: list[dict[str, Any]]) -> float:
        return sum(each["logprob"] for each in tokens) / len(tokens)

    others = [worth(each["tokens"]) for each in details["best_of_sequences"]]
    assert len(others) == 3
    assert worth(details["tokens"]) >= max(others)
    assert generate(site, best_of=4, do_sample=True, seed=3) == {"generated_text": answer["generated_text"]}


def test_truncate_keeps_the_end(site: Site) -> None:
    text = " ".join(map(str, range(300)))
    assert site.post("/generate", inputs=text).status_code == 422
    answer = generate(site, text, truncate=20, details=True, decoder_input_details=True)
    ids = site.llm.tokenizer.encode(text)[-20:]
    assert [each["id"] for each in answer["details"]["prefill"]] == ids != site.llm.tokenizer.encode(text)[:20]


def test_the_root_does_both(site: Site) -> None:
    body = {"inputs": INPUTS, "parameters": {"max_new_tokens": 8}}
    assert site.post("/", body).json() == [generate(site)]
    assert site.post("/", body, stream=False).json() == [generate(site)]
    assert site.post("/", body, stream=True).headers["content-type"] == "text/event-stream"
    assert site.post("/generate", body, stream=False).json() == generate(site)


def test_info(site: Site) -> None:
    told = site.http.get("/info").json()
    assert (told["model_id"], told["max_total_tokens"], told["max_input_tokens"]) == ("tiny", 256, 255)
    assert told["model_dtype"] == "F32"
    assert (told["max_best_of"], told["max_stop_sequences"]) == (128, MAX_STOP)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"max_new_tokens": 0}, "^max_new_tokens .* 0"),
        ({"max_new_tokens": 2**63}, "^max_new_tokens"),
        ({"temperature": -1}, "^temperature .* -1"),
        ({"temperature": 0}, "^temperature: it must be above 0"),
        ({"top_p": 2}, "^top_p"),
        ({"top_k": -2}, "^top_k"),
        ({"seed": 2**64}, "^seed"),
        ({"stop": ["a"] * 17}, "^stop has 17 strings; at most 16"),
        ({"stop": [""]}, "^stop must hold non-empty"),
        ({"stop": "a"}, "^parameters.stop: expected array"),
        ({"best_of": 129, "do_sample": True}, "^best_of .* 128"),
        ({"best_of": 2}, "^best_of: greedy"),
        ({"top_n_tokens": 21, "details": True}, "^top_n_tokens .* 20"),
        ({"top_n_tokens": 2}, "^top_n_tokens: .* details: true"),
        ({"decoder_input_details": True}, "^decoder_input_details: .* details: true"),
        ({"truncate": 0}, "^truncate: it must be at least 1"),
        ({"repetition_penalty": 0}, "^repetition_penalty"),
        ({"grammar": {"type": "regex", "value": "(a+)+$"}}, "parameters.grammar is not supported: structured output"),
        ({"adapter_id": "x"}, "parameters.adapter_id is not supported"),
        ({"typical_p": 0.5}, "parameters.typical_p is not supported: .* top_p"),
        ({"watermark": True}, "parameters.watermark is not supported"),
        ({"max_tokens": 3}, "unknown field 'parameters.max_tokens'"),
    ],
)
def test_refused(site: Site, parameters: dict[str, Any], words: str) -> None:
    answer = site.post("/generate", inputs=INPUTS, parameters=parameters)
    assert answer.status_code == 422, answer.text
    assert set(answer.json()) == {"error", "error_type"}
    assert answer.json()["error_type"] == "validation"
    assert re.search(words, answer.json()["error"]), answer.text


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "words"),
    [
        ("/generate", b"{", 400, "request", "not valid JSON"),
        ("/generate", b'{"inputs": "a", "parameters": {"temperature": NaN}}', 400, "request", "not valid JSON"),
        ("/generate", b'{"inputs": "\\ud800"}', 400, "request", "surrogate"),
        ("/generate", b"{}", 422, "validation", "inputs is missing"),
        ("/generate", b'{"inputs": ""}', 422, "validation", "inputs is empty"),
        ("/generate", b'{"inputs": "a", "stream": true}', 422, "validation", "/generate_stream does"),
        ("/generate_stream", b'{"inputs": "a", "stream": false}', 422, "validation", "/generate does not"),
        ("/generate_stream", b'{"inputs": "a", "parameters": {"best_of": 2}}', 422, "validation", "best_of: which"),
        (
            "/generate_stream",
            b'{"inputs": "a", "parameters": {"details": true, "decoder_input_details": true}}',
            422,
            "validation",
            "decoder_input_details: .* stream",
        ),
        ("/generate_stream", b'{"inputs": "%b"}' % (b"word " * 300), 422, "validation", "tokens .* 256"),
        ("/generate/x", b"{}", 404, "request", "nothing at this path"),
    ],
)
def test_refused_bodies(site: Site, path: str, body: bytes, status: int, kind: str, words: str) -> None:
    answer = site.http.post(path, content=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error_type"] == kind
    assert re.search(words, answer.json()["error"]), answer.text


def test_idle_values_are_taken(site: Site) -> None:
    idle = {"watermark": False, "typical_p": None, "grammar": None, "adapter_id": None, "best_of": 1, "details": False}
    assert generate(site, **idle) == generate(site)


def test_a_full_queue_is_an_overload(tiny_gguf: Callable[..., Path]) -> None:
    with busy_site(tiny_gguf) as site:
        answer = site.post("/generate", inputs=INPUTS)
    assert (answer.status_code, answer.json()["error_type"]) == (429, "overloaded")
    assert int(answer.headers["retry-after"]) >= 1


def test_what_the_engine_cannot_do_is_a_failed_generation(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise MemoryError("the engine broke")

    monkeypatch.setattr(site.llm._engine._executor, "run", fail)
    answer = site.post("/generate", inputs=INPUTS)
    assert (answer.status_code, answer.json()["error_type"]) == (424, "generation")
    assert "broke" not in answer.text
