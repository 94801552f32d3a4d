"""What the server counts: histograms, counts that outlive an engine, and answers as their states pass."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.servers import Site
from octavo.core.outputs import CacheMiss, CompletionOutput, RequestMetrics, RequestOutput
from octavo.server import meters as module
from octavo.server.meters import Histogram, ModelMeters, Progress
from octavo.server.record import Record

BOUNDS = [0.5, 1.0, 2.0]
values = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 0.7, 1.0, 1.5, 2.0, 9.0]), st.integers(1, 5)), max_size=40)


class Clock:
    """time.monotonic() of the meters, as a test sets it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@given(values, st.integers(0, 40))
def test_a_histogram_counts_each_value_where_it_belongs(observed: list[tuple[float, int]], read_after: int) -> None:
    histogram = Histogram(BOUNDS)
    for number, (value, count) in enumerate(observed):
        if number == read_after:
            histogram.read()
        histogram.observe(value, count)
    counts, total = histogram.read()
    every = [value for value, count in observed for _ in range(count)]
    edges = [-np.inf, *BOUNDS, np.inf]
    assert counts == [sum(low < value <= high for value in every) for low, high in pairwise(edges)]
    assert total == pytest.approx(sum(every))
    assert histogram.read() == (counts, total)


@given(values.filter(bool), st.floats(0, 100))
def test_percentiles_are_those_of_numpy(observed: list[tuple[float, int]], rank: float) -> None:
    histogram = Histogram(BOUNDS)
    for value, count in observed:
        histogram.observe(value, count)
    every = [value for value, count in observed for _ in range(count)]
    found = histogram.percentiles([rank])
    assert found == [np.percentile(every, rank, method="inverted_cdf")]


def test_many_values_are_folded_and_lose_nothing() -> None:
    histogram = Histogram(BOUNDS)
    for _ in range(10_000):
        histogram.observe(0.7)
    assert len(histogram._pending) < 5000
    assert histogram.read()[0] == [0, 10_000, 0, 0]


def test_percentiles_forget(clock: Clock) -> None:
    histogram = Histogram(BOUNDS)
    histogram.observe(7.0)
    clock.now += 59
    histogram.observe(1.0)
    assert histogram.percentiles([100]) == [7.0]
    clock.now += 2
    assert histogram.percentiles([100]) == [1.0]
    clock.now += 60
    assert histogram.percentiles([100]) is None


def state(*tokens: int, finish: str | None = None, **metrics: object) -> RequestOutput:
    """A state with so many new tokens of each completion."""
    outputs = [
        CompletionOutput(index, "", [1] * count, finish_reason=finish)  # type: ignore[arg-type]
        for index, count in enumerate(tokens)
    ]
    return RequestOutput("r", None, [1] * 10, outputs, finish is not None, RequestMetrics(0.0, **metrics))  # type: ignore[arg-type]


@pytest.fixture
def record() -> Iterator[Record]:
    return Record("r", "POST", "/v1/chat/completions")


def total(histogram: Histogram) -> tuple[int, float]:
    counts, values = histogram.read()
    return sum(counts), values


def test_gaps_between_tokens_are_what_a_stream_sees(clock: Clock, record: Record) -> None:
    meters = ModelMeters()
    progress = Progress(record, meters, 1, 1)
    progress.take(0, state(1, first_scheduled_s=0.5, first_token_s=0.75))
    clock.now += 0.5
    progress.take(0, state(1, first_scheduled_s=0.5, first_token_s=0.75))
    clock.now += 3.0
    progress.take(0, state(3, first_scheduled_s=0.5, first_token_s=0.75))
    assert meters.inter_token.percentiles([0, 50, 100]) == [0.5, 1.0, 1.0]
    progress.take(0, state(0, finish="stop", first_scheduled_s=0.5, first_token_s=0.75, finished_s=4.75))
    assert total(meters.inter_token) == (4, pytest.approx(3.5))
    assert total(meters.first_token) == (1, 0.75)
    assert total(meters.per_output_token) == (1, pytest.approx(1.0))
    assert total(meters.generation_tokens) == (1, 5)
    assert total(meters.prompt_tokens) == (1, 10)
    assert (record.output_tokens, record.finish_reasons) == (5, ["stop"])


def test_an_answer_that_came_whole_counts_with_its_mean(clock: Clock, record: Record) -> None:
    meters = ModelMeters()
    whole = state(5, 3, finish="length", first_scheduled_s=0.25, first_token_s=1.0, finished_s=3.0)
    Progress(record, meters, 1, 2).take(0, whole)
    assert total(meters.inter_token) == (6, pytest.approx(3.0))
    assert total(meters.generation_tokens) == (2, 8)
    assert [total(each)[1] for each in (meters.queue, meters.prefill, meters.decode)] == [0.25, 0.75, 2.0]
    assert [total(each)[1] for each in (meters.inference, meters.end_to_end)] == [2.75, 3.0]
    assert meters.finished == {"length": 2}


def test_what_has_not_ended_is_aborted(record: Record) -> None:
    meters = ModelMeters()
    progress = Progress(record, meters, 2, 2)
    progress.take(0, state(1, finish="stop"))
    progress.leave()
    progress.leave()
    assert meters.finished == {"stop": 1, "abort": 1}


def test_misses_by_reason_and_tokens(record: Record) -> None:
    meters = ModelMeters()
    meters.end(RequestMetrics(0.0, 0.1, 0.2, 0.3, cache_miss=CacheMiss("differs", 4, 7, 8)), 10, 1)
    meters.end(RequestMetrics(0.0, 0.1, 0.2, 0.3), 10, 1)
    meters.end(RequestMetrics(0.0, None, None, 0.3, cache_miss=CacheMiss("new", 0, 7)), 10, 0)  # it was never started
    assert (meters.misses, meters.missed_tokens) == ({"differs": 1}, {"differs": 6})


def test_counts_go_on_after_a_model_was_loaded_again(site: Site) -> None:
    class Engine:
        """Another engine, as far as can be seen."""

    meters = ModelMeters()
    assert meters.totals.latest() == {}
    site.chat()
    stats = site.llm.stats()
    first = meters.totals.read(site.llm, stats)
    assert first["generated_tokens"] == stats.generated_tokens > 0
    assert meters.totals.read(site.llm, stats) == first
    other = Engine()
    second = meters.totals.read(other, stats)  # type: ignore[arg-type]
    assert second == {name: 2 * count for name, count in first.items()}


def test_a_served_request_is_measured(site: Site) -> None:
    meters = site.service.meters.of("tiny")
    before = meters.finished.total(), total(meters.first_token)[0], total(meters.inter_token)[0]
    whole = site.chat().json()["usage"]
    site.stream("/v1/chat/completions", messages=[{"role": "user", "content": "Hi"}], max_tokens=8, temperature=0)
    after = meters.finished.total(), total(meters.first_token)[0], total(meters.inter_token)[0]
    assert after[:2] == (before[0] + 2, before[1] + 2)
    assert after[2] > before[2] + whole["completion_tokens"] - 1
    assert meters.totals.latest()["generated_tokens"] >= whole["completion_tokens"]
    assert site.service.meters.requests["POST", "/v1/chat/completions", 200] >= 2
