"""Plots of reports: they are drawn, to the file and in the format that was asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from octavo.core.errors import ConfigError
from octavo.measure.plots import Plot, check_plot, plot_batching, plot_pool, plot_stall
from octavo.measure.report import Report

HOST = {"model": "m.gguf", "cpu_model": "A <CPU> & more", "machine": "x86_64", "threads": 2}
BATCHING = Report(
    HOST | {"bench": {}},
    [
        {"policy": "continuous", "output_tok_s": 812.4, "latencies_s": [0.5, 1.0, 2.0]},
        {"policy": "static", "output_tok_s": 400.0, "latencies_s": [3.0, 4.0]},
    ],
)
STALL = Report(
    HOST | {"bench": {"prompt_tokens": 4000, "decodes": 8, "stall_ms": 50.0}},
    [
        {"way": way, "max_num_batched_tokens": 512, "timeline": {"time_s": [-0.1, 0.4, 0.9], "gap_ms": [5.0, gap, 5.0]}}
        for way, gap in (("budget", 48.0), ("chunks", 200.0), ("whole", 900.0))
    ],
)
POOL = Report(
    HOST | {"bench": {"pool_tokens": 128, "block_size": 16, "max_model_len": 64}},
    [
        {
            "allocator": name,
            "utilization_mean": 0.9,
            "running": 3.0,
            "timeline": {"time_s": [1.0, 2.0], "used_slots": [20, 10], "allocated_slots": [32, 16]},
        }
        for name in ("paged", "exact", "whole")
    ],
)
PLOTS = [(plot_batching, BATCHING), (plot_stall, STALL), (plot_pool, POOL)]


def words(path: Path) -> str:
    """All text of an SVG file whose text is kept as text."""
    return " ".join(element.text or "" for element in ElementTree.parse(path).iter() if element.tag.endswith("text"))


@pytest.fixture
def _text(monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")


@pytest.mark.usefixtures("_text")
@pytest.mark.parametrize(("draw", "report"), PLOTS)
def test_plots_are_drawn_in_both_formats(draw: Plot, report: Report, tmp_path: Path) -> None:
    draw(report, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    draw(report, tmp_path / "plot.svg")
    text = words(tmp_path / "plot.svg")
    assert "m.gguf, A <CPU> & more, 2 threads" in text
    assert "second" in text
    draw(Report(report.host, report.rows[:1], interrupted=True), str(tmp_path / "one.png"))
    assert (tmp_path / "one.png").stat().st_size > 5000


@pytest.mark.usefixtures("_text")
def test_what_is_plotted_is_named(tmp_path: Path) -> None:
    for (draw, report), said in zip(
        PLOTS,
        (
            ("continuous, 812 tokens/s", "static, 400 tokens/s", "requests ended (%)"),
            ("chunks within 50 ms", "chunks of 512 tokens", "the whole prompt in one step", "(ms)"),
            ("pages of 16 tokens: 90 % used, 3 at once", "contiguous, max_model_len 64", "allocated", "slots"),
        ),
        strict=True,
    ):
        draw(report, tmp_path / "plot.svg")
        text = words(tmp_path / "plot.svg")
        assert all(each in text for each in said), text


@pytest.mark.usefixtures("_text")
def test_lines_hold_the_reports_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **options: drawn.append(self))
    plot_batching(BATCHING, tmp_path / "a.png")
    plot_stall(STALL, tmp_path / "b.png")
    first, second = drawn[0].axes[0].lines[:2]
    # A request that ends lifts the line there, from the share of those before to its own.
    assert list(first.get_xdata()) == [0, 0.5, 1.0, 2.0]
    assert list(second.get_ydata()) == [0, 50, 100]
    assert [list(line.get_ydata())[1] for line in drawn[1].axes[0].lines[:3]] == [48, 200, 900]


def test_another_suffix_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot draw to x\.pdf: its name must end in \.png or \.svg \(--plot\)"):
        check_plot("x.pdf")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'octavo\[plots\]'"):
        check_plot("x.PNG")


def test_nothing_is_imported_before_it_is_needed() -> None:
    code = "import sys, octavo.measure.plots, octavo.cli.bench; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
