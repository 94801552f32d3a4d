"""`octavo run`: one answer to a prompt, or a chat."""

from __future__ import annotations

import os
import re
import select
import stat
import sys
from pathlib import Path
from typing import Any

import click

from octavo.cli import answer as answers
from octavo.cli.answer import Answer, ChatMessage, Engine
from octavo.cli.settings import DEFAULT_MAX_TOKENS, DEFAULT_MIN_P, DEFAULT_TEMPERATURE, Settings
from octavo.cli.terminal import is_terminal, say
from octavo.core.errors import ConfigError, RequestError
from octavo.formats.catalog import DEFAULT_MODEL
from octavo.formats.references import is_reference, resolve

__all__ = ["run", "split_positionals"]

STDIN_PATIENCE_S = 3.0


@click.command()
@click.argument("model", required=False)
@click.argument("prompt", required=False)
@click.option("--max-tokens", type=int, help=f"Most tokens of an answer.  [default: {DEFAULT_MAX_TOKENS}]")
@click.option(
    "--temperature",
    type=float,
    default=DEFAULT_TEMPERATURE,
    show_default=True,
    help="0: always the likeliest token, the same answer each time; higher: more variety.",
)
@click.option("--top-p", type=float, default=1.0, help="Sample from the likeliest tokens of this total probability.")
@click.option("--top-k", type=int, default=0, help="Sample from this many likeliest tokens; 0: all.")
@click.option(
    "--min-p",
    type=float,
    default=DEFAULT_MIN_P,
    show_default=True,
    help="Leave out tokens less likely than this share of the likeliest.",
)
@click.option("--seed", type=int, help="The same seed gives the same answer.  [default: a new one each time]")
@click.option("--system", help="A system message, put before the conversation.")
@click.option("--raw", is_flag=True, help="Go on with the text as it is, without the model's chat template.")
@click.option("--threads", type=int, help="Compute threads.  [default: the physical cores that may be used]")
@click.option("--max-model-len", type=int, help="Tokens of the context window.  [default: the model's, if it fits]")
@click.option("--kv-cache-dtype", default="auto", help="How the KV cache is stored: auto, float16, bfloat16, float32.")
@click.option("-v", "--verbose", is_flag=True, help="Show how the engine was set up, the prompt's tokens and the seed.")
def run(model: str | None, prompt: str | None, system: str | None, raw: bool, verbose: bool, **options: Any) -> None:
    """Answer PROMPT with MODEL, or chat if there is no prompt.

    MODEL is a short name, a .gguf file or org/repo[:file-or-quant]; without one, the default model answers. Text on
    standard input is the prompt, or is added to it. The answer goes to standard output, all else to standard error.

    \b
    octavo run "Why is the sky blue?"
    octavo run ./model.gguf --temperature 0 "Why is the sky blue?"
    octavo run "Summarize this:" < notes.txt
    octavo run                                  a chat; Ctrl-D leaves it
    """
    if raw and system is not None:
        raise click.UsageError("--system has no place in a --raw prompt; leave out one of them")
    reference, prompt = split_positionals(model, prompt)
    prompt = _with_stdin(prompt, reference)
    engine_options = {name: options.pop(name) for name in ("threads", "max_model_len", "kv_cache_dtype")}
    settings = Settings(**options)
    settings.params(0, DEFAULT_MAX_TOKENS)  # a value out of range is reported before a model is loaded
    engine = answers.load_engine(_path(reference), reference, engine_options, verbose=verbose, chat=not raw)
    if not raw and not engine.chat_template.available:
        raise ConfigError(f"{reference} has no chat template, so it is no chat model; --raw goes on with plain text")
    if prompt is None:
        from octavo.cli.chat import Chat

        Chat(engine, reference, settings, system=system, raw=raw, verbose=verbose).loop()
        return
    answer = answer_once(engine, prompt, settings, system=system, raw=raw, verbose=verbose)
    if answer.reason == "abort":
        raise KeyboardInterrupt


def split_positionals(model: str | None, prompt: str | None) -> tuple[str, str | None]:
    """Which model, and which prompt. A single positional that names no model is the prompt for the default one; if it
    looks like the name of a model (llama3), a remark says so."""
    if model is None:
        return DEFAULT_MODEL, None
    if prompt is not None or is_reference(model):
        return model, prompt
    if re.fullmatch(r"[A-Za-z][\w.:-]*\d[\w.:-]*", model):
        say(f"{model!r} names no model, so it is the prompt for {DEFAULT_MODEL}")
    return DEFAULT_MODEL, model


def answer_once(
    engine: Engine, prompt: str, settings: Settings, *, system: str | None, raw: bool, verbose: bool
) -> Answer:
    """Write one answer, and on a terminal the line of figures."""
    messages: list[ChatMessage] = [{"role": "system", "content": system}] if system is not None else []
    tokens = None if raw else engine.encode_chat([*messages, {"role": "user", "content": prompt}])
    count = len(engine.tokenizer.encode(prompt) if tokens is None else tokens)
    params = settings.params(count, engine.max_model_len)
    answer = answers.write_answer(engine, prompt if tokens is None else tokens, params)
    if verbose or is_terminal(sys.stderr):
        say(answers.stat_line(answer, params, engine, verbose=verbose))
    return answer


def _path(reference: str) -> Path:
    """The model's file; the progress bar, a slow import, is made only if something has to be downloaded."""
    return resolve(reference, progress=_LateProgress())


class _LateProgress:
    """A DownloadProgress that comes into being when it is first told something."""

    def __init__(self) -> None:
        self._made: Any = None

    def __getattr__(self, name: str) -> Any:
        if self._made is None:
            from octavo.cli.progress import DownloadProgress

            self._made = DownloadProgress()
        return getattr(self._made, name)


def _with_stdin(prompt: str | None, model: str) -> str | None:
    """The prompt with what standard input brings; None if there is neither."""
    text = ""
    if sys.stdin is not None:  # it is where it was closed
        if not is_terminal(sys.stdin):
            text = _read_stdin(wanted=prompt is None)
        elif prompt is None:
            return None
    parts = [part for part in (prompt, text) if part]
    if not parts:
        raise RequestError(f"the prompt for {model} is empty; give one as an argument or on standard input")
    return "\n\n".join(parts)


def _read_stdin(*, wanted: bool) -> str:
    try:
        descriptor = sys.stdin.fileno()
        if not wanted and _is_silent_pipe(descriptor):
            say("waiting for the end of standard input, which is added to the prompt (< /dev/null if there is none)")
        data = sys.stdin.buffer.read()
    except (OSError, ValueError, AttributeError):
        return sys.stdin.read().rstrip("\n")
    try:
        return data.decode("utf-8").rstrip("\n")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"standard input is not UTF-8 text (byte {error.start} is {data[error.start]:#04x})"
        ) from error


def _is_silent_pipe(descriptor: int) -> bool:
    """Whether a pipe has brought nothing for a while, as one that nobody will ever write to."""
    kind = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        return False
    return not select.select([descriptor], [], [], STDIN_PATIENCE_S)[0]
