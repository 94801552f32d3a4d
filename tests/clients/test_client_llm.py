"""The command `llm`, with the server as one of its extra OpenAI models."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("llm")

Run = Callable[..., str]


@pytest.fixture
def llm(url: str, model: str, tmp_path: Path) -> Run:
    served = f"- model_id: octavo\n  model_name: {model}\n  api_base: {url}/v1\n"
    (tmp_path / "extra-openai-models.yaml").write_text(served)

    def run(*arguments: str, given: str = "") -> str:
        command = [str(Path(sys.executable).parent / "llm"), *arguments]
        environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_it_is_listed(llm: Run) -> None:
    assert "octavo" in llm("models")


def test_prompts(llm: Run) -> None:
    options = ("-m", "octavo", "-o", "temperature", "0", "-o", "max_tokens", "12")
    streamed = llm(*options, "-s", "Be brief.", "Name three colours.")
    assert streamed.strip()
    assert llm(*options, "--no-stream", "-s", "Be brief.", "Name three colours.") == streamed
    assert llm(*options, "-s", "Be brief.", given="Name three colours.").strip()


def test_conversations(llm: Run) -> None:
    llm("-m", "octavo", "-o", "max_tokens", "8", "My name is Ada.")
    assert llm("-c", "-o", "max_tokens", "8", "What is my name?").strip()
    assert "Ada" in llm("logs", "-n", "2")
