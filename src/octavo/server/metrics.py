"""GET /metrics, for Prometheus: under vLLM's names where it has one for the same thing, so that its dashboards work.

A scrape reads counters that are there already; see meters.py. docs/server.md lists every metric.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from octavo.core.outputs import FinishReason, MissReason
from octavo.server.http import Call, Endpoint, Reply
from octavo.server.meters import Histogram, ModelMeters
from octavo.server.openai import OPENAI
from octavo.server.service import Service
from octavo.server.speed import STAGES

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["ServerCollector", "metrics_routes"]

FRACTION_S = 90.0
"""The fraction of the memory limit is that of so many seconds before a scrape, as far as scrapes reach back."""

_REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort", "error", "timeout")
_MISSES: tuple[MissReason, ...] = ("off", "short", "logprobs", "salt", "adapter", "evicted", "differs", "new")

# Name without _total, name in Totals, help.
_COUNTERS = (
    ("vllm:prompt_tokens", "prompt_tokens", "Prompt tokens processed, those from the prefix cache included."),
    ("vllm:generation_tokens", "generated_tokens", "Tokens generated."),
    ("vllm:num_preemptions", "preemptions", "Sequences that gave up their pages and were continued later."),
    ("vllm:prefix_cache_queries", "queried_tokens", "Prompt tokens looked up in the prefix cache."),
    ("vllm:prefix_cache_hits", "hit_tokens", "Prompt tokens found in the prefix cache."),
    ("octavo:prompt_tokens_computed", "computed_tokens", "Prompt tokens computed, without those from the cache."),
    ("octavo:prefix_cache_disk_hits", "disk_tokens", "Of the hits, tokens that were read back from disk."),
    ("octavo:swaps", "swaps", "Of the preemptions, those whose pages were kept aside instead of computed again."),
    ("octavo:requests_refused", "refused", "Requests that found the queue full."),
    ("octavo:kv_pages_evicted", "evicted_pages", "Cached pages that were given to others."),
    ("octavo:engine_steps", "steps", "Steps of the engine."),
)
_HISTOGRAMS = (
    ("vllm:time_to_first_token_seconds", "first_token", "From a request's arrival to its first token."),
    ("vllm:inter_token_latency_seconds", "inter_token", "Between tokens, as the server sees them come."),
    ("vllm:request_time_per_output_token_seconds", "per_output_token", "Mean of a request's tokens after the first."),
    ("vllm:e2e_request_latency_seconds", "end_to_end", "From arrival to the last token."),
    ("vllm:request_queue_time_seconds", "queue", "From arrival until a request is first given pages."),
    ("vllm:request_prefill_time_seconds", "prefill", "From then to its first token."),
    ("vllm:request_decode_time_seconds", "decode", "From its first token to its last."),
    ("vllm:request_inference_time_seconds", "inference", "Prefill and decode together."),
    ("vllm:request_prompt_tokens", "prompt_tokens", "Prompt tokens of a request that was started."),
    ("vllm:request_generation_tokens", "generation_tokens", "Tokens of a completion that has ended."),
)


def metrics_routes(service: Service) -> list[Endpoint]:
    """The route, with a registry of its own: several servers may live in one process."""
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry()
    registry.register(ServerCollector(service))
    ProcessCollector(registry=registry)

    async def metrics(call: Call) -> Reply:
        encode, media_type = choose_encoder(call.headers.get("accept", ""))
        return Reply(encode(registry), media_type=media_type)

    return [Endpoint("/metrics", "GET", metrics, OPENAI, "Metrics in the text format of Prometheus.")]


class ServerCollector:
    """Makes the metrics of a service whenever they are collected."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def describe(self) -> list[Metric]:
        """Nothing: what is registered need not be collected first."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics, each with the samples of every model."""
        service = self._service
        yield from self._http()
        yield from _gauges(service)
        yield from _counters(service)
        for name, attribute, about in _HISTOGRAMS:
            yield _histogram(name, about, [(model, getattr(own, attribute)) for model, own in _meters(service)])

    def _http(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        service = self._service
        active = GaugeMetricFamily("octavo:http_requests_active", "HTTP requests under way, but for this one.")
        active.add_metric([], len(service.active) - 1)
        yield active
        ended = CounterMetricFamily(
            "octavo:http_requests", "HTTP requests that have ended.", labels=["method", "route", "status"]
        )
        for (method, route, status), count in service.meters.requests.items():
            ended.add_metric([method, route, str(status)], count)
        yield ended


def _meters(service: Service) -> list[tuple[str, ModelMeters]]:
    return [(model.name, service.meters.of(model.name)) for model in service.registry.models]


def _gauges(service: Service) -> Iterator[Metric]:
    """The state of every model, and of the engines that are loaded."""
    from prometheus_client.core import GaugeMetricFamily

    def gauge(name: str, about: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(name, about, labels=["model_name", *labels])

    loaded = gauge("octavo:model_loaded", "Whether the model is in memory.")
    running = gauge("vllm:num_requests_running", "Sequences that have pages.")
    waiting = gauge("vllm:num_requests_waiting", "Sequences that wait for a place.")
    usage = gauge("vllm:kv_cache_usage_perc", "Part of the KV pages that running sequences use; 1 is all.")
    pages = gauge("octavo:kv_pages", "KV pages: used, cached (free if needed), free.", "state")
    filled = gauge("octavo:kv_slot_utilization", "Part of the used pages' room that holds a token.")
    limit = gauge("octavo:memory_limit_step_seconds", "A decode step of what runs now, at the memory's measured rate.")
    fraction = gauge("octavo:memory_limit_fraction", "That time over what steps took lately; 1 is the limit.")
    for model in service.registry.models:
        reading, name = service.meters.read(model), model.name
        loaded.add_metric([name], reading is not None)
        if reading is None:
            continue
        stats, cache = reading.stats, reading.stats.cache
        running.add_metric([name], stats.running)
        waiting.add_metric([name], stats.waiting)
        counts = {"used": cache.used_pages, "cached": cache.cached_pages, "free": cache.free_pages}
        usage.add_metric([name], cache.used_pages / sum(counts.values()))
        for state, count in counts.items():
            pages.add_metric([name, state], count)
        filled.add_metric([name], stats.utilization)
        if reading.step_limit_s is not None:
            limit.add_metric([name], reading.step_limit_s)
        speed = service.meters.of(name).speedometer.speed(FRACTION_S)
        if speed is not None and speed.limit_fraction is not None:
            fraction.add_metric([name], speed.limit_fraction)
    yield from (loaded, running, waiting, usage, pages, filled, limit, fraction)


def _counters(service: Service) -> Iterator[Metric]:
    """What only grows, of models that have ever been loaded."""
    from prometheus_client.core import CounterMetricFamily

    meters = _meters(service)
    totals = [(name, latest) for name, own in meters if (latest := own.totals.latest())]
    for metric, count, about in _COUNTERS:
        family = CounterMetricFamily(metric, about, labels=["model_name"])
        for name, latest in totals:
            family.add_metric([name], latest[count])
        yield family
    stages = CounterMetricFamily(
        "octavo:engine_step_seconds", "Time of all steps, by stage.", labels=["model_name", "stage"]
    )
    for name, latest in totals:
        for stage in STAGES:
            stages.add_metric([name, stage.removesuffix("_s")], latest[stage])
    yield stages
    by_reason = (
        ("vllm:request_success", "finished_reason", "Completions that have ended, well or not.", "finished", _REASONS),
        ("octavo:prefix_cache_misses", "reason", "Prompts that were not cached whole.", "misses", _MISSES),
        ("octavo:prefix_cache_missed_tokens", "reason", "Their tokens from there on.", "missed_tokens", _MISSES),
    )
    for metric, label, about, attribute, reasons in by_reason:
        family = CounterMetricFamily(metric, about, labels=["model_name", label])
        for name, own in meters:
            for reason in reasons:
                family.add_metric([name, reason], getattr(own, attribute)[reason])
        yield family


def _histogram(name: str, about: str, models: Iterable[tuple[str, Histogram]]) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(name, about, labels=["model_name"])
    for model, histogram in models:
        counts, total = histogram.read()
        buckets, below = [], 0
        for bound, count in zip([*map(float, histogram.bounds), "+Inf"], counts, strict=True):
            below += count
            buckets.append((str(bound), float(below)))
        family.add_metric([model], buckets, total)
    return family
