"""What others took of the CPUs, from a table of times that the test writes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from octavo.measure import neighbours
from octavo.measure.neighbours import Neighbours
from octavo.measure.report import Report


def write(path: Path, *ticks: int) -> Path:
    path.write_text(f"cpu  {' '.join(map(str, ticks))}\ncpu0 1 2 3\n")
    return path


@pytest.fixture
def _clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Ten seconds on two CPUs with 100 ticks a second, of which this process takes six; more may be appended."""
    own = [1.0, 7.0]
    times = [50.0, 60.0]
    monkeypatch.setattr(neighbours, "_own_s", lambda: own.pop(0))
    monkeypatch.setattr(time, "perf_counter", lambda: times.pop(0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    return own


@pytest.mark.usefixtures("_clock")
def test_the_share_of_others_is_what_is_busy_and_not_ours(tmp_path: Path) -> None:
    stat = write(tmp_path / "stat", 1000, 100, 200, 9000, 50, 10, 20, 30, 500, 0)
    watch = Neighbours(stat)
    # user +400, nice +100, system +200, irq +50, softirq +50, steal +200: 10 s; idle, iowait and guest do not count.
    write(stat, 1400, 200, 400, 9900, 90, 60, 70, 230, 900, 7)
    assert watch.fraction() == pytest.approx((10 - 6) / (10 * 2))


@pytest.mark.usefixtures("_clock")
def test_it_is_never_below_zero(tmp_path: Path) -> None:
    stat = write(tmp_path / "stat", *[0] * 10)
    watch = Neighbours(stat)
    write(stat, 100, *[0] * 9)
    assert watch.fraction() == 0


@pytest.mark.parametrize("text", [None, "", "cpu 1 2\n", "cpu a b c d e f g h\n"])
def test_where_nothing_tells_there_is_no_share_and_no_note(tmp_path: Path, text: str | None) -> None:
    stat = tmp_path / "stat"
    if text is not None:
        stat.write_text(text)
    report = Report({})
    Neighbours(stat).tell(report)
    assert (report.host, report.notes) == ({"other_cpu_fraction": None}, [])


@pytest.mark.parametrize(("fraction", "notes"), [(0.049, 0), (0.05, 1)])
def test_a_note_is_made_of_what_is_not_small(monkeypatch: pytest.MonkeyPatch, fraction: float, notes: int) -> None:
    monkeypatch.setattr(Neighbours, "fraction", lambda self: fraction)
    report = Report({}, notes=["another"])
    Neighbours().tell(report)
    assert report.host == {"other_cpu_fraction": fraction}
    assert report.notes[1:] == ["other processes took 5 % of the CPUs meanwhile"] * notes
