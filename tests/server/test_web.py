"""The pages as files: what is sent, to whom, and under which policy. test_web_browser.py uses them."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from helpers.servers import Site, serve_tiny, tiny_spec_of

HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
FOLDER = files("octavo.server.web").joinpath("static")
NAMES = sorted(each.name for each in FOLDER.iterdir())


def parts_of(site: Site, page: str) -> list[str]:
    """The files that a page loads, and those that they load."""
    found, waiting = [], [site.http.get(page, headers=HTML).text]
    while waiting:
        text = waiting.pop()
        for name in re.findall(r"""(?:src|href)="web/([\w.]+)"|from "\./([\w.]+)";""", text):
            (file,) = filter(None, name)
            if file not in found:
                found.append(file)
                waiting.append(site.http.get(f"/web/{file}").text)
    return found


def test_a_browser_gets_the_chat_and_ollamas_clients_their_line(site: Site) -> None:
    page = site.http.get("/", headers=HTML)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<textarea" in page.text
    line = site.http.get("/")
    assert line.headers["content-type"].startswith("text/plain")
    assert line.text == "Ollama is running"
    assert page.headers["vary"] == line.headers["vary"] == "accept"
    assert site.http.head("/").status_code == 200


@pytest.mark.parametrize(("page", "limit"), [("/", 30_000), ("/dashboard", 30_000)])
def test_a_page_is_small_and_all_of_it_is_here(site: Site, page: str, limit: int) -> None:
    first = site.http.get(page, headers=HTML)
    parts = parts_of(site, page)
    assert len(parts) >= 4
    answers = [site.http.get(f"/web/{name}") for name in parts]
    assert [answer.status_code for answer in answers] == [200] * len(parts)
    assert sum(len(answer.content) for answer in [first, *answers]) < limit


def test_no_file_is_left_over(site: Site) -> None:
    loaded = {*parts_of(site, "/"), *parts_of(site, "/dashboard"), "chat.html", "dashboard.html"}
    assert loaded == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_loaded_from_elsewhere(name: str) -> None:
    text = FOLDER.joinpath(name).read_text("utf-8")
    urls = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[\w./-]*", text)) - {"http://www.w3.org/2000/svg"}
    assert urls == set()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    if name.endswith(".html"):
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text)


@pytest.mark.parametrize("path", ["/", "/dashboard", "/web/chat.js"])
def test_what_a_page_may_do_is_limited(site: Site, path: str) -> None:
    headers = site.http.get(path, headers=HTML).headers
    policy = dict(each.strip().split(" ", 1) for each in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in headers["content-security-policy"]
    assert policy["frame-ancestors"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"


def test_a_file_that_has_not_changed_is_not_sent_again(site: Site) -> None:
    first = site.http.get("/web/chat.js")
    again = site.http.get("/web/chat.js", headers={"if-none-match": first.headers["etag"]})
    other = site.http.get("/web/common.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert other.status_code == 200


@pytest.mark.parametrize("name", ["nothing.js", "..%2fstats.py", "%2e%2e/stats.py", "__init__.py", "chat.js%00"])
def test_only_the_pages_files_are_served(site: Site, name: str) -> None:
    assert site.http.get(f"/web/{name}").status_code == 404


def test_pages_need_no_key_and_hold_nothing_that_does(tiny_gguf: Callable[..., Path]) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf()), api_keys=("secret",)) as site:
        wrong = {"authorization": "Bearer wrong"}
        for path in ("/", "/dashboard", "/web/common.js"):
            assert site.http.get(path, headers=HTML | wrong).status_code == 200
        assert site.http.get("/dashboard/stats", headers=wrong).status_code == 401
        assert site.http.get("/dashboard/stats").status_code == 200


def test_the_numbers_of_the_dashboard(site: Site) -> None:
    site.http.get("/dashboard/stats")
    usage = site.chat("Hello dashboard").json()["usage"]
    stats = site.http.get("/dashboard/stats").json()
    (model,) = stats["models"]
    assert (model["model"], model["state"], stats["http_active"], stats["problem"]) == ("tiny", "loaded", 0, None)
    assert model["counts"]["generated_tokens"] >= usage["completion_tokens"]
    pages = model["pages"]
    assert pages["used"] + pages["cached"] + pages["free"] == site.llm.config.num_pages
    assert pages["tokens"] == site.llm.config.block_size
    assert model["latency"]["first_token"]["p50"] <= model["latency"]["first_token"]["p99"]
    assert model["counts"]["finished"].keys() <= {"stop", "length", "abort", "error", "timeout"}
    assert model["limit_tok_s"] is None  # the reference backend has none


def test_speeds_once_it_has_been_asked_twice(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.server.speed._APART_S", 0.0)
    site.http.get("/dashboard/stats")
    site.chat("How fast?")
    (model,) = site.http.get("/dashboard/stats").json()["models"]
    assert model["output_tok_s"] > 0
    assert sum(model["step_shares"].values()) == pytest.approx(1)


def test_a_model_that_is_not_loaded_has_numbers_too(tiny_gguf: Callable[..., Path]) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf()), tiny_spec_of(tiny_gguf("qwen2"), "other")) as site:
        models = site.http.get("/dashboard/stats").json()["models"]
    assert [(each["model"], each["state"]) for each in models] == [("tiny", "loaded"), ("other", "unloaded")]
    assert models[1]["pages"]["free"] == models[1]["counts"]["steps"] == 0
