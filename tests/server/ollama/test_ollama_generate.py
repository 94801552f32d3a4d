"""POST /api/generate and /api/chat."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from helpers.busy import busy_site
from helpers.servers import Site, serve_tiny, tiny_spec_of
from helpers.tiny import CHAT_TEMPLATE, write_tiny_gguf

GENERATE, CHAT = "/api/generate", "/api/chat"
HELLO = [{"role": "user", "content": "Hello there"}]
NEUTRAL = {"temperature": 0, "top_k": 0, "top_p": 1, "num_predict": 8}


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(each) for each in text.splitlines()]


def generate(site: Site, **fields: Any) -> dict[str, Any]:
    """A whole answer of greedy text, of 8 tokens at the most."""
    options = {**NEUTRAL, **fields.pop("options", {})}
    answer = site.post(
        GENERATE, {"model": "tiny", "prompt": "Hello there", "stream": False, "options": options}, **fields
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def chat(site: Site, **fields: Any) -> dict[str, Any]:
    options = {**NEUTRAL, **fields.pop("options", {})}
    answer = site.post(CHAT, {"model": "tiny", "messages": HELLO, "stream": False, "options": options}, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def until(site: Site, condition: Callable[[], bool]) -> None:
    """Wait in the server's event loop: models are let go after the answer has been sent."""

    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    site.do(wait())


def same_chat(site: Site, messages: list[dict[str, str]] = HELLO, **fields: Any) -> str:
    """What the OpenAI API makes of the same."""
    body = {"messages": messages, "max_tokens": 8, "temperature": 0}
    return site.post("/v1/chat/completions", body, **fields).json()["choices"][0]["message"]["content"]


def test_whole_answers(site: Site) -> None:
    text, conversation = generate(site), chat(site)
    assert text["response"] == conversation["message"]["content"] == same_chat(site)
    assert conversation["message"]["role"] == "assistant"
    for answer in (text, conversation):
        assert (answer["model"], answer["done"], answer["done_reason"]) == ("tiny", True, "length")
        assert (answer["prompt_eval_count"], answer["eval_count"]) == (len(site.llm.encode_chat(HELLO)), 8)
        assert datetime.fromisoformat(answer["created_at"]).tzinfo is not None


@pytest.mark.parametrize(("path", "body"), [(GENERATE, {"prompt": "Hello there"}), (CHAT, {"messages": HELLO})])
def test_lines_of_a_stream(site: Site, path: str, body: dict[str, Any]) -> None:
    """Streams are the default; the last line has no text, and the counts."""
    answer = site.post(path, {"model": "tiny", "options": NEUTRAL, **body})
    assert answer.headers["content-type"] == "application/x-ndjson"
    *pieces, end = lines(answer.text)
    assert all(piece["done"] is False and "done_reason" not in piece for piece in pieces)

    def text(piece: dict[str, Any]) -> str:
        return piece["response"] if path == GENERATE else piece["message"]["content"]

    assert "".join(map(text, pieces)) == same_chat(site)
    assert text(end) == ""
    assert (end["done"], end["done_reason"], end["eval_count"]) == (True, "length", 8)


def test_times_are_nanoseconds_within_the_whole(site: Site) -> None:
    answer = generate(site)
    parts = [answer[f"{name}_duration"] for name in ("load", "prompt_eval", "eval")]
    assert all(isinstance(each, int) and each >= 0 for each in parts)
    assert 0 < parts[1] + parts[2] <= answer["total_duration"]
    assert sum(parts) <= answer["total_duration"]
    metrics = []
    site.service.observers.append(lambda record: metrics.append(record.outputs[0].metrics))
    try:
        again = generate(site)
    finally:
        site.service.observers.pop()
    assert again["prompt_eval_duration"] == round(metrics[0].prefill_s * 1e9)
    assert again["eval_duration"] == round(metrics[0].decode_s * 1e9)


def test_loading_takes_its_time(tiny_gguf: Callable[..., Path]) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf(), "first"), tiny_spec_of(tiny_gguf(), "tiny")) as site:
        cold, warm = generate(site)["load_duration"], generate(site)["load_duration"]
    assert cold > warm


def test_a_stop_string_ends_it(site: Site) -> None:
    text = generate(site)["response"]
    answer = generate(site, options={"stop": ["\0", text[3:5]]})
    assert answer["done_reason"] == "stop"
    assert answer["response"] == text[: text.index(text[3:5])]


def test_defaults_are_theirs(site: Site) -> None:
    theirs = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 3}
    answer = site.post(
        GENERATE, model="tiny", prompt="Hello there", stream=False, options={"seed": 3, "num_predict": 8}
    )
    assert answer.json()["response"] == same_chat(site, **theirs) != same_chat(site, temperature=1, seed=3)


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"temperature": 0.7, "seed": 5}, {"temperature": 0.7, "seed": 5}),
        ({"temperature": 1, "top_k": 3, "seed": 5}, {"temperature": 1, "top_k": 3, "seed": 5}),
        ({"temperature": 1, "top_p": 0.3, "seed": 5}, {"temperature": 1, "top_p": 0.3, "seed": 5}),
        ({"temperature": 1, "min_p": 0.3, "seed": 5}, {"temperature": 1, "min_p": 0.3, "seed": 5}),
        ({"repeat_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"repeat_penalty": 1.5, "repeat_last_n": -1}, {"repetition_penalty": 1.5}),
        ({"repeat_penalty": 1.5, "repeat_last_n": 256}, {"repetition_penalty": 1.5}),
        ({"repeat_penalty": 1.5, "repeat_last_n": 0}, {}),
        ({"repeat_last_n": 64}, {}),
        ({"presence_penalty": 1.5}, {"presence_penalty": 1.5}),
        ({"frequency_penalty": 1.5}, {"frequency_penalty": 1.5}),
        ({"num_predict": 3}, {"max_tokens": 3}),
        ({"num_ctx": 256, "num_keep": 4, "num_thread": 0, "seed": -1}, {}),
    ],
)
def test_options(site: Site, options: dict[str, Any], same: dict[str, Any]) -> None:
    assert chat(site, options=options)["message"]["content"] == same_chat(site, **same)


def test_num_ctx_is_a_limit(site: Site) -> None:
    count = len(site.llm.encode_chat(HELLO))
    for predict in (-1, -2, 50):
        answer = chat(site, options={"num_ctx": count + 5, "num_predict": predict})
        assert (answer["eval_count"], answer["done_reason"]) == (5, "length")
    refused = site.post(CHAT, model="tiny", messages=HELLO, options={"num_ctx": count})
    assert refused.status_code == 400
    assert f"the prompt has {count} tokens" in refused.json()["error"]
    assert f"options.num_ctx allows {count}" in refused.json()["error"]


def test_without_num_predict_the_context_is_the_limit(tiny_gguf: Callable[..., Path]) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf(), "tiny", max_model_len=32)) as site:
        answer = site.post(CHAT, model="tiny", messages=HELLO, stream=False, options={"temperature": 0}).json()
    assert answer["prompt_eval_count"] + answer["eval_count"] == 32
    assert answer["done_reason"] == "length"


def test_system_comes_before_the_prompt(site: Site) -> None:
    turns = [{"role": "system", "content": "Be brief. " * 5}, *HELLO]
    assert generate(site, system="Be brief. " * 5)["response"] == same_chat(site, turns) != generate(site)["response"]


def test_a_raw_prompt_is_continued_as_it_is(site: Site) -> None:
    """Special tokens that it spells are meant; those in a message are not."""
    spelled = "<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n"
    assert generate(site, prompt=spelled, raw=True)["response"] == generate(site)["response"]
    assert generate(site, prompt=spelled)["prompt_eval_count"] > 40
    plain = site.post("/v1/completions", {"prompt": "Hello", "max_tokens": 8, "temperature": 0}).json()
    assert generate(site, prompt="Hello", raw=True)["response"] == plain["choices"][0]["text"]


def test_a_model_without_a_template_continues_prompts(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "base.gguf", metadata={"tokenizer.chat_template": None})
    with serve_tiny(tiny_spec_of(path, "tiny")) as site:
        assert generate(site)["response"] == generate(site, raw=True)["response"]
        refused = site.post(GENERATE, model="tiny", prompt="a", system="b")
        assert "no chat template" in refused.json()["error"]
        refused = site.post(CHAT, model="tiny", messages=HELLO)
    assert refused.status_code == 400


def test_thinking_is_turned_off_where_a_template_knows_it(tmp_path: Path) -> None:
    template = "{% if enable_thinking is defined and not enable_thinking %}No.{% endif %}" + CHAT_TEMPLATE
    path = write_tiny_gguf(tmp_path / "t.gguf", metadata={"tokenizer.chat_template": template})
    with serve_tiny(tiny_spec_of(path, "tiny")) as site:
        quiet, plain = chat(site, think=False), chat(site)
    assert quiet["prompt_eval_count"] > plain["prompt_eval_count"]


def test_think_false_asks_nothing_of_other_templates(site: Site) -> None:
    assert chat(site, think=False)["message"] == chat(site)["message"]


def test_logprobs(site: Site) -> None:
    whole = chat(site, logprobs=True, top_logprobs=2)
    assert len(whole["logprobs"]) == 8
    body = {"messages": HELLO, "max_tokens": 8, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    same = site.post("/v1/chat/completions", body).json()["choices"][0]["logprobs"]["content"]
    assert whole["logprobs"] == same
    body = {"model": "tiny", "messages": HELLO, "options": NEUTRAL, "logprobs": True}
    pieces = lines(site.post(CHAT, body).text)
    listed = [each for piece in pieces for each in piece.get("logprobs", [])]
    assert [each["logprob"] for each in listed] == [each["logprob"] for each in same]
    assert "logprobs" not in chat(site)


@pytest.mark.parametrize(("path", "text"), [(GENERATE, "response"), (CHAT, "message")])
def test_nothing_to_answer_loads_and_unloads(tiny_gguf: Callable[..., Path], path: str, text: str) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf(), "first"), tiny_spec_of(tiny_gguf(), "tiny")) as site:
        model = site.service.registry.find("tiny")
        loaded = site.post(path, {"model": "tiny"})
        assert model.state == "loaded"
        assert loaded.headers["content-type"] == "application/json"
        assert (loaded.json()["done"], loaded.json()["done_reason"]) == (True, "load")
        assert loaded.json()[text] in ("", {"role": "assistant", "content": ""})
        gone = site.post(path, {"model": "tiny", "keep_alive": 0})
        assert gone.json()["done_reason"] == "unload"
        until(site, lambda: model.state == "unloaded")


def test_keep_alive(tiny_gguf: Callable[..., Path]) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf(), "first"), tiny_spec_of(tiny_gguf(), "tiny")) as site:
        model = site.service.registry.find("tiny")
        generate(site, keep_alive="1h30m")
        until(site, lambda: model.users == 0)
        assert model.expires is not None
        assert model.expires - model.last_used == pytest.approx(5400)
        generate(site, keep_alive=-1)
        until(site, lambda: model.users == 0)
        assert (model.expires, model.state) == (None, "loaded")
        generate(site, keep_alive=0)
        until(site, lambda: model.state == "unloaded")


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"options": {"temperature": -1}}, 400, "^temperature .* -1"),
        ({"options": {"top_p": 2}}, 400, "^top_p"),
        ({"options": {"top_k": -2}}, 400, "^top_k"),
        ({"options": {"min_p": 2}}, 400, "^min_p"),
        ({"options": {"seed": 2**64}}, 400, "^seed"),
        ({"options": {"stop": ["a"] * 17}}, 400, "^stop has 17 strings; at most 16"),
        ({"options": {"stop": [""]}}, 400, "^stop must hold non-empty"),
        ({"options": {"num_predict": 0}}, 400, r"^options.num_predict is 0; .* -1"),
        ({"options": {"num_predict": -3}}, 400, r"^options.num_predict is -3"),
        ({"options": {"num_predict": 2**63}}, 400, r"^num_predict"),
        ({"options": {"num_ctx": 257}}, 400, r"^options.num_ctx is 257, .* 256 .* --max-model-len"),
        ({"options": {"num_ctx": 0}}, 400, r"^options.num_ctx is 0"),
        ({"options": {"num_thread": 64}}, 400, r"^options.num_thread is 64, .* \(--threads\)"),
        ({"options": {"repeat_penalty": 0}}, 400, r"^repeat_penalty"),
        ({"options": {"repeat_penalty": 1.1, "repeat_last_n": 64}}, 400, r"repeat_last_n is 64: repeat_penalty"),
        ({"options": {"frequency_penalty": 1, "repeat_last_n": 64}}, 400, r"repeat_last_n is 64: frequency_penalty"),
        ({"options": {"num_gpu": 33}}, 400, r"^options.num_gpu is not supported: models run on the CPU"),
        ({"options": {"num_batch": 512}}, 400, r"^options.num_batch .* --max-num-batched-tokens"),
        ({"options": {"mirostat": 2}}, 400, r"^options.mirostat is not supported"),
        ({"options": {"temprature": 1}}, 400, r"^unknown field 'options.temprature'"),
        ({"keep_alive": "soon"}, 400, r"^keep_alive is 'soon'; it must be"),
        ({"keep_alive": 1e300}, 400, "^keep_alive is 1e"),
        ({"think": True}, 400, "^think is not supported"),
        ({"think": "high"}, 400, "^think is not supported"),
        ({"format": "json"}, 400, "^format is not supported: structured output"),
        ({"format": {"$ref": "#"}}, 400, "^format is not supported: structured output"),
        ({"top_logprobs": 2}, 400, "^top_logprobs needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, 400, "^top_logprobs .* 20"),
        ({"truncate": True}, 400, "^truncate is not supported: nothing is cut off"),
        ({"model": "nope"}, 404, "no model 'nope'"),
        ({"model": "../etc/passwd"}, 400, "cannot be the name"),
        ({"model": "a\0b"}, 400, "cannot be the name"),
        ({"model": None}, 400, "^model: expected str"),
        ({"colour": 1}, 400, "^unknown field 'colour'"),
    ],
)
def test_refused_by_both(site: Site, fields: dict[str, Any], status: int, words: str) -> None:
    for path, more in ((GENERATE, {"prompt": "a"}), (CHAT, {"messages": HELLO})):
        answer = site.post(path, {"model": "tiny", **more, **fields})
        assert answer.status_code == status, answer.text
        assert list(answer.json()) == ["error"]
        assert re.search(words, answer.json()["error"]), answer.text


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        (GENERATE, {"prompt": "word " * 300}, "tokens .* holds 256 tokens"),
        (GENERATE, {"prompt": "a", "suffix": "b"}, "^suffix is not supported"),
        (GENERATE, {"prompt": "a", "images": ["x"]}, "^images is not supported: models here read text only"),
        (GENERATE, {"prompt": "a", "context": [1, 2]}, "^context is not supported: .* /api/chat"),
        (GENERATE, {"prompt": "a", "template": "{{ .Prompt }}"}, "^template is not supported"),
        (GENERATE, {"prompt": "a", "raw": True, "system": "b"}, "^system has no meaning with raw"),
        (CHAT, {"messages": [{"role": "user", "content": "word " * 300}]}, "tokens .* holds 256 tokens"),
        (CHAT, {"messages": HELLO, "tools": [{"type": "function"}]}, "^tools is not supported"),
        (CHAT, {"messages": [{**HELLO[0], "images": ["x"]}]}, r"^messages\[0\].images is not supported: .* text only"),
        (CHAT, {"messages": [{**HELLO[0], "tool_calls": [{}]}]}, r"^messages\[0\].tool_calls is not supported"),
        (CHAT, {"messages": [{"role": "king", "content": "x"}]}, r"^messages\[0\].role: .*king"),
        (CHAT, {"messages": "hello"}, "^messages: expected array"),
    ],
)
def test_refused(site: Site, path: str, fields: dict[str, Any], words: str) -> None:
    answer = site.post(path, {"model": "tiny", **fields})
    assert answer.status_code == 400, answer.text
    assert re.search(words, answer.json()["error"]), answer.text


def test_idle_values_are_taken(site: Site) -> None:
    """What clients send for "nothing"."""
    options = {"num_gpu": -1, "mirostat": 0, "typical_p": 1.0, "low_vram": False, "use_mmap": True, "main_gpu": None}
    idle = {"format": "", "suffix": "", "images": [], "context": [], "template": "", "system": "", "raw": False}
    assert generate(site, options=options, **idle)["response"] == generate(site)["response"]
    messages = [{**HELLO[0], "images": None, "tool_calls": None, "tool_name": None, "thinking": None}]
    assert chat(site, messages=messages, tools=[], options=options)["message"] == chat(site)["message"]


def test_not_json(site: Site) -> None:
    for content in (b"{", b'{"model": "tiny", "prompt": "\\ud800"}', b'{"options": {"temperature": NaN}}'):
        answer = site.http.post(GENERATE, content=content)
        assert (answer.status_code, list(answer.json())) == (400, ["error"])
    missing = site.http.get("/api/nothing")
    assert (missing.status_code, list(missing.json())) == (404, ["error"])


def test_a_full_queue(tiny_gguf: Callable[..., Path]) -> None:
    with busy_site(tiny_gguf) as site:
        answer = site.post(CHAT, model="tiny", messages=HELLO)
    assert answer.status_code == 503
    assert "max_waiting" in answer.json()["error"]
    assert int(answer.headers["retry-after"]) >= 1


def test_what_fails_in_a_stream_is_its_last_line(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine breaks once the client has seen the first line, and not before."""
    executor, seen, steps = site.llm._engine._executor, threading.Event(), []
    right = executor.run

    def fail(plan: Any) -> Any:
        steps.append(plan)
        if len(steps) < 4:
            return right(plan)
        assert seen.wait(30)
        raise MemoryError("the engine broke")

    monkeypatch.setattr(executor, "run", fail)
    body = {"model": "tiny", "messages": HELLO, "options": NEUTRAL, "logprobs": True}  # so each token has a line
    with site.http.stream("POST", CHAT, json=body) as answer:
        assert answer.status_code == 200
        received = []
        for each in answer.iter_lines():
            received.append(json.loads(each))
            seen.set()
    *pieces, last = received
    assert pieces
    assert all(piece["done"] is False for piece in pieces)
    assert list(last) == ["error"]
    assert "broke" not in last["error"]
