"""From logits to tokens. One row, one completion; the steps, in order:

    1. logit_bias                       added to the logits
    2. min_tokens                       ids that end the output become -inf until enough tokens are there
    3. repetition, presence, frequency  penalties
    4. temperature 0                    argmax, ties to the lowest id; done
    5. temperature                      logits are divided by it
    6. top_k, top_p, min_p              each cuts what the one before it left
    7. Gumbel-max                       argmax(logit / temperature + gumbel(seed, position, token id)) over the rest

Steps 1-3 are in `processors`, 6 in `filters`, 7 in `draw` and `noise`. Every row is worked out from its own logits and
state alone, so a token never depends on the batch it was sampled in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from octavo.core.errors import SamplingError
from octavo.sampling.draw import Draw, draw_tokens
from octavo.sampling.filters import filter_row
from octavo.sampling.logprobs import Ranked, fault, prompt_logprobs, row_logprobs
from octavo.sampling.noise import block_maxima
from octavo.sampling.processors import process
from octavo.sampling.state import SamplerState

__all__ = ["Argmax", "Sampled", "SamplerState", "plain_argmax", "plain_tokens", "prompt_logprobs", "sample"]

F32 = NDArray[np.float32]
Argmax = Callable[[F32], tuple[NDArray[np.int32], F32]]


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sampled token; what `params.logprobs` did not ask for is None or empty.

    logprob and rank are those of the raw model distribution (see `logprobs`).
    top: (id, logprob, rank) of the params.logprobs most likely tokens, best first.
    """

    token: int
    logprob: float | None = None
    rank: int | None = None
    top: list[Ranked] = field(default_factory=list)


def plain_argmax(logits: F32) -> tuple[NDArray[np.int32], F32]:
    """NumPy's `Ops.argmax`."""
    ids = logits.argmax(axis=1)
    return ids.astype(np.int32), logits[np.arange(len(ids)), ids]


def plain_tokens(logits: F32, argmax: Argmax) -> NDArray[np.int32] | None:
    """The tokens i32 [R] of logits f32 [R, V] whose states are all `plain`; None: a row has none, `sample` says why."""
    ids, values = argmax(logits)
    # A sum of doubles: NaN and infinities stay in it. np.isfinite(values).all() runs ten times as much code.
    return ids if math.isfinite(sum(values.tolist())) else None


def sample(logits: F32, states: Sequence[SamplerState], argmax: Argmax = plain_argmax) -> list[Sampled]:
    """One token for each row of logits f32 [R, V] under the state of the same index. Changes neither.

    argmax: does what `Ops.argmax` does.
    Raises:
        SamplingError: some rows have no token to give (NaN or +inf logits, or -inf everywhere); its `rows` says which
            and why. The other rows can be sampled by a second call without these, with the result unchanged.
    """
    if logits.ndim != 2 or len(logits) != len(states):
        raise ValueError(f"logits of shape {logits.shape} for {len(states)} states; [R, V] and R states are needed")
    for state in states:
        if state.vocab_size != logits.shape[1]:
            raise ValueError(f"logits of width {logits.shape[1]} for a state with a vocabulary of {state.vocab_size}")
    tokens = _choose(logits, states, argmax)
    return [_report(row, state, token) for row, state, token in zip(logits, states, tokens, strict=True)]


def _choose(logits: F32, states: Sequence[SamplerState], argmax: Argmax) -> list[int]:
    if all(state.params.greedy and not state.has_processors for state in states):
        outcomes = _all_greedy(logits, states, argmax)
    else:
        outcomes = [_choose_one(row, state) for row, state in zip(logits, states, strict=True)]
    faults = {index: outcome for index, outcome in enumerate(outcomes) if isinstance(outcome, str)}
    if faults:
        raise SamplingError(faults)
    drawn = iter(draw_tokens([outcome for outcome in outcomes if isinstance(outcome, Draw)]))
    return [outcome if isinstance(outcome, int) else next(drawn) for outcome in outcomes]


def _all_greedy(logits: F32, states: Sequence[SamplerState], argmax: Argmax) -> list[int | Draw | str]:
    """One argmax over the block [R, V]."""
    best, values = argmax(logits)
    return [
        token if ok else _why(row, row, state)
        for token, ok, row, state in zip(best.tolist(), np.isfinite(values).tolist(), logits, states, strict=True)
    ]


def _choose_one(raw: F32, state: SamplerState) -> int | Draw | str:
    """The token of a greedy row, what is to be drawn from for a sampled one, or the reason why there is neither."""
    row = process(raw, state)
    params = state.params
    if row is not raw and not np.isfinite(raw.max()):
        return _why(raw, row, state)  # a mask could hide it
    if params.greedy:
        token = int(row.argmax())
        return token if np.isfinite(row[token]) else _why(raw, row, state)
    maxima = block_maxima(row)
    if not np.isfinite(maxima.max()):
        return _why(raw, row, state)
    return Draw(row, maxima, filter_row(row, maxima, params), params.temperature, state.seed, state.position)


def _why(raw: F32, row: F32, state: SamplerState) -> str:
    at = f" at generated token {state.position + 1}"
    if not np.isfinite(raw.max()):
        return fault(raw) + at
    if row.max() == np.inf:
        return f"repetition_penalty {state.params.repetition_penalty} takes logits past the range of float32{at}"
    forbidden = f"min_tokens {state.params.min_tokens} forbids to end the output"
    return f"no token is left{at}: {forbidden}, and the model allows nothing else"


def _report(row: F32, state: SamplerState, token: int) -> Sampled:
    if state.params.logprobs is None:
        return Sampled(token)
    own, top = row_logprobs(row, token, state.params.logprobs)
    return Sampled(token, own[1], own[2], top)
