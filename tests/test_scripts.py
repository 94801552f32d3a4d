"""The scripts that people and CI share: they parse, can be run, and read versions from the one place they stand."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[1]
NAMES = ("setup", "check", "test", "parity", "sanitize", "fetch_models", "clients", "soak")
SHELL = [CLONE / ".ci" / "run", *(CLONE / "scripts" / name for name in NAMES)]


def python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CLONE / "scripts" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("script", SHELL, ids=lambda path: path.name)
def test_shell_scripts_parse_and_are_executable(script: Path) -> None:
    assert os.access(script, os.X_OK)
    checked = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_extras_are_read_from_the_project_file() -> None:
    extras = tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert python("extra.py", "oracle").stdout.splitlines() == extras["oracle"]
    dev = python("extra.py", "dev").stdout
    assert "ruff==" in dev
    assert "octavo[" not in dev
    assert python("extra.py", "nothing").returncode == 2


def test_closure_size_adds_up_and_holds_a_limit() -> None:
    done = python("closure_size.py", "hypothesis")
    *rows, total = [line.split() for line in done.stdout.splitlines()]
    names = {row[1] for row in rows}
    assert {"hypothesis", "sortedcontainers"} <= names
    assert float(total[0]) == pytest.approx(sum(float(row[0]) for row in rows), abs=0.1 * len(rows))
    assert python("closure_size.py", "hypothesis", "--limit-mb", "0.1").returncode == 1
    assert python("closure_size.py", "hypothesis", "--limit-mb", "500").returncode == 0
    assert python("closure_size.py", "no-such-package-here").returncode == 2


def test_scripts_say_what_is_missing(tmp_path: Path) -> None:
    environment = {**os.environ, "VIRTUAL_ENV": str(tmp_path)}
    for name in NAMES[1:]:
        command = ["bash", str(CLONE / "scripts" / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 1
        assert "run scripts/setup first" in done.stderr
