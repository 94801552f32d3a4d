"""One line for each request: what is in it, and what cannot be put into it."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.outputs import RequestMetrics, RequestOutput
from octavo.server.log import QUIET, log_request, log_to, request_line
from octavo.server.record import Record


def record(**values: object) -> Record:
    made = Record("abc", "POST", "/v1/chat/completions", 0.0, status=200, total_s=1.5)
    for name, value in values.items():
        setattr(made, name, value)
    return made


def ended(metrics: RequestMetrics) -> RequestOutput:
    return RequestOutput("abc", None, [1, 2], [], True, metrics)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What Octavo's loggers write; as they were afterwards."""
    root = logging.getLogger("octavo")
    before = root.handlers[:], root.propagate, root.level
    stream = io.StringIO()
    log_to(stream)
    yield stream
    root.handlers[:], root.propagate = before[0], before[1]
    root.setLevel(before[2])


def test_the_line_of_a_request() -> None:
    metrics = RequestMetrics(0.0, 0.25, 0.5, 1.5, preemptions=1)
    line = request_line(
        record(
            model="tiny",
            stream=True,
            prompt_tokens=12,
            cached_tokens=8,
            output_tokens=11,
            finish_reasons=["length"],
            outputs=[ended(metrics)],
        )
    )
    assert line == (
        "POST /v1/chat/completions status=200 model=tiny prompt=12 cached=8 output=11 finish=length queue_ms=250 "
        "ttft_ms=500 total_ms=1500 tok_s=10.0 preemptions=1 stream=true id=abc"
    )


def test_several_completions_in_one_line() -> None:
    line = request_line(record(finish_reasons=["stop", "length", "stop"]))
    assert " finish=stop*2,length " in line


@given(st.text(max_size=40))
def test_whatever_a_client_sends_stays_one_value(text: str) -> None:
    line = request_line(record(user=text))
    assert line.isprintable()
    value = line.removeprefix("POST /v1/chat/completions status=200 total_ms=1500 user=").removesuffix(" id=abc")
    if not value.startswith('"'):
        assert value == text
    else:
        inner = value[1:-1].replace("\\\\", "").replace('\\"', "")
        assert value.endswith('"')
        assert '"' not in inner


def test_a_long_value_is_cut() -> None:
    assert len(request_line(record(error="x" * 100_000))) < 500


def test_lines_have_a_time_and_polls_leave_none(log: io.StringIO) -> None:
    for route in QUIET:
        log_request(record(route=route))
    log_request(record())
    log_request(record(route="/health", status=503))
    lines = log.getvalue().splitlines()
    assert [line.split()[2] for line in lines] == ["/v1/chat/completions", "/health"]
    assert all(line[10] == "T" and line[23] == "Z" for line in lines)


def test_a_problem_is_called_one(log: io.StringIO) -> None:
    logging.getLogger("octavo.server").error("the disk is full")
    assert log.getvalue().split(" ", 1)[1] == "error: the disk is full\n"
