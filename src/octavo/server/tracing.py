"""OpenTelemetry spans, one for each request and one for each stage of its prompts, made once it has ended.

Needs the extra `otel`. Names follow OpenTelemetry's semantic conventions for HTTP servers and generative AI.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from octavo.core.errors import ConfigError
from octavo.core.outputs import RequestMetrics
from octavo.server.log import QUIET
from octavo.server.record import Record

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

__all__ = ["Tracer", "otlp_provider"]


def otlp_provider(endpoint: str) -> TracerProvider:
    """Sends spans in the background to a collector, by OTLP over HTTP. endpoint: such as http://host:4318/v1/traces.

    Raises ConfigError: the extra is not installed, or the endpoint is no URL.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"--otlp-traces-endpoint must be a URL such as http://host:4318/v1/traces, not {endpoint!r}")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(
            "--otlp-traces-endpoint needs OpenTelemetry: pip install 'octavo[otel]', or leave the option out"
        ) from None
    provider = TracerProvider(resource=_resource())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider


def _resource() -> Any:
    """What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say, and a name where they say none."""
    from opentelemetry.sdk.resources import Resource

    found = Resource.create()
    unnamed = str(found.attributes["service.name"]).startswith("unknown_service")
    return found.merge(Resource({"service.name": "octavo"})) if unnamed else found


class Tracer:
    """An observer (see Service) that makes the spans of a request that has ended. Polls that succeed make none."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("octavo")

    def __call__(self, record: Record) -> None:
        if record.route in QUIET and record.status < 400:
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        ended = time.time_ns()
        span = self._tracer.start_span(
            f"{record.method} {record.route}",
            context=_parent(record.traceparent),
            kind=SpanKind.SERVER,
            attributes=_attributes(record),
            start_time=ended - round((record.total_s or 0.0) * 1e9),
        )
        if record.status >= 500:
            span.set_status(Status(StatusCode.ERROR, record.error))
        inside = set_span_in_context(span)
        for output in record.outputs:
            for name, start, end in _stages(output.metrics):
                self._tracer.start_span(name, context=inside, start_time=start).end(end)
        span.end(ended)

    def close(self) -> None:
        """Send what has not been sent."""
        with suppress(Exception):  # a collector that is gone must not keep the server
            self._provider.shutdown()


def _parent(traceparent: str | None) -> Any:
    """The context of a caller that is traced, too (W3C Trace Context)."""
    if traceparent is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent})


def _attributes(record: Record) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "octavo.request_id": record.id,
    }
    if record.model is not None:
        attributes["gen_ai.request.model"] = record.model
    if record.prompt_tokens:
        attributes["gen_ai.usage.input_tokens"] = record.prompt_tokens
        attributes["gen_ai.usage.output_tokens"] = record.output_tokens
        attributes["octavo.cached_tokens"] = record.cached_tokens
        attributes["octavo.preemptions"] = sum(output.metrics.preemptions for output in record.outputs)
    if record.finish_reasons:
        attributes["gen_ai.response.finish_reasons"] = list(record.finish_reasons)
    return attributes


def _stages(metrics: RequestMetrics) -> Iterator[tuple[str, int, int]]:
    """Name, start and end of each stage that was reached; nanoseconds since the epoch."""
    times = (0.0, metrics.first_scheduled_s, metrics.first_token_s, metrics.finished_s)
    for name, start, end in zip(("queue", "prefill", "decode"), times, times[1:], strict=False):
        if start is not None and end is not None:
            yield name, round((metrics.arrival + start) * 1e9), round((metrics.arrival + end) * 1e9)
