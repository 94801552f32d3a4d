"""A server for the tests of all APIs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.servers import Site, serve_tiny, tiny_spec_of


@pytest.fixture(scope="session")
def site(tiny_gguf: Callable[..., Path]) -> Iterator[Site]:
    """A server of one tiny model, called "tiny" and "alias"; for tests that leave it as it was."""
    with serve_tiny(tiny_spec_of(tiny_gguf(), "tiny", "alias")) as running:
        yield running
