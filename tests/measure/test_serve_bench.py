"""The load bench on a server of a tiny model: its rows, what it learns of a server, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.servers import Site, serve_tiny, tiny_spec_of
from helpers.web import serve
from octavo.core.errors import ConfigError
from octavo.measure import chat_load
from octavo.measure.chat_load import Load
from octavo.measure.http_stream import Exchange
from octavo.measure.plots import plot_serve
from octavo.measure.serve_bench import ServeBench, bench_serve

SMALL: dict[str, Any] = {"prompt_words": 2, "system_words": 3, "output_tokens": 6, "requests": 4, "concurrency": (1, 2)}


@pytest.fixture(scope="module")
def server(tiny_gguf: Callable[..., Path]) -> Iterator[Site]:
    with serve_tiny(tiny_spec_of(tiny_gguf(context_length=2048), max_model_len=2048), api_keys=("secret",)) as site:
        yield site


def test_a_row_for_each_number_at_the_same_time(server: Site, tmp_path: Path) -> None:
    report = bench_serve(ServeBench(url=server.url, api_key="secret", repeats=2, **SMALL))
    assert [row["concurrency"] for row in report.rows] == [1, 2]
    for row in report.rows:
        assert (row["runs"], row["requests"], row["errors"]) == (2, 8, {})
        assert row["output_tokens"] == 6
        assert row["output_tok_s"]["count"] == 2
        assert 0 < row["ttft_ms"]["p50"] <= row["ttft_ms"]["p90"] <= row["ttft_ms"]["p99"]
        assert row["inter_token_ms"]["p50"] >= 0
    assert report.host["model"] == "tiny"
    assert "secret" not in json.dumps(report.as_json())
    assert not report.interrupted
    pytest.importorskip("matplotlib")
    plot_serve(report, tmp_path / "plot.svg")
    assert "first token (ms)" in (tmp_path / "plot.svg").read_text() or (tmp_path / "plot.svg").stat().st_size > 1000


def test_prompts_of_so_many_tokens(server: Site) -> None:
    wanted = {**SMALL, "prompt_tokens": 700, "concurrency": (2,)}
    (row,) = bench_serve(ServeBench(url=server.url, model="tiny", api_key="secret", **wanted)).rows
    assert row["prompt_tokens"] == pytest.approx(700, rel=0.1)
    with pytest.raises(ConfigError, match="--system-words"):
        bench_serve(ServeBench(url=server.url, model="tiny", api_key="secret", **{**wanted, "prompt_tokens": 20}))


def test_what_fails_is_counted_and_told(server: Site) -> None:
    wanted = {**SMALL, "system_words": 900, "concurrency": (2,)}  # over the context
    report = bench_serve(ServeBench(url=server.url, api_key="secret", **wanted))
    (row,) = report.rows
    ((reason, count),) = row["errors"].items()
    assert (count, row["requests"], row["ttft_ms"]) == (4, 0, None)
    assert reason.startswith("status 400: ")
    assert any(note.startswith("4 failed: status 400") for note in report.notes)


def test_servers_that_are_not_there_or_refuse(server: Site) -> None:
    with pytest.raises(ConfigError, match=r"cannot reach .*connection refused"):
        bench_serve(ServeBench(url="http://127.0.0.1:9"))
    with pytest.raises(ConfigError, match="--api-key"):
        bench_serve(ServeBench(url=server.url))
    with pytest.raises(ConfigError, match="status 404"):
        bench_serve(ServeBench(url=server.url, model="huge", api_key="secret"))
    with serve() as web:
        web.pages["/v1/models"] = b'{"data": []}'
        with pytest.raises(ConfigError, match="lists no models"):
            bench_serve(ServeBench(url=web.url))


class Plain:
    """A server in place of run_load: it refuses some fields, and counts no tokens."""

    def __init__(self, *refused: str) -> None:
        self.refused, self.bodies = refused, list[dict[str, Any]]()

    def __call__(self, site: Any, requests: list[bytes], **options: Any) -> Load:
        load = Load(wall_s=2.0)
        for request in requests:
            body = json.loads(request.partition(b"\r\n\r\n")[2])
            self.bodies.append(body)
            bad = next((name for name in self.refused if name in body), None)
            answer = b"HTTP/1.1 400 Bad\r\n\r\n{}" if bad else self.answer(body)
            load.exchanges.append(Exchange(0.0, [(1.0, answer)], True))
        return load

    def answer(self, body: dict[str, Any]) -> bytes:
        event = {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        return head + b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(event).encode()


@pytest.mark.parametrize("refused", [(), ("ignore_eos",), ("ignore_eos", "stream_options")])
def test_fields_that_a_server_refuses_are_left_out(refused: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Plain(*refused)
    monkeypatch.setattr("octavo.measure.serve_bench.run_load", plain)
    report = bench_serve(ServeBench(url="http://127.0.0.1:1", model="m", **SMALL))
    kept = {"ignore_eos", "stream_options"} - set(refused)
    assert all(kept <= body.keys() and not set(refused) & body.keys() for body in plain.bodies[-8:])
    assert [note.split(":")[0] for note in report.notes][: len(refused)] == [
        f"the server refuses {name}" for name in refused
    ]
    assert any("does not count tokens" in note for note in report.notes)
    assert report.rows[0]["output_tok_s"]["median"] == 4 / 2
    with pytest.raises(ConfigError, match="--prompt-words"):
        bench_serve(ServeBench(url="http://127.0.0.1:1", model="m", prompt_tokens=100))


def test_an_interrupt_keeps_what_was_measured(server: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [0]

    async def interrupted(*arguments: Any) -> None:
        calls[0] += 1
        if calls[0] == 4:  # models, the probe, one run
            raise KeyboardInterrupt
        await workers(*arguments)

    workers = chat_load._workers
    monkeypatch.setattr(chat_load, "_workers", interrupted)
    report = bench_serve(ServeBench(url=server.url, api_key="secret", **SMALL))
    assert report.interrupted
    assert [row["concurrency"] for row in report.rows] == [1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": ()},
        {"concurrency": (0,)},
        {"requests": 0},
        {"prompt_words": 0},
        {"output_tokens": 0},
        {"system_words": -1},
        {"repeats": 0},
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
    ],
)
def test_values_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ServeBench(url="http://127.0.0.1:1", **wrong)


def test_requests_of_a_run() -> None:
    bench = ServeBench(url="http://127.0.0.1:1")
    assert [bench.count(each) for each in (1, 4, 16)] == [8, 16, 64]
