"""How a server runs: where it listens, whom it serves, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.core.errors import ConfigError
from octavo.engine.health import DEFAULT_STALL_AFTER_S

__all__ = ["DEFAULT_HOST", "DEFAULT_MAX_WAITING", "DEFAULT_PORT", "ModelSpec", "ServerConfig"]

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
"""As vLLM's, so that what is written for it finds us."""
DEFAULT_MAX_WAITING = 256
"""Eight batches: whoever is refused beyond that would have waited for minutes."""


@dataclass(frozen=True)
class ModelSpec:
    """A model to serve.

    reference: what `LLM` takes. names: what requests call it; the first is shown. options: arguments of `AsyncLLM`.
    """

    reference: str
    names: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """A server.

    Attributes:
        host, port: where it listens; port 0: a free one.
        api_keys: one of them must come with every request but for /health; empty: none is needed.
        allowed_hosts: names in the Host header; None: those of this machine if it listens on loopback only, else any.
        allowed_origins: web pages of other origins that may call, such as "http://localhost:3000", or "*".
        max_body_bytes, max_header_bytes, max_json_depth: of one request.
        max_prompts: prompts of one request, times n.
        receive_timeout_s: how long headers may take to come, and how long a body may.
        request_timeout_s: a request that takes longer is ended; None: no limit.
        grace_s: how long running requests may take after SIGTERM.
        stall_after_s: /health fails while a step of an engine has run for longer.
        allow_request_chat_template: whether requests may bring templates of their own.
        allow_model_changes: whether requests of the Ollama API may pull, copy and delete models, and use every one of
            the model folder; None: where only this machine can connect.
        max_stored_responses: of the Responses API, the latest are kept for previous_response_id.

    Raises:
        ConfigError: a value is impossible.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    api_keys: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] | None = None
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 16 * 2**20
    max_header_bytes: int = 64 * 2**10
    max_json_depth: int = 64
    max_prompts: int = 256
    receive_timeout_s: float = 60.0
    request_timeout_s: float | None = None
    grace_s: float = 30.0
    stall_after_s: float = DEFAULT_STALL_AFTER_S
    allow_request_chat_template: bool = False
    allow_model_changes: bool | None = None
    max_stored_responses: int = 1000

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be between 0 and 65535, not {self.port}")
        for name in ("max_body_bytes", "max_header_bytes", "max_json_depth", "max_prompts"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("receive_timeout_s", "request_timeout_s", "grace_s", "stall_after_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1e9:
                raise ConfigError(f"{name} must be a number of seconds of at least 0, not {value}")
        if any(not key.strip() for key in self.api_keys):
            raise ConfigError("an API key must not be empty; leave out --api-key to serve without one")
