"""Why a completion ended, in OpenAI's words."""

from __future__ import annotations

from typing import Literal

from octavo.core.outputs import CompletionOutput

__all__ = ["Ending", "ending"]

Ending = Literal["stop", "length"]


def ending(completion: CompletionOutput) -> Ending:
    """Of a finished completion; those that failed never get here."""
    reason = completion.finish_reason
    assert reason == "stop" or reason == "length", reason
    return reason
