"""POST /v1/responses, its events, and what is kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from helpers.servers import Site, held, idle, serve_tiny, tiny_spec_of, wait_until

PATH = "/v1/responses"
GREEDY: dict[str, Any] = {"input": "Hello there", "max_output_tokens": 8, "temperature": 0}


def stream(site: Site, **fields: Any) -> list[dict[str, Any]]:
    answer = site.post(PATH, GREEDY, stream=True, **fields)
    assert answer.status_code == 200, answer.text
    found = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def text_of(response: dict[str, Any]) -> str:
    return str(response["output"][0]["content"][0]["text"])


def test_events_in_order_and_the_same_text_as_whole(site: Site) -> None:
    whole = site.post(PATH, GREEDY).json()
    events = stream(site)
    names = [event["type"].removeprefix("response.") for event in events]
    opening = ["created", "in_progress", "output_item.added", "content_part.added"]
    closing = ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert names[:4] == opening
    assert names[-4:] == closing
    assert set(names[4:-4]) == {"output_text.delta"}
    told = "".join(event["delta"] for event in events[4:-4])
    assert told == events[-4]["text"] == text_of(events[-1]["response"]) == text_of(whole) != ""
    assert events[0]["response"]["status"] == "in_progress"
    assert whole["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    usage = whole["usage"]
    assert (usage["output_tokens"], usage["total_tokens"]) == (8, usage["input_tokens"] + 8)


def test_an_answer_that_ends_by_itself_is_completed(site: Site) -> None:
    text = text_of(site.post(PATH, GREEDY).json())
    made = site.post(PATH, GREEDY, stop=text[2:4]).json()
    assert (made["status"], made["incomplete_details"]) == ("completed", None)
    assert text_of(made) == text[:2]
    assert stream(site, stop=text[2:4])[-1]["type"] == "response.completed"


def test_a_conversation_goes_on(site: Site) -> None:
    first = site.post(PATH, GREEDY, instructions="Be brief").json()
    second = site.post(PATH, GREEDY, input="And then?", previous_response_id=first["id"]).json()
    assert second["previous_response_id"] == first["id"]
    turns = [
        {"role": "user", "content": "Hello there"},
        {"role": "assistant", "content": text_of(first)},
        {"role": "user", "content": "And then?"},
    ]
    by_hand = site.post(PATH, GREEDY, input=turns).json()
    assert text_of(second) == text_of(by_hand)
    assert second["usage"]["input_tokens"] == by_hand["usage"]["input_tokens"], "instructions do not go on"
    given_back = site.post(PATH, GREEDY, input=[turns[0], *first["output"], turns[2]]).json()
    assert text_of(given_back) == text_of(second)


def test_what_is_kept_can_be_asked_for_and_forgotten(site: Site) -> None:
    made = site.post(PATH, GREEDY, metadata={"a": "b"}).json()
    assert site.http.get(f"{PATH}/{made['id']}").json() == made
    assert made["metadata"] == {"a": "b"}
    assert site.post(f"{PATH}/{made['id']}/cancel").json() == made, "it had ended"
    assert site.http.delete(f"{PATH}/{made['id']}").json()["deleted"]
    assert site.http.get(f"{PATH}/{made['id']}").status_code == 404
    unkept = site.post(PATH, GREEDY, store=False).json()
    assert site.http.get(f"{PATH}/{unkept['id']}").status_code == 404


def test_one_that_runs_can_be_cancelled(site: Site) -> None:
    events: list[dict[str, Any]] = []
    cancelled: list[dict[str, Any]] = []
    body = {**GREEDY, "max_output_tokens": 200, "ignore_eos": True, "stream": True}

    def read() -> None:
        with httpx.stream("POST", site.url + PATH, json=body, timeout=None) as answer:
            events.extend(json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))

    def cancel() -> None:
        cancelled.append(httpx.post(f"{site.url}{PATH}/{name}/cancel", timeout=None).json())

    with held(site.llm, 5) as go:
        reader = threading.Thread(target=read)
        reader.start()
        wait_until(lambda: events)
        name = events[0]["response"]["id"]
        assert site.http.get(f"{PATH}/{name}").json()["status"] == "in_progress"
        canceller = threading.Thread(target=cancel)
        canceller.start()
        wait_until(lambda: site.llm._loop._calls.qsize())
        go.set()
        reader.join(20)
        canceller.join(20)
    final = site.http.get(f"{PATH}/{name}").json()
    assert cancelled[0]["status"] == final["status"] == "cancelled"
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["status"] == "cancelled"
    assert 0 < final["usage"]["output_tokens"] < 200
    wait_until(lambda: idle(site.llm))


def test_the_oldest_go_first_and_keys_see_their_own(tiny_gguf: Callable[..., Path]) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf()), max_stored_responses=2, api_keys=("one", "two")) as site:
        first, second, third = (site.post(PATH, GREEDY).json()["id"] for _ in range(3))
        assert site.http.get(f"{PATH}/{first}").status_code == 404
        assert site.http.get(f"{PATH}/{third}").status_code == 200
        other = {"authorization": "Bearer two"}
        assert httpx.get(f"{site.url}{PATH}/{second}", headers=other).status_code == 404
        answer = httpx.post(site.url + PATH, json={**GREEDY, "previous_response_id": second}, headers=other)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "previous_response_id")


def test_log_probabilities(site: Site) -> None:
    made = site.post(PATH, GREEDY, top_logprobs=2).json()
    listed = made["output"][0]["content"][0]["logprobs"]
    assert len(listed) == 8
    assert all(len(each["top_logprobs"]) == 2 for each in listed)
    assert [each for event in stream(site, top_logprobs=2) for each in event.get("logprobs", [])][:8] == listed
