"""GET /dashboard/stats: what the dashboard shows, as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from octavo.server.http import Call, Endpoint, Reply
from octavo.server.meters import Histogram, ModelMeters
from octavo.server.models import ServedModel
from octavo.server.openai import OPENAI
from octavo.server.service import Service
from octavo.server.speed import STAGES
from octavo.server.system import octavo_version

__all__ = ["DashboardStats", "stats_routes"]

SPEED_S = 6.0
"""Speeds are those of so many seconds, as far as anybody has asked."""


class Ranks(msgspec.Struct):
    """Percentiles, in seconds."""

    p50: float
    p90: float
    p99: float


class Latency(msgspec.Struct):
    """Of the last minute; None where nothing happened. See ModelMeters."""

    first_token: Ranks | None
    inter_token: Ranks | None
    queue: Ranks | None
    end_to_end: Ranks | None


class PageStats(msgspec.Struct):
    """KV pages: used + cached + free are all. tokens: of one. pinned, loading: of the used ones."""

    used: int = 0
    cached: int = 0
    free: int = 0
    tokens: int = 0
    pinned: int = 0
    loading: int = 0


class Counts(msgspec.Struct):
    """Since the server's start; see EngineStats. misses: prompts by why the prefix cache did not have them whole.
    finished: completions by reason."""

    steps: int
    generated_tokens: int
    prompt_tokens: int
    queried_tokens: int
    hit_tokens: int
    preemptions: int
    swaps: int
    refused: int
    misses: dict[str, int]
    finished: dict[str, int]


class ModelStats(msgspec.Struct):
    """One model.

    output_tok_s, prompt_tok_s: of the last seconds; None until it has been asked twice. limit_tok_s: what the machine's
    memory allows for as many sequences as run now, or for one; None: not measured yet, or no limit. limit_fraction,
    step_shares: see Speed.
    """

    model: str
    state: str
    running: int
    waiting: int
    max_num_seqs: int
    output_tok_s: float | None
    prompt_tok_s: float | None
    limit_tok_s: float | None
    limit_fraction: float | None
    step_shares: dict[str, float] | None
    pages: PageStats
    slot_utilization: float
    latency: Latency
    counts: Counts


class DashboardStats(msgspec.Struct):
    """http_active: requests under way, but for this one. problem: why nothing is served now; None if it is."""

    version: str
    uptime_s: float
    http_active: int
    problem: str | None
    models: list[ModelStats]


def stats_routes() -> list[Endpoint]:
    return [
        Endpoint("/dashboard/stats", "GET", stats, OPENAI, "What the dashboard shows, as JSON.", reply=DashboardStats)
    ]


async def stats(call: Call) -> Reply:
    service = call.service
    models = [_model(service, each) for each in service.registry.models]
    uptime_s = time.time() - service.started
    answer = DashboardStats(octavo_version(), uptime_s, len(service.active) - 1, service.problem(), models)
    return Reply(answer, headers=(("cache-control", "no-store"),))


def _model(service: Service, model: ServedModel) -> ModelStats:
    meters, reading = service.meters.of(model.name), service.meters.read(model)
    running = waiting = max_num_seqs = 0
    pages, utilization, limit_tok_s = PageStats(), 1.0, None
    if reading is not None:
        config, usage = model.engine.config, reading.stats.cache
        running, waiting, max_num_seqs = reading.stats.running, reading.stats.waiting, config.max_num_seqs
        pages = PageStats(
            usage.used_pages,
            usage.cached_pages,
            usage.free_pages,
            config.block_size,
            usage.pinned_pages,
            usage.loading_pages,
        )
        utilization = reading.stats.utilization
        limit_tok_s = None if reading.step_limit_s is None else max(1, running) / reading.step_limit_s
    speed = None if reading is None else meters.speedometer.speed(SPEED_S)
    return ModelStats(
        model=model.name,
        state=model.state,
        running=running,
        waiting=waiting,
        max_num_seqs=max_num_seqs,
        output_tok_s=None if speed is None else speed.output_tok_s,
        prompt_tok_s=None if speed is None else speed.prompt_tok_s,
        limit_tok_s=limit_tok_s,
        limit_fraction=None if speed is None else speed.limit_fraction,
        step_shares=None if speed is None else _shares(speed.step_shares),
        pages=pages,
        slot_utilization=utilization,
        latency=_latency(meters),
        counts=_counts(meters),
    )


def _shares(shares: Mapping[str, float] | None) -> dict[str, float] | None:
    return None if shares is None else {stage.removesuffix("_s"): shares[stage] for stage in STAGES}


def _latency(meters: ModelMeters) -> Latency:
    return Latency(
        _ranks(meters.first_token), _ranks(meters.inter_token), _ranks(meters.queue), _ranks(meters.end_to_end)
    )


def _ranks(histogram: Histogram) -> Ranks | None:
    found = histogram.percentiles((50, 90, 99))
    return None if found is None else Ranks(*found)


def _counts(meters: ModelMeters) -> Counts:
    latest = {name: int(count) for name, count in meters.totals.latest().items()}
    return Counts(
        steps=latest.get("steps", 0),
        generated_tokens=latest.get("generated_tokens", 0),
        prompt_tokens=latest.get("prompt_tokens", 0),
        queried_tokens=latest.get("queried_tokens", 0),
        hit_tokens=latest.get("hit_tokens", 0),
        preemptions=latest.get("preemptions", 0),
        swaps=latest.get("swaps", 0),
        refused=latest.get("refused", 0),
        misses=dict(meters.misses),
        finished=dict(meters.finished),
    )
