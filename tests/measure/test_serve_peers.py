"""benchmarks/serve_peers.py and server_overhead.py on a tiny model; a server of ours stands in for llama-server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[2]
PEER = """#!{python}
import os, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert (given["-np"], given["-c"], given["-t"], given["-tb"]) == ("2", "512", "1", "1"), given
command = [sys.executable, "-m", "octavo", "serve", given["-m"], "--port", given["--port"], "--no-log-requests"]
os.execv(sys.executable, [*command, "--max-model-len", "256"])
"""

pytest.importorskip("octavo.ops._native")  # they give their threads to both


def bench(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CLONE / "benchmarks" / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_pairs_become_ratios(tiny_gguf: Callable[..., Path], tmp_path: Path) -> None:
    program = tmp_path / "peer" / "bin" / "llama-server"
    program.parent.mkdir(parents=True)
    program.write_text(PEER.format(python=sys.executable))
    program.chmod(0o755)
    load = ["--concurrency", 2, "--requests", 4, "--output-tokens", 4, "--system-words", 5, "--prompt-words", 3]
    run = ["--peer", tmp_path, "--context", 256, "--threads", 1, "--pairs", 2, "--json", tmp_path / "report.json"]
    done = bench("serve_peers.py", tiny_gguf(), *load, *run)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    figures = report["figures"]["output tok/s"]
    assert figures["ratios"] == [a / b for a, b in zip(figures["octavo"], figures["llama_cpp"], strict=True)]
    assert len(figures["ratios"]) == 2
    # Which goes first changes from pair to pair.
    assert [next(iter(pair)) for pair in report["pairs"]] == ["llama.cpp", "octavo"]
    assert all(row["requests"] == 4 for pair in report["pairs"] for row in pair.values())
    assert "| TTFT p50 ms |" in done.stdout


def test_what_is_missing_is_told(tiny_gguf: Callable[..., Path], tmp_path: Path) -> None:
    done = bench("serve_peers.py", tiny_gguf(), "--peer", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: no llama-server in or below")
    broken = tmp_path / "llama-server"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    done = bench("serve_peers.py", tiny_gguf(), "--peer", tmp_path)
    assert done.returncode == 1
    assert "does not serve; run it to see why" in done.stderr


@pytest.mark.slow
def test_the_cost_of_http(tiny_gguf: Callable[..., Path], tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    model = tiny_gguf(context_length=1024)
    done = bench("server_overhead.py", model, "--streams", 2, "--output-tokens", 4, "--pairs", 2, "--json", target)
    assert done.returncode == 0, done.stderr
    report = json.loads(target.read_text())
    assert report["ratios"] == [served / alone for alone, served, _ in report["pairs"]]
    assert len(report["ratios"]) == 2
    assert "% of the throughput" in done.stdout
