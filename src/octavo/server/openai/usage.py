"""Counts of tokens."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.core.outputs import RequestOutput
from octavo.server.openai.fields import PromptDetails, Usage

__all__ = ["Tally", "usage_of"]


class Tally:
    """The counts of a stream so far. Prompts count once, whatever n is. counts_output: False: no token is shown."""

    def __init__(self, *, counts_output: bool = True) -> None:
        self._counts_output = counts_output
        self.prompt = self.cached = self.output = 0
        self._prompts: dict[int, tuple[int, int]] = {}

    def add(self, index: int, output: RequestOutput) -> None:
        """One more state of a prompt, with what is new in it."""
        self._prompts[index] = len(output.prompt_token_ids), output.metrics.cached_prompt_tokens
        self.prompt = sum(prompt for prompt, _ in self._prompts.values())
        self.cached = sum(cached for _, cached in self._prompts.values())
        if self._counts_output:
            self.output += sum(len(each.token_ids) for each in output.outputs)

    def usage(self) -> Usage:
        return Usage(self.prompt, self.output, self.prompt + self.output, PromptDetails(self.cached))


def usage_of(outputs: Iterable[RequestOutput], *, counts_output: bool = True) -> Usage:
    """The counts of whole results."""
    tally = Tally(counts_output=counts_output)
    for index, output in enumerate(outputs):
        tally.add(index, output)
    return tally.usage()
