"""One answer: written as it comes, stopped by Ctrl-C, followed by a line that says how fast it was."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from octavo.cli.terminal import clear_line, is_terminal, printable, styled
from octavo.core.env import env
from octavo.core.outputs import FinishReason, RequestOutput
from octavo.core.params import SamplingParams

__all__ = ["Answer", "ChatMessage", "Engine", "Interrupts", "load_engine", "stat_line", "write_answer"]

# Tokens of a prompt between two looks at Ctrl-C. Chunks of 2,000 would be no more than a few percent faster.
PROMPT_CHUNK = 128

ChatMessage = dict[str, str]
"""{"role": "system" | "user" | "assistant", "content": text}"""


class Engine(Protocol):
    """What the command line needs of `octavo.engine.llm.LLM`."""

    @property
    def max_model_len(self) -> int: ...

    @property
    def tokenizer(self) -> Any: ...

    @property
    def chat_template(self) -> Any: ...

    def encode_chat(self, messages: Sequence[ChatMessage], /) -> list[int]: ...

    def stream(
        self, prompt: str | list[int], params: SamplingParams, /, *, every_step: bool = False
    ) -> Generator[RequestOutput, None, None]: ...

    def decode_limit_tok_s(self, context_tokens: int, /) -> float | None: ...


@dataclass(frozen=True)
class Answer:
    """What came of one prompt.

    Attributes:
        text: the whole answer, or as much as there was before Ctrl-C.
        reason: why it ended; "abort" for Ctrl-C.
        prompt_tokens, cached_tokens, tokens: in the prompt, of these not computed again, and generated.
        first_token_s: from the request to the first token, or to the end if none came.
        decode_s: from the first to the last token.
    """

    text: str
    reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    first_token_s: float
    decode_s: float

    @property
    def tok_s(self) -> float | None:
        """Decode speed; None with fewer than two tokens."""
        return (self.tokens - 1) / self.decode_s if self.tokens > 1 and self.decode_s > 0 else None


class Interrupts:
    """Within this context the first Ctrl-C only sets `hit`, so that no step of the engine is torn; a second one ends
    the program."""

    def __init__(self) -> None:
        self.hit = False

    def __enter__(self) -> Interrupts:
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.hit:
            raise SystemExit(128 + number)
        self.hit = True


def load_engine(path: Path, label: str, options: Mapping[str, Any], *, verbose: bool, chat: bool = False) -> Engine:
    """The engine on a model file; while it loads, a terminal shows a line that goes away again.

    chat: a chat template will be needed; what runs it is imported while the weights are read.
    """
    shown = styled(sys.stderr) and not verbose
    if shown:
        print(f"\033[2mloading {label} ...\033[0m", end="", file=sys.stderr, flush=True)
    try:
        if env("OCTAVO_BACKEND") == "native":
            # NumPy's BLAS, which the native backend does not use, starts threads that spin for 50 ms of a core.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        from octavo.engine.llm import LLM  # slow to import: after the remark

        if chat:
            threading.Thread(target=import_module, args=("octavo.formats.chat_program",), daemon=True).start()
        log = (lambda line: print(line, file=sys.stderr, flush=True)) if verbose else None
        return LLM(path, log=log, max_num_seqs=1, max_num_batched_tokens=PROMPT_CHUNK, **options)
    finally:
        if shown:
            print(clear_line(), end="", file=sys.stderr, flush=True)


def write_answer(engine: Engine, prompt: str | list[int], params: SamplingParams) -> Answer:
    """Stream the answer to standard output; Ctrl-C ends it early. Raises RequestError."""
    clean = printable if is_terminal(sys.stdout) else str
    start = time.perf_counter()
    first = last = None
    seen, shown = 0, ""
    output: RequestOutput | None = None
    stream = engine.stream(prompt, params, every_step=True)
    with Interrupts() as interrupts, contextlib.closing(stream):  # closing it ends the request
        for output in stream:
            completion = output.outputs[0]
            if len(completion.token_ids) > seen:
                seen, last = len(completion.token_ids), time.perf_counter()
                first = first or last
            sys.stdout.write(clean(completion.text[len(shown) :]))
            sys.stdout.flush()
            shown = completion.text
            if interrupts.hit:
                break
    sys.stdout.write("" if shown.endswith("\n") else "\n")
    sys.stdout.flush()
    return _answer(output, start, first or time.perf_counter(), last)


def _answer(output: RequestOutput | None, start: float, first: float, last: float | None) -> Answer:
    completion = output.outputs[0] if output else None
    tokens = len(completion.token_ids) if completion else 0
    return Answer(
        text=completion.text if completion else "",
        reason=(completion.finish_reason if completion else None) or "abort",
        prompt_tokens=len(output.prompt_token_ids) if output else 0,
        cached_tokens=output.metrics.cached_prompt_tokens if output else 0,
        tokens=tokens,
        first_token_s=first - start,
        decode_s=(last or first) - first,
    )


def _limit_share(answer: Answer, engine: Engine) -> float | None:
    """Decode speed over that of memory streaming at its measured rate; the first call measures for a quarter second."""
    if answer.tok_s is None:
        return None
    limit = engine.decode_limit_tok_s(answer.prompt_tokens + answer.tokens // 2)
    return answer.tok_s / limit if limit else None


def stat_line(answer: Answer, params: SamplingParams, engine: Engine, *, verbose: bool = False) -> str:
    """How fast it was, and why it ended if it did not end by itself; verbose: the prompt's counts and the seed too."""
    parts = [f"first token {_seconds(answer.first_token_s)}"] if answer.tokens else []
    if answer.tok_s is not None:
        parts.append(f"{answer.tok_s:.1f} tok/s")
        share = _limit_share(answer, engine)
        if share is not None:
            parts.append(f"{share:.0%} of the memory limit")
    parts.append(f"{answer.tokens} token" + ("" if answer.tokens == 1 else "s"))
    if answer.reason == "length":
        full = params.max_tokens is None or answer.tokens < params.max_tokens
        parts.append("stopped: the context is full" if full else f"stopped at --max-tokens {params.max_tokens}")
    elif answer.reason == "abort":
        parts.append("stopped by Ctrl-C")
    if verbose:
        cached = f", {answer.cached_tokens} cached" if answer.cached_tokens else ""
        parts.append(f"prompt {answer.prompt_tokens} tokens{cached}")
        parts.append("greedy" if params.greedy else f"seed {params.seed}")
    return " · ".join(parts)


def _seconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.2f} s"
