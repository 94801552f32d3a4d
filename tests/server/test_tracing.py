"""Spans of requests that have ended."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.core.errors import ConfigError
from octavo.core.outputs import RequestMetrics, RequestOutput
from octavo.server.record import Record
from octavo.server.tracing import Tracer, otlp_provider

pytest.importorskip("opentelemetry.sdk")
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def spans_of(record: Record) -> dict[str, Any]:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    Tracer(provider)(record)
    return {span.name: span for span in exporter.get_finished_spans()}


def record(**values: Any) -> Record:
    metrics = RequestMetrics(1000.0, 0.25, 0.5, 2.0)
    made = Record("abc", "POST", "/v1/chat/completions", 0.0, status=200, total_s=2.0, model="tiny")
    made.outputs.append(RequestOutput("abc", None, [1, 2], [], True, metrics))
    for name, value in values.items():
        setattr(made, name, value)
    return made


def test_a_request_and_its_stages() -> None:
    made = record(prompt_tokens=12, output_tokens=7, cached_tokens=4, finish_reasons=["stop"])
    spans = spans_of(made)
    assert spans.keys() == {"POST /v1/chat/completions", "queue", "prefill", "decode"}
    request = spans["POST /v1/chat/completions"]
    assert request.end_time - request.start_time == 2_000_000_000
    assert request.attributes["gen_ai.usage.input_tokens"] == 12
    assert request.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert request.status.is_unset
    assert {spans[name].parent.span_id for name in ("queue", "prefill", "decode")} == {request.context.span_id}
    times = [(spans[name].start_time, spans[name].end_time) for name in ("queue", "prefill", "decode")]
    assert times == [
        (1000 * 10**9 + start, 1000 * 10**9 + end)
        for start, end in ((0, 250 * 10**6), (250 * 10**6, 500 * 10**6), (500 * 10**6, 2 * 10**9))
    ]


def test_it_belongs_to_the_callers_trace() -> None:
    request = spans_of(record(traceparent=TRACEPARENT))["POST /v1/chat/completions"]
    assert f"{request.context.trace_id:032x}" == TRACEPARENT.split("-")[1]
    assert f"{request.parent.span_id:016x}" == TRACEPARENT.split("-")[2]


@pytest.mark.parametrize("text", ["", "nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "\x00" * 200])
def test_a_wrong_traceparent_begins_a_trace(text: str) -> None:
    assert spans_of(record(traceparent=text))["POST /v1/chat/completions"].parent is None


def test_failures_and_polls() -> None:
    failed = spans_of(record(status=503, error="the queue is full", outputs=[]))
    assert failed["POST /v1/chat/completions"].status.description == "the queue is full"
    assert spans_of(record(route="/metrics", outputs=[])) == {}


def test_a_request_that_never_started_has_only_waited() -> None:
    metrics = RequestMetrics(1000.0, None, None, 5.0)
    spans = spans_of(record(status=503, outputs=[RequestOutput("abc", None, [1], [], True, metrics)]))
    assert spans.keys() == {"POST /v1/chat/completions"}


def test_an_endpoint_that_is_none() -> None:
    with pytest.raises(ConfigError, match="must be a URL"):
        otlp_provider("collector:4318")


def test_the_service_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    for given, name in ((None, "octavo"), ("mine", "mine")):
        if given is not None:
            monkeypatch.setenv("OTEL_SERVICE_NAME", given)
        provider = otlp_provider("http://127.0.0.1:9/v1/traces")
        assert provider.resource.attributes["service.name"] == name
        Tracer(provider).close()
