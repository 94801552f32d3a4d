"""The benchmark of tiers: a prompt computed, in memory, and on disk after a restart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.core.errors import ConfigError
from octavo.engine.llm import LLM
from octavo.measure import tiers_bench
from octavo.measure.neighbours import Neighbours
from octavo.measure.tiers_bench import TiersBench, bench_tiers

Tiny = Callable[..., Path]


def bench(**changes: Any) -> TiersBench:
    return TiersBench(**{"prompt_tokens": 100, "block_size": 16, "repeats": 2, **changes})


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_BACKEND", "reference")
    monkeypatch.setattr(Neighbours, "fraction", lambda self: 0.0)


def test_each_tier_serves_the_prompt(tiny_gguf: Tiny, tmp_path: Path) -> None:
    lines: list[str] = []
    report = bench_tiers(tiny_gguf(), bench(dir=str(tmp_path)), log=lines.append)
    found = json.loads(json.dumps(report.as_json()))
    rows = {row["tier"]: row for row in found["rows"]}
    assert list(rows) == ["cold", "ram", "warm", "disk", "files"]
    assert len(lines) == 2
    # Six whole pages of the 100 tokens; from memory a part of the seventh, too, which the answer has filled.
    assert {tier: rows[tier]["cached_tokens"] for tier in ("cold", "warm", "disk")} == {
        "cold": 0,
        "warm": 96,
        "disk": 96,
    }
    assert 96 <= rows["ram"]["cached_tokens"] <= 99
    assert [rows[tier]["disk_tokens"] for tier in ("cold", "ram", "warm", "disk")] == [0, 0, 96, 96]
    for tier in ("cold", "ram", "warm", "disk"):
        assert rows[tier]["ttft_ms"]["count"] == rows[tier]["speedup"]["count"] == 2
    assert rows["cold"]["speedup"]["median"] == 1
    assert rows["cold"]["resident_fraction"] is rows["cold"]["load_gb_s"] is None
    # 2 layers of K and V with 2 heads of 16 float16 numbers: 256 bytes a token, and what files need beside.
    assert 96 * 256 < rows["files"]["file_bytes"] < 3 * 112 * 256
    assert rows["files"]["raw_gb_s"] > 0
    assert found["host"]["file_system"]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_memory_is_said(tiny_gguf: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers_bench, "file_system", lambda folder: "tmpfs")
    monkeypatch.setattr(tiers_bench, "resident_fraction", lambda files: 0.5)
    notes = bench_tiers(tiny_gguf(), bench(repeats=1)).notes
    assert notes == [
        "the folder is on tmpfs, which is memory; --dir names one on a disk",
        "before `disk`, up to 50 % of the files were still in memory",
    ]


def test_files_that_are_lost_are_said(tiny_gguf: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def delete(files: list[Path]) -> None:
        for path in files:
            path.unlink(missing_ok=True)

    monkeypatch.setattr(tiers_bench, "drop_cached", delete)
    monkeypatch.setattr(tiers_bench, "resident_fraction", lambda files: None)
    monkeypatch.setattr(tiers_bench, "read_all", lambda files: 1.0)
    monkeypatch.setattr(tiers_bench, "total_bytes", lambda files: 1)
    report = bench_tiers(tiny_gguf(), bench(repeats=1))
    assert [row["disk_tokens"] for row in report.rows[2:4]] == [96, 0]
    assert [note.split(",")[0] for note in report.notes] == [
        "this file system does not tell whether files are in memory",
        "after a restart",
    ]


def test_an_interrupt_keeps_finished_prompts(tiny_gguf: Tiny, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines: list[str] = []
    plain = LLM.generate

    def generate(self: LLM, *arguments: Any, **options: Any) -> object:
        if lines:
            raise KeyboardInterrupt
        return plain(self, *arguments, **options)

    monkeypatch.setattr(LLM, "generate", generate)
    report = bench_tiers(tiny_gguf(), bench(dir=str(tmp_path)), log=lines.append)
    assert report.interrupted
    assert report.rows[0]["ttft_ms"]["count"] == 1
    assert list(tmp_path.iterdir()) == []
    assert bench_tiers(tiny_gguf(), bench(dir=str(tmp_path)), log=lines.append).rows == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"prompt_tokens": 16}, "prompt_tokens 16 must be above block_size 16"),
        ({"dir": "/no/such/folder"}, "there is no folder /no/such/folder"),
    ],
)
def test_impossible_values_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        bench(**changes)


def test_a_folder_that_cannot_be_written_to_is_said(
    tiny_gguf: Tiny, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(**options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tiers_bench.tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(ConfigError, match=r"cannot make a folder in .*\(--dir\): Permission denied"):
        bench_tiers(tiny_gguf(), bench(dir=str(tmp_path)))
