"""`octavo bench serve` from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.servers import serve_tiny, tiny_spec_of
from octavo.cli import main as cli_main

SMALL = ["--prompt-words", "2", "--system-words", "3", "--output-tokens", "4", "--requests", "4"]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        cli_main.main(["bench", "serve", *map(str, arguments)])
    return int(stopped.value.code or 0)


def test_table_and_files(tiny_gguf: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    target, plot = tmp_path / "report.json", tmp_path / "plot.png"
    with serve_tiny(tiny_spec_of(tiny_gguf())) as site:
        url = site.url
        assert run("--url", url, "--concurrency", "1,2", *SMALL, "--json", target, "--plot", plot) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"tiny at {url}, 3 shared system words, prompts of 2 words, answers of 4 tokens")
    starts = [line.split()[:3] for line in lines if line[:1].isdigit()]
    assert starts == [["1", "4", "0"], ["2", "4", "0"]]
    report = json.loads(target.read_text())
    assert [row["output_tokens"] for row in report["rows"]] == [4, 4]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    assert run("--url", "x", "--prompt-words", 3, "--prompt-tokens", 3) == 2
    assert run("--url", "http://127.0.0.1:9", "--concurrency", "1,x") == 2
    assert run("--url", "http://127.0.0.1:9", "--json", "/nowhere/at/all") == 1
    assert run("--url", "http://127.0.0.1:9") == 1
    assert (
        capsys.readouterr().err.splitlines()[-1].endswith("cannot reach http://127.0.0.1:9 (--url): connection refused")
    )
