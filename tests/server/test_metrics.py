"""GET /metrics: what Prometheus and dashboards made for vLLM find there."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from helpers.servers import Site, serve_tiny, tiny_spec_of

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

HISTOGRAMS = [
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
]
COUNTERS = [
    "num_preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
]


def scrape(site: Site) -> Samples:
    answer = site.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse(answer.text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset({"model_name": "tiny", **labels}.items())]


def test_vllms_names_are_there_before_any_request(tiny_gguf: Callable[..., Path]) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf())) as site:
        samples = scrape(site)
    for name in [*COUNTERS, "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"]:
        assert value(samples, f"vllm:{name}") == 0
    for name in HISTOGRAMS:
        assert value(samples, f"vllm:{name}_count") == value(samples, f"vllm:{name}_sum") == 0
    assert value(samples, "vllm:request_success_total", finished_reason="stop") == 0
    assert value(samples, "octavo:model_loaded") == 1


def test_counters_add_up(site: Site) -> None:
    before = scrape(site)
    usage = site.chat("Count me").json()["usage"]
    after = scrape(site)

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert grown("vllm:generation_tokens_total") == usage["completion_tokens"]
    assert grown("vllm:prompt_tokens_total") == usage["prompt_tokens"]
    assert grown("vllm:prefix_cache_queries_total") == usage["prompt_tokens"]
    assert grown("vllm:prefix_cache_hits_total") == usage["prompt_tokens_details"]["cached_tokens"]
    ends = [grown("vllm:request_success_total", finished_reason=reason) for reason in ("length", "stop")]
    assert sum(ends) == 1
    assert grown("vllm:inter_token_latency_seconds_count") == usage["completion_tokens"] - 1
    for name in HISTOGRAMS:
        if not name.startswith("inter_token"):
            assert grown(f"vllm:{name}_count") == 1, name
    assert grown("vllm:request_prompt_tokens_sum") == usage["prompt_tokens"]
    assert grown("octavo:engine_steps_total") > 0
    assert grown("octavo:engine_step_seconds_total", stage="run") > 0


def test_buckets_are_cumulative_and_end_at_infinity(site: Site) -> None:
    site.chat()
    samples = scrape(site)
    for name in HISTOGRAMS:
        buckets = sorted(
            (math.inf if (bound := dict(labels)["le"]) == "+Inf" else float(bound), count)
            for (metric, labels), count in samples.items()
            if metric == f"vllm:{name}_bucket"
        )
        counts = [count for _, count in buckets]
        assert counts == sorted(counts)
        assert buckets[-1] == (math.inf, value(samples, f"vllm:{name}_count"))


def test_misses_have_a_reason(site: Site) -> None:
    before = scrape(site)
    site.chat("one two three four five six seven eight nine ten", cache_salt="metrics")
    after = scrape(site)
    reasons = {
        dict(labels)["reason"]: after[name, labels] - before[name, labels]
        for name, labels in after
        if name == "octavo:prefix_cache_misses_total"
    }
    assert sum(reasons.values()) == 1
    assert set(reasons) == {"off", "short", "logprobs", "salt", "adapter", "evicted", "differs", "new"}


def test_http_requests_by_route_and_status(site: Site) -> None:
    before = scrape(site)
    site.http.get("/no/such/path")
    site.http.request("PROPFIND", "/v1/models")
    after = scrape(site)
    key = "octavo:http_requests_total", frozenset({"method": "GET", "route": "-", "status": "404"}.items())
    assert after[key] == before.get(key, 0) + 1
    odd = "octavo:http_requests_total", frozenset({"method": "other", "route": "/v1/models", "status": "405"}.items())
    assert after[odd] == before.get(odd, 0) + 1
    assert after["octavo:http_requests_active", frozenset()] == 0


def test_the_pages_are_all_accounted_for(site: Site) -> None:
    site.chat()
    samples = scrape(site)
    states = [value(samples, "octavo:kv_pages", state=state) for state in ("used", "cached", "free")]
    assert sum(states) == site.llm.config.num_pages
    assert states[1] > 0


def test_openmetrics_for_those_who_ask(site: Site) -> None:
    answer = site.http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in parse_openmetrics(answer.text)}
    assert {"vllm:prompt_tokens", "vllm:time_to_first_token_seconds"} <= names


def test_an_unloaded_model_keeps_its_counts_and_has_no_engine(tiny_gguf: Callable[..., Path]) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf())) as site:
        tokens = site.chat().json()["usage"]["completion_tokens"]
        registry = site.service.registry
        site.do(registry.unload(registry.models[0]))
        unloaded = scrape(site)
        assert value(unloaded, "octavo:model_loaded") == 0
        assert value(unloaded, "vllm:generation_tokens_total") == tokens
        assert ("vllm:num_requests_running", frozenset({("model_name", "tiny")})) not in unloaded
        again = site.chat().json()["usage"]["completion_tokens"]
        assert value(scrape(site), "vllm:generation_tokens_total") == tokens + again


def test_a_client_that_leaves_counts_as_aborted(site: Site) -> None:
    before = value(scrape(site), "vllm:request_success_total", finished_reason="abort")
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200, "stream": True, "ignore_eos": True}
    with site.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        next(answer.iter_raw())
    for _ in range(500):
        if value(scrape(site), "vllm:request_success_total", finished_reason="abort") == before + 1:
            break
        time.sleep(0.01)
    else:
        pytest.fail("it was not counted")


def test_a_key_is_needed_where_one_is_configured(tiny_gguf: Callable[..., Path]) -> None:
    with serve_tiny(tiny_spec_of(tiny_gguf()), api_keys=("secret",)) as site:
        assert site.http.get("/metrics").status_code == 200
        assert site.http.get("/metrics", headers={"authorization": "Bearer wrong"}).status_code == 401


def test_the_grafana_dashboard_asks_for_metrics_that_are_there(site: Site) -> None:
    site.chat()
    known = {name for name, _ in scrape(site)} | {"octavo:memory_limit_fraction"}  # that one needs a native engine
    board = json.loads((Path(__file__).parents[2] / "docs" / "grafana-dashboard.json").read_text("utf-8"))
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\b(?:vllm:|octavo:|process_)\w+", target["expr"])
    }
    assert len(asked) > 20
    assert asked - known == set()


def test_the_documentation_lists_every_metric(site: Site) -> None:
    site.chat()
    families = parse(site.http.get("/metrics").text)
    names = {f"{each.name}_total" if each.type == "counter" else each.name for each in families}
    ours = {name for name in names if name.startswith(("vllm:", "octavo:"))}
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text("utf-8")
    assert set(re.findall(r"^\| `((?:vllm|octavo):\w+)`", page, re.MULTILINE)) == ours
