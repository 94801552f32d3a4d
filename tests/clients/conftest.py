"""Real clients against a server that scripts/clients has started. Nothing of Octavo is imported here: each group of
clients has an environment of its own, which does not hold it.

CLIENTS_SERVER: the server's address; without it these tests are skipped. Its model is called "smollm2".
"""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def url() -> str:
    found = os.environ.get("CLIENTS_SERVER", "")
    if not found:
        pytest.skip("no server to ask (scripts/clients starts one and sets CLIENTS_SERVER)")
    return found


@pytest.fixture(scope="session")
def model() -> str:
    return "smollm2"
