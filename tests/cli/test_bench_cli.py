"""`octavo bench` from the command line: reports on the terminal, in files and on standard output, and bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.engines import NATIVE
from octavo.cli import main as cli_main
from octavo.measure import engine_bench, kernel_bench
from octavo.measure.limits import Rates

Tiny = Callable[..., Path]
SMALL = ["--prompt-tokens", "12", "--output-tokens", "2", "--batch", "1,2", "--repeats", "1"]


class FixedMeter:
    missing = ""

    def __init__(self, threads: int | None) -> None:
        self.threads = threads

    def sample(self) -> Rates:
        return Rates(10.0, 100.0, 50.0, 25.0)


@pytest.fixture(autouse=True)
def _fixed_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_bench, "LimitMeter", FixedMeter)
    monkeypatch.setattr(kernel_bench, "LimitMeter", FixedMeter)
    monkeypatch.setenv("OCTAVO_BACKEND", "reference")


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        cli_main.main(["bench", *map(str, arguments)])
    return int(stopped.value.code or 0)


def test_a_table_for_people(tiny_gguf: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny_gguf()
    assert run("engine", path, *SMALL) == 0
    output, errors = capsys.readouterr()
    lines = output.splitlines()
    assert lines[0].startswith(f"{path.name}, ")
    assert lines[0].endswith("12 prompt and 2 output tokens")
    assert (
        "limits: stream 10.0 GB/s (best 10.0), dot 100.0 GMAC/s (best 100.0), bf16 50.0 GMAC/s (best 50.0), "
        "f32 25.0 GMAC/s (best 25.0); 3 samples"
    ) in lines
    assert [line.split()[0] for line in lines[-2:]] == ["1", "2"]
    assert lines[-3].endswith("outside native  schedule + commit")
    assert "\x1b" not in output
    assert errors == ""


def test_json_to_a_file_leaves_the_table(tiny_gguf: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report.json"
    assert run("engine", tiny_gguf(), *SMALL, "--json", target) == 0
    found = json.loads(target.read_text())
    assert [row["batch"] for row in found["rows"]] == [1, 2]
    assert "prefill tok/s" in capsys.readouterr().out


def test_json_to_standard_output_is_nothing_else(tiny_gguf: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("engine", tiny_gguf(), *SMALL, "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"host", "rows", "notes", "interrupted"}
    assert found["host"]["stream_gb_s"] == 10.0
    assert {"batch", "prompt_tokens", "output_tokens", "prefill_tok_s", "decode_tok_s"} <= set(found["rows"][0])
    assert {"prefill_limit_fraction", "decode_limit_fraction"} <= set(found["rows"][0])


def test_an_interrupt_still_writes(
    tiny_gguf: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = []

    def sample(self: FixedMeter) -> Rates:
        taken.append(1)
        if len(taken) == 3:
            raise KeyboardInterrupt
        return Rates(10.0, 100.0, 50.0, 25.0)

    monkeypatch.setattr(FixedMeter, "sample", sample)
    target = tmp_path / "report.json"
    assert run("engine", tiny_gguf(), *SMALL, "--json", target) == 130
    found = json.loads(target.read_text())
    assert found["interrupted"]
    assert [row["batch"] for row in found["rows"]] == [1]
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.skipif(not NATIVE, reason="the native extension is not built")
def test_kernels(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "kernels.json"
    options = ["--formats", "Q8_0", "--ops", "linear,rms_norm", "--shape", "64x64", "--rows", "1,5"]
    assert run("kernels", *options, "--threads", 1, "--seconds", 0.001, "--json", target) == 0
    rows = json.loads(target.read_text())["rows"]
    assert [(row["op"], row["tokens"], row["shape"]) for row in rows] == [
        ("linear", 1, [64, 64]), ("linear", 5, [64, 64]), ("rms_norm", 1, [1, 64]), ("rms_norm", 5, [5, 64])
    ]  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "kernels, matrices 64x64"
    assert [line.split()[:3] for line in lines[4:6]] == [["linear", "Q8_0", "1"], ["linear", "Q8_0", "5"]]
    # Then a line per format: bits, its peak, the share of the limit and the time at each number of rows.
    assert " ".join(lines[-2].split()) == "linear bits packed peak of limit at 1 5 time of 1 5"
    assert lines[-1].split()[:2] == ["Q8_0", "8.50"]
    assert lines[-1].split()[3] == "int8"
    assert lines[-1].split()[-2] == "1.00"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["engine"], 2, "Missing argument 'MODEL'"),
        (["engine", "m", "--batch", "1,x"], 2, "'1,x' must be whole numbers of at least 1"),
        (["engine", "m", "--batch", "0"], 2, "'0' must be whole numbers of at least 1"),
        (["engine", "m", "--repeats", "0"], 2, "--repeats"),
        (["engine", "./m.gguf"], 1, "m.gguf"),
        (["engine", "m", "--json", "/no/such/folder/x.json"], 1, "no folder /no/such/folder"),
        (["engine", "m", "--json", "/"], 1, "it is a folder"),
        (["kernels", "--shape", "64"], 2, "'64' must be outputs x inputs"),
        (["kernels", "--ops", "conv"], 1, "no op 'conv'"),
        (["kernels", "--formats", "Q9"], 1, "'Q9' is not supported"),
        (["kernels", "--seconds", "-1"], 1, "seconds must be above 0"),
        (["speed"], 2, "No such command 'speed'"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == code
    output, errors = capsys.readouterr()
    assert output == ""
    assert said in errors
    assert errors.count("\n") == 1


def test_a_context_that_is_too_short_is_said(tiny_gguf: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("engine", tiny_gguf(), "--prompt-tokens", 600) == 1
    assert "lower --prompt-tokens or --output-tokens" in capsys.readouterr().err


def test_help_imports_no_engine() -> None:
    code = (
        "import sys; from octavo.cli.main import cli; cli(['bench', 'engine', '--help'], standalone_mode=False);"
        "sys.exit(any(name.startswith(('octavo.engine', 'octavo.measure', 'numpy')) for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--prompt-tokens" in done.stdout
