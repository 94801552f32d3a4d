"""The environment table: every row can be read, bad values are refused by name, the docs page equals the table."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.core.env import TABLE, check_environment, env
from octavo.core.errors import ConfigError

CLONE = Path(__file__).parents[2]


def test_defaults_follow_the_cache_folder(tmp_path: Path) -> None:
    assert env("OCTAVO_CACHE", {}) == Path.home() / ".cache" / "octavo"
    assert env("OCTAVO_MODELS", {}) == Path.home() / ".cache" / "octavo" / "models"
    assert env("OCTAVO_MODELS", {"OCTAVO_CACHE": str(tmp_path)}) == tmp_path / "models"
    assert env("OCTAVO_THREADS", {}) is None
    assert env("OCTAVO_ISA", {}) == "auto"
    assert env("OCTAVO_BACKEND", {}) == "native"
    assert env("OCTAVO_DEBUG", {}) is False


def test_values_are_parsed(tmp_path: Path) -> None:
    assert env("OCTAVO_THREADS", {"OCTAVO_THREADS": " 7 "}) == 7
    assert env("OCTAVO_THREADS", {"OCTAVO_THREADS": "auto"}) is None
    assert env("OCTAVO_ISA", {"OCTAVO_ISA": "AVX2"}) == "avx2"
    assert env("OCTAVO_BACKEND", {"OCTAVO_BACKEND": "reference"}) == "reference"
    assert env("OCTAVO_DEBUG", {"OCTAVO_DEBUG": "yes"}) is True
    assert env("OCTAVO_MODELS", {"OCTAVO_MODELS": "~/m"}) == Path.home() / "m"
    assert env("OCTAVO_MODELS", {"OCTAVO_MODELS": str(tmp_path / "new")}) == tmp_path / "new"


def test_the_process_environment_is_read_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_THREADS", "3")
    assert env("OCTAVO_THREADS") == 3
    monkeypatch.setenv("OCTAVO_THREADS", "4")
    assert env("OCTAVO_THREADS") == 4


@pytest.mark.parametrize("variable", TABLE, ids=lambda variable: variable.name)
def test_empty_counts_as_not_set(variable) -> None:
    assert env(variable.name, {variable.name: ""}) == env(variable.name, {})


@pytest.mark.parametrize(
    ("name", "value", "possible"),
    [
        ("OCTAVO_THREADS", "0", "between 1 and 1024"),
        ("OCTAVO_THREADS", "-1", "between 1 and 1024"),
        ("OCTAVO_THREADS", "1.5", "between 1 and 1024"),
        ("OCTAVO_THREADS", "٣", "between 1 and 1024"),
        ("OCTAVO_THREADS", "9" * 5000, "between 1 and 1024"),
        ("OCTAVO_ISA", "avx9000", "portable"),
        ("OCTAVO_BACKEND", "cuda", "native, reference"),
        ("OCTAVO_DEBUG", "maybe", "true"),
        ("OCTAVO_CACHE", __file__, "a folder"),
        ("OCTAVO_MODELS", __file__, "a folder"),
        ("OCTAVO_MODELS", "~no-such-user-here/x", "a folder"),
        ("OCTAVO_MODELS", "x" * 5000, "a folder"),
    ],
)
def test_a_bad_value_fails_naming_variable_value_and_choices(name: str, value: str, possible: str) -> None:
    for read in (lambda: env(name, {name: value}), lambda: check_environment({name: value})):
        with pytest.raises(ConfigError) as raised:
            read()
        message = str(raised.value)
        assert name in message
        assert possible in message
        assert value[:20] in message
        assert "\n" not in message


def test_an_unknown_octavo_name_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="octavo"):
        check_environment({"OCTAVO_THREDS": "2", "PATH": "/bin", "OCTAVO_DEBUG": "1"})
    (record,) = caplog.records
    assert "OCTAVO_THREDS" in record.getMessage()
    assert "did you mean OCTAVO_THREADS?" in record.getMessage()


def test_a_clean_environment_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    check_environment({"HOME": "/root"})
    assert not caplog.records


def test_names_are_unique_and_prefixed() -> None:
    names = [variable.name for variable in TABLE]
    assert len(set(names)) == len(names)
    assert all(name.startswith("OCTAVO_") for name in names)


def test_every_row_is_read_somewhere() -> None:
    """A row that nothing reads is a promise not kept. The library's rows are read in src, the test suite's in tests."""
    script = Path(__file__)
    sources = [p for folder in ("src", "csrc", "tests", "scripts") for p in (CLONE / folder).rglob("*") if p.is_file()]
    texts = {p: p.read_text(errors="replace") for p in sources if p.suffix in ("", ".py", ".cpp", ".h")}
    for variable in TABLE:
        readers = [p for p, text in texts.items() if variable.name in text and p.name != "env.py" and p != script]
        assert readers, f"{variable.name} is in the table, but nothing reads it"


def test_the_docs_page_equals_the_table() -> None:
    script = CLONE / "scripts" / "environment_docs.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
