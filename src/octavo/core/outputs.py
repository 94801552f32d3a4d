"""What a request returns, shaped as vLLM users know it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["CompletionOutput", "FinishReason", "Logprob", "RequestMetrics", "RequestOutput", "TokenLogprobs"]

FinishReason = Literal["stop", "length", "abort", "error"]


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


@dataclass
class RequestMetrics:
    """Seconds since the epoch for `arrival`, since `arrival` for the rest; None until it has happened."""

    arrival: float
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    cached_prompt_tokens: int = 0
    preemptions: int = 0


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
    """Why it ended with finish_reason "error"."""
