"""A request: what a caller wants, before the engine has made anything of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from octavo.core.params import SamplingParams

__all__ = ["Request"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt and how to continue it. Validated by whoever makes it: ids in the vocabulary, room in the context.

    Attributes:
        request_id: unique among those that run.
        prompt_token_ids: at least one.
        params: how to sample and when to stop.
        seed: resolved: the caller's, or one drawn from the engine's. All noise of the request comes from it.
        max_tokens: resolved: most tokens to generate, within params.max_tokens and the room that the context has left.
        prompt: the text, if the caller gave one.
        cache_salt: requests share cached prefixes only with those of the same salt.
        priority: smaller runs first; requests of the same priority run in order of arrival.
        queue_timeout_s: it ends with "timeout" if it has not been given pages by then; None: the engine's limit.
        starts_text: the answer is a text of its own (a turn of a chat), not the continuation of the prompt's last word.
        arrival: seconds since the epoch.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    max_tokens: int
    prompt: str | None = None
    cache_salt: str | None = None
    priority: int = 0
    queue_timeout_s: float | None = None
    starts_text: bool = False
    arrival: float = field(default_factory=time.time)
