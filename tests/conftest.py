"""Fixtures shared by all rooms."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from helpers.tiny import write_tiny_gguf

# A busy two-core machine must not fail a test for being slow; pytest-timeout bounds the time instead.
# CI draws the same examples each time, so that a red run is about the change it tests.
settings.register_profile(
    "octavo", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.register_profile("sanitize", settings.get_profile("octavo"), max_examples=20)  # of scripts/sanitize
settings.load_profile("octavo")


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_gguf(arch="llama", **overrides) -> Path`: a tiny random GGUF file (see helpers/tiny.py).

    Written once per session and per set of plain (hashable) overrides.
    """
    folder = tmp_path_factory.mktemp("tiny")
    known: dict[Any, Path] = {}

    def make(arch: str = "llama", **overrides: Any) -> Path:
        key = (arch, repr(sorted(overrides.items()))) if "tensors" not in overrides else object()
        if key not in known:
            known[key] = write_tiny_gguf(folder / f"{arch}-{len(known)}.gguf", arch, **overrides)
        return known[key]

    return make


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], Path]:
    """`real_model("SmolLM2-135M-Instruct.Q4_1.gguf") -> Path`, or skip the test if the file is not there.

    Folder: the environment variable OCTAVO_TEST_MODELS, else ~/.cache/octavo-models.
    """
    folder = Path(os.environ.get("OCTAVO_TEST_MODELS") or Path.home() / ".cache" / "octavo-models")

    def find(name: str) -> Path:
        path = folder / name
        if not path.is_file():
            pytest.skip(f"no {name} in {folder} (set OCTAVO_TEST_MODELS to the folder that holds it)")
        return path

    return find
