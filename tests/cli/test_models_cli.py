"""The command line as a whole, and `pull`, `list`, `show`, `rm`: run as a person does, in a process of its own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.web import Web, serve
from octavo.formats.catalog import CATALOG
from octavo.formats.store import ModelStore

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def octavo(models: Path) -> Run:
    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "octavo", *arguments],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=dict(os.environ) | {"OCTAVO_MODELS": str(models), "OCTAVO_DEBUG": ""} | environment,
        )

    return run


@pytest.fixture
def hub(tiny_gguf: Callable[..., Path]) -> Iterator[Web]:
    with serve() as web:
        web.add_hub_repository("org/tiny-GGUF", {"Tiny-F32.gguf": tiny_gguf("llama").read_bytes()}, licence="mit")
        yield web


def failed(result: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one error line of a command that failed as it should."""
    assert result.returncode == code
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


def test_help_is_grouped_and_starts_fast(octavo: Run) -> None:
    result = octavo()
    assert result.returncode == 0
    assert "Models:" in result.stdout
    assert "This machine:" in result.stdout
    code = (
        "import sys, octavo.cli.main as m; print([n for n in ('numpy', 'rich', 'huggingface_hub') if n in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("command", ["run", "pull", "list", "show", "rm", "info"])
def test_every_command_has_help(octavo: Run, command: str) -> None:
    result = octavo(command, "--help")
    assert result.returncode == 0
    assert f"octavo {command} [OPTIONS]" in result.stdout


def test_version(octavo: Run) -> None:
    result = octavo("--version")
    assert (result.returncode, result.stdout.startswith("octavo ")) == (0, True)


def test_wrong_command_lines_are_one_line(octavo: Run) -> None:
    assert "no command 'lst'; did you mean list?" in failed(octavo("lst"), 2)
    assert "Missing argument 'NAME' (see octavo pull --help)" in failed(octavo("pull"), 2)
    assert "--nope" in failed(octavo("run", "--nope"), 2)


def test_a_bad_environment_is_one_line(octavo: Run) -> None:
    assert "OCTAVO_THREADS='many'" in failed(octavo("list", OCTAVO_THREADS="many"))
    assert "OCTAVO_DEBUG" in failed(octavo("list", OCTAVO_DEBUG="perhaps"))


def test_debug_shows_the_traceback(octavo: Run) -> None:
    result = octavo("show", "./none.gguf", OCTAVO_DEBUG="1")
    assert "Traceback" in result.stderr
    assert result.stderr.strip().splitlines()[-1].startswith("error: no model file './none.gguf'")


def test_output_into_a_closed_pipe_is_quiet(models: Path, octavo: Run) -> None:
    command = f"{sys.executable} -m octavo list --available | true"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in result.stderr
    assert "error" not in result.stderr


def test_pull_list_show_rm(octavo: Run, hub: Web, models: Path, tiny_gguf: Callable[..., Path]) -> None:
    assert "no models in" in octavo("list").stdout
    pulled = octavo("pull", "org/tiny-GGUF", HF_ENDPOINT=hub.url)
    path = models / "org" / "tiny-GGUF" / "Tiny-F32.gguf"
    assert (pulled.returncode, pulled.stdout) == (0, f"{path}\n")
    assert pulled.stderr.startswith("downloading Tiny-F32.gguf (")

    listed = octavo("list").stdout.splitlines()
    assert listed[0].split() == ["NAME", "SIZE", "FORMAT", "ORIGIN"]
    assert listed[1].startswith("org/tiny-GGUF:Tiny-F32.gguf")
    assert " F32 " in listed[1]
    assert "Hugging Face" in listed[1]

    shown = octavo("show", "org/tiny-GGUF:Tiny-F32.gguf").stdout
    fields = {line[:16].strip(): line[16:] for line in shown.splitlines()}
    assert fields["architecture"] == "llama"
    assert fields["licence"] == "mit"
    assert fields["chat template"] == "yes"
    assert fields["tokenizer"].endswith("320 tokens")
    assert fields["SHA-256"] == hashlib.sha256(tiny_gguf("llama").read_bytes()).hexdigest()
    assert "F32 " in fields["formats"]
    assert fields["file"] == str(path)

    removed = octavo("rm", "org/tiny-GGUF:Tiny-F32.gguf").stdout
    assert removed.startswith("removed org/tiny-GGUF/Tiny-F32.gguf (")
    assert not path.exists()
    assert "no model" in failed(octavo("rm", "org/tiny-GGUF:Tiny-F32.gguf"))


def test_show_a_path_and_a_file_put_there_by_hand(octavo: Run, models: Path, tiny_gguf: Callable[..., Path]) -> None:
    path = tiny_gguf("qwen3")
    assert "architecture    qwen3" in octavo("show", str(path)).stdout
    models.mkdir()
    (models / "mine.gguf").write_bytes(path.read_bytes())
    assert "put there by hand" in octavo("list").stdout
    assert "architecture    qwen3" in octavo("show", "mine.gguf").stdout


def test_show_of_a_broken_file_names_it(octavo: Run, tmp_path: Path, models: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF\x03\x00\x00\x00short")
    assert "bad.gguf" in failed(octavo("show", str(tmp_path / "bad.gguf")))
    models.mkdir()
    (models / "bad.gguf").write_bytes(b"nothing")
    assert "unreadable" in octavo("list").stdout, "one bad file does not hide the others"


def test_available_models_have_licences(octavo: Run) -> None:
    lines = octavo("list", "--available").stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(CATALOG)
    assert "Gemma terms of use" in "".join(lines)
    assert "not downloaded; `octavo pull smollm2`" in octavo("show", "smollm2").stdout


def test_interrupted_downloads_are_listed_and_removed(octavo: Run, models: Path) -> None:
    folder = ModelStore(models).partial_folder("org/repo:m.gguf")
    folder.mkdir(parents=True)
    (folder / "m.gguf.part").write_bytes(b"12345")
    assert "incomplete" in octavo("list").stdout
    assert octavo("rm", "org/repo:m.gguf").returncode == 0
    assert not folder.exists()


def test_an_unknown_model_and_an_unreachable_hub(octavo: Run) -> None:
    assert "did you mean smollm2?" in failed(octavo("pull", "smolm2"))
    with serve() as gone:
        url = gone.url
    line = failed(octavo("pull", "org/repo", HF_ENDPOINT=url))
    assert line.endswith("Connection refused")


def test_no_control_codes_when_piped_even_if_color_is_forced(octavo: Run) -> None:
    for arguments in (("list", "--available"), ("--help",), ("show", "smollm2")):
        assert "\033" not in octavo(*arguments, FORCE_COLOR="1", TERM="xterm-256color").stdout
