"""A request in the engine: a group of n sequences, each with its tokens, pages, sampler and text."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable

from octavo.cache.manager import PageTable
from octavo.core.outputs import (
    CompletionOutput,
    FinishReason,
    RequestMetrics,
    RequestOutput,
    TokenLogprobs,
)
from octavo.core.request import Request
from octavo.engine.output import TextBuilder, assemble_logprobs
from octavo.engine.swap import SavedPages
from octavo.sampling.sampler import Sampled
from octavo.sampling.state import SamplerState

__all__ = ["Group", "Sequence"]


class Group:
    """One request: its sequences, and what they have in common.

    prompt_done: the first sequence has computed the whole prompt. shared: its pages, held for siblings that have not
    been admitted yet. version: counts changes that a caller can see. start: when it came, by time.monotonic().
    """

    __slots__ = (
        "__weakref__",
        "decode",
        "error",
        "metrics",
        "prompt_done",
        "prompt_logprobs",
        "request",
        "sequences",
        "shared",
        "start",
        "unadmitted",
        "unfinished",
        "version",
    )

    def __init__(self, request: Request, decode: Callable[[int], str]) -> None:
        self.request = request
        self.decode = decode
        self.sequences: list[Sequence] = []
        self.unfinished = 0
        self.unadmitted = 0
        self.prompt_done = False
        self.shared: PageTable | None = None
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        if request.params.prompt_logprobs is not None:
            self.prompt_logprobs = [None]
        self.metrics = RequestMetrics(request.arrival)
        self.error: str | None = None
        self.version = 0
        self.start = time.monotonic()

    @property
    def finished(self) -> bool:
        return self.unfinished == 0

    @property
    def timed_out(self) -> bool:
        """Whether it ended because it waited too long."""
        return any(sequence.finish_reason == "timeout" for sequence in self.sequences)

    def add(self, sequence: Sequence) -> None:
        self.sequences.append(sequence)
        self.unfinished += 1
        self.unadmitted += 1

    def elapsed(self) -> float:
        """Seconds since the request came."""
        return time.monotonic() - self.start

    def output(self) -> RequestOutput:
        """A copy of the present state, as callers see it."""
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.request.prompt,
            prompt_token_ids=list(self.request.prompt_token_ids),
            outputs=[sequence.output() for sequence in self.sequences],
            finished=self.finished,
            metrics=RequestMetrics(**vars(self.metrics)),
            prompt_logprobs=None if self.prompt_logprobs is None else list(self.prompt_logprobs),
            error=self.error,
        )


class Sequence:
    """One completion.

    tokens: prompt and output, i32. computed: how many of them have their keys and values in the pages of `table`.
    order: place in the queue; smaller is older. rank: priority, then order. admitted: it has run before.
    saved: its pages in the swap space while it is preempted.
    A sequence decodes when exactly one token is not computed. plain: its tokens are the largest logits, and nothing but
    stop ids and its length can end it, so that `take` is enough for all others.
    """

    __slots__ = (
        "admitted",
        "computed",
        "eos_ids",
        "finish_reason",
        "group",
        "index",
        "logprob_sum",
        "logprobs",
        "max_length",
        "order",
        "plain",
        "prompt_length",
        "rank",
        "sampler",
        "saved",
        "stop_reason",
        "table",
        "text",
        "tokens",
    )

    def __init__(
        self,
        group: Group,
        index: int,
        order: int,
        sampler: SamplerState,
        text: TextBuilder,
        eos_ids: frozenset[int],
    ) -> None:
        """eos_ids: tokens that end the output without being asked for; empty under ignore_eos."""
        prompt = group.request.prompt_token_ids
        self.group, self.index, self.order = group, index, order
        self.rank = (group.request.priority, order)
        self.tokens = array("i", prompt)
        self.prompt_length = len(prompt)
        self.max_length = len(prompt) + group.request.max_tokens
        self.computed = 0
        self.admitted = False
        self.table: PageTable | None = None
        self.saved: SavedPages | None = None
        self.sampler, self.text, self.eos_ids = sampler, text, eos_ids
        self.plain = sampler.plain and not group.request.params.stop
        self.logprobs: list[TokenLogprobs] | None = [] if group.request.params.logprobs is not None else None
        self.logprob_sum = 0.0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        group.add(self)

    @property
    def remaining(self) -> int:
        """Tokens that are known and not computed."""
        return len(self.tokens) - self.computed

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def first_logit_row(self) -> int:
        """The first position whose logits are still needed: the last token's, or earlier ones for prompt_logprobs."""
        reported = self.group.prompt_logprobs if self.index == 0 else None
        if reported is None or len(reported) >= self.prompt_length:
            return len(self.tokens) - 1
        return len(reported) - 1

    def take(self, token: int) -> None:
        """Commit a plain sequence's step whose token does not end it: `accept`, in a fraction of the time."""
        self.computed += 1
        self.tokens.append(token)
        self.sampler.position += 1
        self.text.pending.append(token)

    def accept(self, sampled: Sampled) -> None:
        """Take the next token, and finish if it ends the output."""
        token, params = sampled.token, self.group.request.params
        self.tokens.append(token)
        self.sampler.append(token)
        if self.logprobs is not None:
            assert sampled.logprob is not None
            assert sampled.rank is not None
            own = (token, sampled.logprob, sampled.rank)
            self.logprobs.append(assemble_logprobs([own, *sampled.top], self.group.decode))
            self.logprob_sum += sampled.logprob
        count = len(self.tokens) - self.prompt_length
        if token in self.sampler.stop_ids and count > params.min_tokens:
            if params.include_stop_str_in_output:
                self.text.append(token, may_stop=False)
            self.finish("stop", None if token in self.eos_ids else token)
            return
        stop = self.text.append(token, may_stop=count >= params.min_tokens)
        if stop is not None:
            self.finish_reason, self.stop_reason = "stop", stop
            self.group.unfinished -= 1
        elif len(self.tokens) >= self.max_length:
            self.finish("length")

    def finish(self, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        """End the output where it is."""
        self.text.finish()
        self.finish_reason, self.stop_reason = reason, stop_reason
        self.group.unfinished -= 1

    def output(self) -> CompletionOutput:
        return CompletionOutput(
            index=self.index,
            text=self.text.text,
            token_ids=self.tokens[self.prompt_length :].tolist(),
            logprobs=None if self.logprobs is None else list(self.logprobs),
            cumulative_logprob=None if self.logprobs is None else self.logprob_sum,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )
