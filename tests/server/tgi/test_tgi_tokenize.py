"""POST /tokenize, where two APIs meet: bodies with `inputs` are TGI's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from helpers.servers import Site, serve_tiny, tiny_spec_of
from helpers.tiny import write_tiny_gguf


def tokenize(site: Site, **body: Any) -> Any:
    return site.post("/tokenize", body).json()


@pytest.mark.parametrize("text", ["Hello the world", "naïve 🙂 text", ""])
def test_tokens_and_their_places(site: Site, text: str) -> None:
    listed = tokenize(site, inputs=text)
    assert [each["id"] for each in listed] == site.llm.tokenizer.encode(text)
    assert "".join(each["text"] for each in listed) == text
    assert all(text[each["start"] : each["stop"]] == each["text"] for each in listed)


def test_a_token_before_the_text_is_nowhere_in_it(tmp_path: Path) -> None:
    with serve_tiny(tiny_spec_of(write_tiny_gguf(tmp_path / "bos.gguf", add_bos=True))) as site:
        first, second, *_ = tokenize(site, inputs="Hello")
    assert (first["text"], first["start"], first["stop"]) == ("<|endoftext|>", 0, 0)
    assert second["start"] == 0


def test_the_other_api_is_still_there(site: Site) -> None:
    assert tokenize(site, prompt="Hello")["tokens"] == [each["id"] for each in tokenize(site, inputs="Hello")]


def test_errors_are_spelled_as_each_api_does(site: Site) -> None:
    theirs = site.post("/tokenize", {"inputs": "a", "colour": 1})
    assert (theirs.status_code, theirs.json()["error_type"]) == (422, "validation")
    ours = site.post("/tokenize", {"prompt": "a", "colour": 1})
    assert (ours.status_code, ours.json()["error"]["param"]) == (400, "colour")
    assert site.http.post("/tokenize", content=b"{").json()["error"]["code"] == "invalid_json"


def test_both_are_described(site: Site) -> None:
    schema = site.http.get("/openapi.json").json()["paths"]["/tokenize"]["post"]
    bodies = schema["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
    assert [re.split(r"[/.]", each["$ref"])[-1] for each in bodies] == ["TokenizeRequest", "GenerateRequest"]
    assert "422" in schema["responses"]
