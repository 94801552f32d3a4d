"""The command as a process: streams that are closed, full or cannot write every character end in one line."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.cli import main as cli_main


def octavo(tail: str, models: Path) -> subprocess.CompletedProcess[str]:
    """`octavo` run by a shell, which can close and redirect streams."""
    environment = {**os.environ, "OCTAVO_MODELS": str(models)}
    command = f'"{sys.executable}" -m octavo {tail}'
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        ("run smollm2 <&-", "error: the prompt for smollm2 is empty; give one as an argument or on standard input"),
        ("list >&-", "error: standard output is closed"),
        pytest.param(
            "list >/dev/full",
            "error: cannot read or write: No space left on device",
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system"),
        ),
        ("run / hi", "error: the folder '/' holds no .gguf file"),
    ],
)
def test_one_line_and_no_traceback(tail: str, message: str, tmp_path: Path) -> None:
    result = octavo(tail, tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


def test_a_closed_standard_error_is_no_error(tmp_path: Path) -> None:
    result = octavo("list 2>&-", tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "no models in" in result.stdout


def test_characters_that_the_encoding_lacks_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding="ascii", write_through=True))
    with pytest.raises(SystemExit) as left:
        cli_main.main(["--version"])
    assert left.value.code == 0
    sys.stdout.write("é")
    assert buffer.getvalue().endswith(b"\\xe9")
