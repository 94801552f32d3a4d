"""What a request returns, shaped as vLLM users know it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "CacheMiss",
    "CompletionOutput",
    "FinishReason",
    "Logprob",
    "MissReason",
    "RequestMetrics",
    "RequestOutput",
    "TokenLogprobs",
]

FinishReason = Literal["stop", "length", "abort", "error", "timeout"]
"""timeout: it waited in the queue longer than queue_timeout_s; no token was computed."""

MissReason = Literal["off", "short", "logprobs", "salt", "adapter", "evicted", "differs", "new"]


@dataclass(frozen=True)
class Logprob:
    """Natural-log probability of a token under the raw model distribution (before temperature and filters).

    rank: 1 is the most likely token of the vocabulary.
    """

    logprob: float
    rank: int
    decoded_token: str


TokenLogprobs = dict[int, Logprob]
"""Token id -> Logprob: the sampled token first, then the most likely ones."""


@dataclass
class CompletionOutput:
    """One of the n completions of a prompt."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    cumulative_logprob: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended it; None for end-of-sequence and for other reasons."""


@dataclass(frozen=True)
class CacheMiss:
    """Why a prompt was not served from the prefix cache from some token on.

    reason:
        off       prefix caching is switched off
        short     what follows is less than a page, and pages are what is cached
        logprobs  prompt_logprobs asks for logits of every prompt token
        salt      the same tokens are cached under another cache_salt
        adapter   the same tokens are cached for another adapter
        evicted   the same tokens were cached, and their page was needed for others
        differs   the nearest cached prompt has another token there
        new       nothing like it has been computed
    position: index of the first prompt token that had to be computed. token: the id there. cached_token: for
    "differs", the id that the nearest cached prompt has there.
    """

    reason: MissReason
    position: int
    token: int
    cached_token: int | None = None

    def __str__(self) -> str:
        told = {
            "off": "prefix caching is off",
            "short": "the rest is shorter than a page",
            "logprobs": "prompt_logprobs needs every token computed",
            "salt": "cached under another cache_salt",
            "adapter": "cached for another adapter",
            "evicted": "it was cached and has been evicted",
            "differs": f"token {self.token} where the nearest cached prompt has {self.cached_token}",
            "new": "nothing like it has been computed",
        }
        return f"from token {self.position}: {told[self.reason]}"


@dataclass
class RequestMetrics:
    """Seconds since the epoch for `arrival`, since `arrival` for the rest; None until it has happened.

    cached_prompt_tokens: taken from the prefix cache at its first admission, disk_prompt_tokens of them from disk.
    cache_miss: why it was not more; None if all but the last token came from the cache.
    swaps: of its preemptions, those whose pages were kept aside and brought back instead of computed again.
    """

    arrival: float
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    cached_prompt_tokens: int = 0
    disk_prompt_tokens: int = 0
    cache_miss: CacheMiss | None = None
    preemptions: int = 0
    swaps: int = 0

    @property
    def queue_s(self) -> float | None:
        """Seconds until it was first given pages."""
        return self.first_scheduled_s if self.first_scheduled_s is not None else self.finished_s

    @property
    def prefill_s(self) -> float | None:
        """Seconds from then to its first token."""
        return _between(self.first_scheduled_s, self.first_token_s)

    @property
    def decode_s(self) -> float | None:
        """Seconds from its first token to its end."""
        return _between(self.first_token_s, self.finished_s)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


@dataclass
class RequestOutput:
    """The state of a request: complete when `finished`."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    error: str | None = field(default=None)
    """Why it ended with finish_reason "error" or "timeout"."""
