"""`octavo bench prefix`, `pool`, `batching`, `stall` and `tiers` from the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import main as cli_main
from octavo.cli.bench_common import number, percent, spread
from octavo.measure import batching_bench, pool_bench, prefix_bench, stall_bench, tiers_bench
from octavo.measure.report import Report

Tiny = Callable[..., Path]
SMALL: dict[str, list[str]] = {
    "prefix": ["--requests", "2", "--shared-tokens", "40", "--own-tokens", "8", "--output-tokens", "3"],
    "pool": ["--requests", "4", "--max-model-len", "64", "--pool-tokens", "128"],
    "batching": ["--requests", "4", "--batch", "2", "--median-tokens", "3", "--max-tokens", "9"],
    "stall": ["--prompt-tokens", "40", "--decodes", "2", "--arrivals", "1"],
    "tiers": ["--prompt-tokens", "50", "--block-size", "16"],
}
COLUMNS = {
    "prefix": ["off", "cold", "warm"],
    "pool": ["pages", "contiguous, final length", "contiguous, max_model_len"],
    "batching": ["continuous", "static"],
    "stall": ["within 50 ms", "fixed chunks", "one step"],
    "tiers": ["computed", "in memory", "on disk, files in memory", "on disk"],
}
PLOTTED = ("pool", "batching", "stall")


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_BACKEND", "reference")


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        cli_main.main(["bench", *map(str, arguments)])
    return int(stopped.value.code or 0)


@pytest.mark.parametrize("name", SMALL)
def test_tables_and_files(name: str, tiny_gguf: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, plot = tmp_path / "report.json", tmp_path / "plot.svg"
    drawn = ["--plot", plot] if name in PLOTTED else []
    if drawn:
        pytest.importorskip("matplotlib")
    path = tiny_gguf(layers=1)
    assert run(name, path, *SMALL[name], "--repeats", 1, "--seed", 3, "--json", target, *drawn) == 0
    output, errors = capsys.readouterr()
    lines = output.splitlines()
    assert lines[0].startswith(f"{path.name}, ")
    assert "tier none (reference backend)" in lines[1]
    # The table's rows are in the order of the report, each on one line.
    starts = [line for line in lines[3:] if line.startswith(tuple(COLUMNS[name]))]
    assert [line.partition("  ")[0].rstrip() for line in starts] == COLUMNS[name]
    assert errors == ""
    report = json.loads(target.read_text())
    assert set(report) == {"host", "rows", "notes", "interrupted"}
    assert report["host"]["bench"]["seed"] == 3
    assert report["host"]["bench"]["repeats"] == 1
    for note in report["notes"]:
        assert f"note: {note}" in lines
    assert plot.exists() == bool(drawn)


def test_json_to_standard_output_is_nothing_else(tiny_gguf: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("batching", tiny_gguf(layers=1), *SMALL["batching"], "--repeats", 1, "--json", "-") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["policy"] for row in rows] == ["continuous", "static"]


def test_an_interrupt_still_shows_and_draws(
    tiny_gguf: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    plain, served = batching_bench.serve, []

    def serve(*arguments: Any, **options: Any) -> object:
        if served:
            raise KeyboardInterrupt
        served.append(1)
        return plain(*arguments, **options)

    monkeypatch.setattr(batching_bench, "serve", serve)
    target, plot = tmp_path / "report.json", tmp_path / "plot.png"
    assert run("batching", tiny_gguf(layers=1), *SMALL["batching"], "--json", target, "--plot", plot) == 130
    assert json.loads(target.read_text())["interrupted"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    output, errors = capsys.readouterr()
    assert "continuous" in output
    assert "interrupted" in errors


def test_an_interrupt_before_anything_draws_nothing(
    tiny_gguf: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")

    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(batching_bench, "serve", interrupt)
    plot = tmp_path / "plot.png"
    assert run("batching", tiny_gguf(layers=1), *SMALL["batching"], "--plot", plot) == 130
    assert not plot.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        *[([name], 2, "Missing argument 'MODEL'") for name in SMALL],
        (["prefix", "m", "--requests", "0"], 2, "--requests"),
        (["batching", "m", "--sigma", "-1"], 1, "sigma must be above 0"),
        (["batching", "m", "--rate", "0"], 1, "rate must be above 0"),
        (["stall", "m", "--stall-ms", "0"], 1, "stall_ms must be above 0"),
        (["tiers", "m", "--dir", "/no/such/folder"], 1, "there is no folder /no/such/folder"),
        (["pool", "m", "--pool-tokens", "100"], 1, "pool_tokens 100 is below max_model_len 2048"),
        (["pool", "m", "--plot", "x.pdf"], 1, "must end in .png or .svg (--plot)"),
        (["stall", "m", "--plot", "/no/such/folder/x.png"], 1, "cannot write the plot to"),
        (["batching", "m", "--json", "/no/such/folder/x.json"], 1, "cannot write the report to"),
        (["prefix", "./m.gguf"], 1, "m.gguf"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    assert run(*arguments) == code
    output, errors = capsys.readouterr()
    assert output == ""
    assert said in errors
    assert errors.count("\n") == 1


def test_plots_without_matplotlib_name_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("pool", "m", "--plot", "x.png") == 1
    assert "pip install 'octavo[plots]'" in capsys.readouterr().err


def test_defaults_are_those_of_the_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    report = Report({"model": "m", "cpu_model": "c", "threads": 2, "tier": None, "bench": {}})

    def record(model: str, bench: Any, *, log: object) -> Report:
        asked.append(bench)
        return report

    modules = {
        "prefix": (prefix_bench, prefix_bench.PrefixBench),
        "pool": (pool_bench, pool_bench.PoolBench),
        "batching": (batching_bench, batching_bench.BatchingBench),
        "stall": (stall_bench, stall_bench.StallBench),
        "tiers": (tiers_bench, tiers_bench.TiersBench),
    }
    for name, (module, kind) in modules.items():
        monkeypatch.setattr(module, f"bench_{name}", record)
        assert run(name, "m", "--json", "-") == 0
        assert asked[-1] == kind()


def test_cells() -> None:
    assert (number(None, 1), number(2.25, 1)) == ("", "2.2")
    assert (percent(None), percent(0.1234), percent(0.1234, 1)) == ("", "12%", "12.3%")
    assert spread(None, 1) == ""
    assert spread({"median": 2.0, "low": 2.0, "high": 2.0, "count": 1}, 1) == "2.0"
    assert spread({"median": 2.0, "low": 1.5, "high": 3.0, "count": 3}, 1) == "2.0 (1.5-3.0)"
