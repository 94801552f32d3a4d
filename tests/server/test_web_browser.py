"""The pages in headless Chromium, as a person uses them. Skipped where there is no Playwright or no Chromium."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.servers import Site, serve_tiny, tiny_spec_of

playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")

BEGUN = "document.querySelector('.turn:nth-of-type(2) .text')?.innerText.length > 0"

Page = Any
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        made = started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield made
        made.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """open_page(site, "/", width=..., ...): a page in a context of its own, which must not complain or ask others."""
    contexts, complaints, urls = [], [], []

    def make(site: Site, path: str = "/", *, width: int = 1000, expected: tuple[str, ...] = (), **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 760}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        own = site.url
        page.on("request", lambda request: urls.append((own, request.url)))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda told: None if any(e in told.text for e in expected) else complaints.append(told.text))
        page.goto(own + path)
        return page

    yield make
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for own, url in urls if not url.startswith(own)] == []


@contextlib.contextmanager
def held(site: Site, steps: int) -> Iterator[None]:
    """The engine stands still after so many steps, until the context is left."""
    executor, free, gate = site.llm._engine._executor, threading.Semaphore(steps), threading.Event()
    run = executor.run

    def hold(plan: Any) -> Any:
        if not free.acquire(blocking=False):
            gate.wait(60)
        return run(plan)

    executor.run = hold  # type: ignore[method-assign]
    try:
        yield
    finally:
        gate.set()
        executor.run = run  # type: ignore[method-assign]


def aborted(site: Site) -> int:
    """How many completions have been, once nothing runs."""
    for _ in range(400):
        if not site.llm.stats().running:
            return site.service.meters.of("tiny").finished["abort"]
        time.sleep(0.05)
    pytest.fail("it still runs")


def set_fields(page: Page, **values: str) -> None:
    """Type into the settings, and close them."""
    page.keyboard.press("Alt+s")
    for name, value in values.items():
        page.fill(f"#fields [name={name}]", value)
    page.keyboard.press("Escape")
    assert page.is_hidden("#settings")


def until(page: Page, expression: str) -> None:
    """Wait until it is true. Playwright's own way would need what the page's policy forbids."""
    for _ in range(400):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"it never came that {expression}")


def ask(page: Page, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def answered(page: Page, turns: int) -> str:
    """The last answer, once there are so many turns and the last is complete."""
    page.wait_for_selector(f".turn:nth-of-type({turns}) .again")
    return str(page.inner_text(f".turn:nth-of-type({turns}) .text"))


def reply_with(page: Page, *chunks: str, status: int = 200, error: str | None = None) -> list[dict[str, Any]]:
    """Answer chats without a model; the list holds the bodies of the requests, as they come."""
    bodies: list[dict[str, Any]] = []

    def answer(route: Any) -> None:
        bodies.append(json.loads(route.request.post_data))
        if error is not None:
            route.fulfill(status=status, json={"error": {"message": error}})
            return
        usage = {"prompt_tokens": 9, "completion_tokens": len(chunks), "prompt_tokens_details": {"cached_tokens": 4}}
        events = [{"choices": [{"delta": {"content": each}, "finish_reason": None}]} for each in chunks]
        events += [{"choices": [{"delta": {}, "finish_reason": "stop"}]}, {"choices": [], "usage": usage}]
        text = "".join(f"data: {json.dumps(each)}\n\n" for each in events) + "data: [DONE]\n\n"
        route.fulfill(status=200, content_type="text/event-stream", body=text)

    page.route("**/v1/chat/completions", answer)
    return bodies


def test_a_conversation(site: Site, open_page: Open) -> None:
    page = open_page(site)
    page.wait_for_selector("#model option", state="attached")
    assert page.input_value("#model") == "tiny"
    set_fields(page, temperature="0", max_tokens="12")
    with held(site, 6):  # so that the first token and the last cannot come at once
        ask(page, "Hello there")
        until(page, BEGUN)
    shown = answered(page, 2)
    told = page.inner_text(".turn:nth-of-type(2) .foot")
    assert "first token" in told
    assert "tok/s" in told
    assert "12 tokens" in told
    whole = site.chat("Hello there", max_tokens=12).json()["choices"][0]["message"]["content"]
    assert "".join(shown.split()) == "".join(whole.split())  # Markdown may break its lines elsewhere
    ask(page, "And then?")
    answered(page, 4)
    assert page.locator(".again").count() == 1
    assert "cached" in page.inner_text(".turn:nth-of-type(4) .foot")


def test_what_is_sent(site: Site, open_page: Open) -> None:
    page = open_page(site)
    page.wait_for_selector("#model option", state="attached")
    bodies = reply_with(page, "One", " answer")
    set_fields(page, system="Be brief.", temperature="0", top_k="40")
    ask(page, "First")
    assert answered(page, 2) == "One answer"
    page.press("#prompt", "Shift+Enter")
    assert page.input_value("#prompt") == "\n"
    ask(page, "Second")
    answered(page, 4)
    system = {"role": "system", "content": "Be brief."}
    first = [system, {"role": "user", "content": "First"}]
    assert bodies[0]["messages"] == first
    assert bodies[1]["messages"][1:-1] == [first[1], {"role": "assistant", "content": "One answer"}]
    assert {name: bodies[0][name] for name in ("model", "temperature", "top_k")} == {
        "model": "tiny",
        "temperature": 0,
        "top_k": 40,
    }
    assert not {"top_p", "seed", "max_tokens", "min_p", "repetition_penalty"} & bodies[0].keys()
    page.reload()
    page.wait_for_selector("#model option", state="attached")
    page.keyboard.press("Alt+s")
    assert page.input_value("[name=system]") == "Be brief."


def test_stop_ends_the_request_and_keeps_what_has_come(site: Site, open_page: Open) -> None:
    page = open_page(site)
    page.wait_for_selector("#model option", state="attached")
    set_fields(page, temperature="0")
    before = aborted(site)
    with held(site, 6):
        ask(page, "Hello there")
        until(page, BEGUN)
        assert page.is_hidden("#send")
        page.keyboard.press("Escape")
        assert answered(page, 2)
    assert "stopped" in page.inner_text(".turn:nth-of-type(2) .foot")
    assert page.is_hidden("#stop")
    assert aborted(site) == before + 1


def test_a_new_chat_leaves_the_old_one(site: Site, open_page: Open) -> None:
    page = open_page(site)
    page.wait_for_selector("#model option", state="attached")
    set_fields(page, temperature="0")
    before = aborted(site)
    with held(site, 6):
        ask(page, "Hello there")
        until(page, BEGUN)
        page.keyboard.press("Alt+n")
        until(page, "document.querySelectorAll('.turn').length === 0")
        assert page.is_visible("#send")
    assert aborted(site) == before + 1
    bodies = reply_with(page, "Hi")
    ask(page, "Hello")
    assert answered(page, 2) == "Hi"
    assert bodies[0]["messages"] == [{"role": "user", "content": "Hello"}]


def test_text_of_a_model_never_becomes_markup(site: Site, open_page: Open) -> None:
    page = open_page(site)
    evil = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
    text = f"{evil}\n\n**{evil}**\n\n- {evil}\n\n`{evil}`\n\n```{evil}\n{evil}\n```\n\n# {evil}\n\n> {evil}"
    text += "\n\n[link](javascript:document.title='taken')"
    reply_with(page, *text)
    ask(page, evil)
    shown = answered(page, 2)
    assert shown.count("onerror") == 7
    assert page.title() == "Octavo"
    assert page.locator("main :is(img, script, a, iframe, [onerror])").count() == 0
    assert page.inner_text(".turn.user .text") == evil


MARKDOWN = """# Head
Some *em*, **strong** and `a*b*c`; 2 * 3 * 4 and __init__ stay.

- one
- two
  more

1. first

2. second

```python
def f():

    return "```"
```
> said
> twice

---
**not closed
"""


def test_markdown(site: Site, open_page: Open) -> None:
    page = open_page(site)
    reply_with(page, *MARKDOWN)
    ask(page, "Go")
    answered(page, 2)
    seen = page.evaluate("""() => [...document.querySelector('.turn.assistant .text').children].map(
        (each) => [each.localName, each.querySelector('pre')?.innerText ?? each.innerText])""")
    assert seen == [
        ["h3", "Head"],
        ["p", "Some em, strong and a*b*c; 2 * 3 * 4 and __init__ stay."],
        ["ul", "one\ntwo\nmore"],
        ["ol", "first\nsecond"],
        ["div", 'def f():\n\n    return "```"'],
        ["blockquote", "said\ntwice"],
        ["hr", ""],
        ["p", "**not closed"],
    ]
    for tag, text in (("em", "em"), ("strong", "strong"), ("p code", "a*b*c"), (".code span", "python")):
        assert page.inner_text(f".turn.assistant {tag}") == text


def test_long_odd_text_is_drawn_fast(site: Site, open_page: Open) -> None:
    page = open_page(site)
    took = page.evaluate("""async () => {
        const { render } = await import('/web/markdown.js');
        const box = document.createElement('div');
        const start = performance.now();
        for (const text of ['*a', '**a', '`a', '` ``', '* ', '_a', '> ', '#'])
            render(box, text.repeat(50_000));
        return performance.now() - start;
    }""")
    assert took < 10_000  # a second or so; what is quadratic takes minutes


def test_an_error_is_shown_and_the_message_given_back(site: Site, open_page: Open) -> None:
    page = open_page(site, expected=("status of 503",))
    reply_with(page, status=503, error="as many requests wait as may")
    ask(page, "Important words")
    page.wait_for_selector(".error")
    assert "as many requests wait as may" in page.inner_text(".error")
    assert page.input_value("#prompt") == "Important words"
    assert page.locator(".turn").count() == 0
    page.unroute("**/v1/chat/completions")
    bodies = reply_with(page, "Here")
    page.press("#prompt", "Enter")
    assert answered(page, 2) == "Here"
    assert page.locator(".error").count() == 0
    assert len(bodies[0]["messages"]) == 1


def test_the_servers_own_refusal_is_shown(site: Site, open_page: Open) -> None:
    page = open_page(site, expected=("status of 400",))
    ask(page, "word " * 500)
    page.wait_for_selector(".error")
    assert "context window" in page.inner_text(".error")


def test_try_again_replaces_the_answer(site: Site, open_page: Open) -> None:
    page = open_page(site)
    bodies = reply_with(page, "Same")
    ask(page, "Question")
    answered(page, 2)
    page.click(".again")
    until(page, "document.querySelectorAll('.again').length === 1")
    assert answered(page, 2) == "Same"
    assert bodies[0]["messages"] == bodies[1]["messages"]


def test_a_key_is_asked_for_where_one_is_needed(tiny_gguf: Callable[..., Path], open_page: Open) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf()), api_keys=("secret",)) as site:
        page = open_page(site, expected=("status of 401",))
        page.fill("#key input", "wrong")
        page.press("#key input", "Enter")
        until(page, "document.querySelector('#key')?.innerText.includes('did not take')")
        page.fill("#key input", "secret")
        page.press("#key input", "Enter")
        page.wait_for_selector("#model option", state="attached")
        set_fields(page, max_tokens="4")
        ask(page, "Hi")
        answered(page, 2)
        page.goto(site.url + "/dashboard")  # the tab remembers
        until(page, "document.querySelector('#state').innerText.includes('loaded')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/", "/dashboard"])
def test_a_phone_is_wide_enough(site: Site, open_page: Open, path: str, scheme: str) -> None:
    page = open_page(site, path, width=360, color_scheme=scheme)
    page.wait_for_selector("#model option", state="attached")
    if path == "/":
        reply_with(page, "A long_" * 40, "\n```\n", "x" * 200, "\n```\n")
        ask(page, "w" * 300)
        answered(page, 2)
        page.click("#toggle")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, back.removeprefix("rgb(").removesuffix(")").split(","))) < 384) == (scheme == "dark")


def test_the_dashboard_is_alive(site: Site, open_page: Open) -> None:
    page = open_page(site, "/dashboard")
    until(page, "document.querySelector('#state').innerText.includes('model loaded')")
    tokens = site.chat("Hello").json()["usage"]["completion_tokens"]
    generated = site.service.meters.of("tiny").totals.latest()["generated_tokens"]
    assert generated >= tokens
    until(page, f"document.querySelector('#totals').innerText.includes('{int(generated):,}')")
    until(page, "document.querySelector('#output').innerText !== '–'")
    assert "ms" in page.inner_text("#latency")
    assert page.locator("#output-chart path.line").get_attribute("d").startswith("M")
    assert page.inner_text("#running") == "0"


def test_the_dashboard_says_when_the_server_is_gone(tiny_gguf: Callable[..., Path], open_page: Open) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf())) as site:
        page = open_page(site, "/dashboard", expected=("ERR_CONNECTION_REFUSED", "Failed to load resource"))
        until(page, "document.querySelector('#state').innerText.includes('model loaded')")
    page.wait_for_selector("#problem")
    assert "cannot be reached" in page.inner_text("#problem")
