"""How the prompts under way share the prompt tokens of a step.

Half goes by rank (the order of arrival within a priority), half to those with the fewest tokens left. A long prompt so
cannot hold up the short ones that come after it, and they cannot hold it up: each half is always somebody's. Among
prompts of the same length both halves name the same one, and it is plain first come, first served.
"""

from __future__ import annotations

from octavo.engine.sequence import Sequence

__all__ = ["may_join", "share"]


def share(budget: int, prompts: list[Sequence]) -> dict[Sequence, int]:
    """Tokens for each prompt, `budget` in all or all that remain. prompts: by rank. Who gets none is left out."""
    grants: dict[Sequence, int] = {}
    left = budget - _hand_out(budget - budget // 2, prompts, grants)
    left -= _hand_out(left, sorted(prompts, key=lambda s: s.remaining), grants)
    _hand_out(left, prompts, grants)
    return {sequence: grants[sequence] for sequence in prompts if sequence in grants}


def may_join(budget: int, tokens: int, prompts: list[Sequence]) -> bool:
    """Whether one more prompt of so many tokens would get some of a step's `budget`, so that it should get its pages.

    There are tokens left over; or among the shorter half's there are, because those before it are longer.
    """
    if sum(s.remaining for s in prompts) < budget:
        return True
    return sum(s.remaining for s in prompts if s.remaining <= tokens) < budget // 2


def _hand_out(budget: int, prompts: list[Sequence], grants: dict[Sequence, int]) -> int:
    """Give each in turn what it still needs; returns how much was given."""
    left = budget
    for sequence in prompts:
        if left <= 0:
            break
        had = grants.get(sequence, 0)
        more = min(left, sequence.remaining - had)
        if more > 0:
            grants[sequence] = had + more
            left -= more
    return budget - left
