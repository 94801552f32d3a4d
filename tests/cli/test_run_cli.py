"""`octavo run` and its chat, with an engine that says what the test wants."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import answer as answers
from octavo.cli import main as cli_main
from octavo.cli.answer import Answer, ChatMessage, Interrupts, stat_line
from octavo.cli.chat import Chat
from octavo.cli.run import split_positionals
from octavo.cli.settings import DEFAULT_MAX_TOKENS, Settings
from octavo.core.errors import InvalidParameterError, RequestError
from octavo.core.outputs import CompletionOutput, RequestMetrics, RequestOutput
from octavo.core.params import SamplingParams


class Tokens:
    @staticmethod
    def encode(text: str) -> list[int]:
        return [ord(character) for character in text]


class Template:
    available = True


class FakeEngine:
    """Answers with the words given, one per step; a token is a character of the rendered prompt."""

    def __init__(self, words: Sequence[str] = ("Good ", "day\n", "to you"), window: int = 500) -> None:
        self.words, self.max_model_len = list(words), window
        self.tokenizer, self.chat_template = Tokens(), Template()
        self.prompts: list[str] = []
        self.params: list[SamplingParams] = []
        self.closed = 0
        self.on_step: Callable[[int], None] = lambda step: None
        self.error: str | None = None

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        return Tokens.encode("".join(f"<{each['role']}>{each['content']}" for each in messages))

    def stream(
        self, prompt: str | list[int], params: SamplingParams, *, every_step: bool = False
    ) -> Generator[RequestOutput, None, None]:
        prompt = Tokens.encode(prompt) if isinstance(prompt, str) else prompt
        self.prompts.append("".join(map(chr, prompt)))
        self.params.append(params)
        assert params.max_tokens is not None
        completion = CompletionOutput(0, "", [])
        output = RequestOutput("0", None, prompt, [completion], False, RequestMetrics(0.0))
        try:
            for step, word in enumerate(self.words[: params.max_tokens]):
                self.on_step(step)
                completion.text += word
                completion.token_ids.append(step)
                if step + 1 == min(len(self.words), params.max_tokens):
                    output.finished = True
                    completion.finish_reason = "length" if step + 1 == params.max_tokens else "stop"
                if self.error and step:
                    raise RequestError(self.error)
                yield output
        finally:
            self.closed += 1

    def decode_limit_tok_s(self, context_tokens: int) -> float | None:
        return 200.0


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeEngine:
    fake = FakeEngine()
    fake.loaded = []  # type: ignore[attr-defined]

    def load(path: Path, label: str, options: dict[str, Any], *, verbose: bool, chat: bool) -> FakeEngine:
        fake.loaded.append((path, label, options))  # type: ignore[attr-defined]
        return fake

    monkeypatch.setattr(answers, "load_engine", load)
    monkeypatch.setenv("OCTAVO_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr("octavo.cli.run.resolve", lambda reference, progress: Path(f"/models/{reference}"))
    return fake


Run = Callable[..., int]


@pytest.fixture
def run(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Run:
    def go(*arguments: str, stdin: str | None = "") -> int:
        stream = io.StringIO(stdin or "")
        monkeypatch.setattr(stream, "isatty", lambda: stdin is None)
        monkeypatch.setattr(sys, "stdin", stream)
        with pytest.raises(SystemExit) as caught:
            cli_main.main(["run", *arguments])
        return caught.value.code if isinstance(caught.value.code, int) else 1

    return go


# --- which model, which prompt


def test_positionals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OCTAVO_MODELS", str(tmp_path))
    assert split_positionals(None, None) == ("smollm2", None)
    assert split_positionals("smollm2", None) == ("smollm2", None)
    assert split_positionals("org/repo:Q4_0", None) == ("org/repo:Q4_0", None)
    assert split_positionals("missing.gguf", None) == ("missing.gguf", None)
    assert split_positionals("Why is the sky blue?", None) == ("smollm2", "Why is the sky blue?")
    assert split_positionals("smolm2", "hi") == ("smolm2", "hi")
    assert split_positionals("Hello", None) == ("smollm2", "Hello")
    assert capsys.readouterr().err == ""
    assert split_positionals("smolm2", None) == ("smollm2", "smolm2")
    assert "'smolm2' names no model, so it is the prompt for smollm2" in capsys.readouterr().err


# --- one answer


def test_one_answer(run: Run, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("Hello there", stdin=None) == 0
    out, err = capsys.readouterr()
    assert out == "Good day\nto you\n"
    assert err == "", "no figures unless standard error is a terminal"
    assert engine.prompts == ["<user>Hello there"]
    assert engine.closed == 1
    assert engine.loaded == [  # type: ignore[attr-defined]
        (Path("/models/smollm2"), "smollm2", {"threads": None, "max_model_len": None, "kv_cache_dtype": "auto"})
    ]


def test_options_reach_engine_and_sampler(run: Run, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(
        "org/repo", "Hi", "--max-tokens", "2", "--temperature", "0", "--top-p", "0.5", "--top-k", "7", "--min-p", "0.1",
        "--seed", "9", "--system", "Be brief", "--threads", "2", "--max-model-len", "300", "--kv-cache-dtype",
        "float32", "--verbose", stdin=None,
    )  # fmt: skip
    assert code == 0
    expected = SamplingParams(max_tokens=2, temperature=0.0, top_p=0.5, top_k=7, min_p=0.1, seed=9)
    assert engine.params == [expected]
    assert engine.prompts == ["<system>Be brief<user>Hi"]
    options = {"threads": 2, "max_model_len": 300, "kv_cache_dtype": "float32"}
    assert engine.loaded == [(Path("/models/org/repo"), "org/repo", options)]  # type: ignore[attr-defined]
    out, err = capsys.readouterr()
    assert out == "Good day\n"
    assert "stopped at --max-tokens 2" in err
    assert "of the memory limit" in err


def test_defaults(run: Run, engine: FakeEngine) -> None:
    run("a b", stdin=None)
    run("a b", stdin=None)
    first, second = engine.params
    assert (first.temperature, first.min_p, first.max_tokens) == (0.7, 0.05, 500 - len("<user>a b"))
    assert first.seed != second.seed, "each answer draws its own seed"
    assert Settings().params(10, 8192).max_tokens == DEFAULT_MAX_TOKENS


def test_standard_input_is_the_prompt_or_is_added(run: Run, engine: FakeEngine) -> None:
    assert run(stdin="hi\n") == 0
    assert run("smollm2", stdin="hi\n") == 0
    assert run("Summarize:", stdin="a text\nof lines\n") == 0
    assert run("nothing more", stdin="") == 0
    assert engine.prompts == ["<user>hi", "<user>hi", "<user>Summarize:\n\na text\nof lines", "<user>nothing more"]


def test_raw_uses_no_template(run: Run, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("Once upon a time", "--raw", stdin=None) == 0
    assert engine.prompts == ["Once upon a time"]
    assert run("x y", "--raw", "--system", "s", stdin=None) == 2
    assert "--system has no place" in capsys.readouterr().err
    engine.chat_template.available = False
    assert run("x y", stdin=None) == 1
    assert "smollm2 has no chat template" in capsys.readouterr().err
    assert run("x y", "--raw", stdin=None) == 0


def test_errors_come_before_the_model_is_loaded(
    run: Run, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(stdin="") == 1
    assert "the prompt for smollm2 is empty" in capsys.readouterr().err
    assert run("a b", "--temperature", "-1", stdin=None) == 1
    assert "error: temperature must be a number in [0.0, 100.0], not -1.0" in capsys.readouterr().err
    assert engine.loaded == []  # type: ignore[attr-defined]


def test_a_request_that_fails_is_an_error(run: Run, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.error = "the pages ran out"
    assert run("a b", stdin=None) == 1
    assert "error: the pages ran out" in capsys.readouterr().err


@pytest.fixture
def heeded() -> Iterator[None]:
    """Ctrl-C as programs of a terminal have it; what a shell runs in the background may have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded")
def test_ctrl_c_stops_the_answer(run: Run, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.on_step = lambda step: os.kill(os.getpid(), signal.SIGINT) if step == 1 else None
    assert run("a b", stdin=None) == 130
    assert capsys.readouterr().out == "Good day\n", "the step under way is finished, the next not begun"
    assert engine.closed == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("heeded")
def test_a_second_ctrl_c_ends_the_program() -> None:
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.hit
        with pytest.raises(SystemExit) as caught:
            os.kill(os.getpid(), signal.SIGINT)
    assert caught.value.code == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_binary_standard_input_is_refused() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "octavo", "run", "Summarize:"], input=b"ab\xff\xfe", capture_output=True
    )
    assert result.returncode == 1
    assert result.stderr.decode() == "error: standard input is not UTF-8 text (byte 2 is 0xff)\n"


def test_stat_line() -> None:
    engine, params = FakeEngine(), SamplingParams(seed=5, max_tokens=20)
    answer = Answer("x", "stop", 10, 4, 11, 0.25, 0.1)
    assert stat_line(answer, params, engine) == "first token 250 ms · 100.0 tok/s · 50% of the memory limit · 11 tokens"
    assert stat_line(answer, params, engine, verbose=True).endswith("prompt 10 tokens, 4 cached · seed 5")
    one = Answer("x", "length", 10, 0, 1, 1.5, 0.0)
    assert stat_line(one, params, engine) == "first token 1.50 s · 1 token · stopped: the context is full"
    stopped = Answer("", "abort", 1, 0, 0, 1.5, 0.0)
    assert stat_line(stopped, params, engine) == "0 tokens · stopped by Ctrl-C"


def test_a_real_engine_answers(tiny_gguf: Callable[..., Path]) -> None:
    """The whole way in a process of its own: a tiny random model on the reference backend."""
    command = [sys.executable, "-m", "octavo", "run", str(tiny_gguf("llama")), "-v", "--max-model-len", "128"]
    environment = dict(os.environ) | {"OCTAVO_BACKEND": "reference"}
    runs = [
        subprocess.run(
            [*command, "--max-tokens", "5", "--seed", "3", *extra],
            input="hi",
            capture_output=True,
            text=True,
            env=environment,
        )
        for extra in (
            [],
            [],
            ["--raw"],
            ["--raw", "--max-tokens", "500", "--max-model-len", "32"],
            ["--kv-cache-dtype", "int3"],
        )
    ]
    assert [each.returncode for each in runs] == [0, 0, 0, 0, 1], runs[0].stderr
    assert runs[0].stdout == runs[1].stdout, "the same seed gives the same answer"
    assert "context: 128 tokens" in runs[0].stderr
    assert "5 tokens · stopped at --max-tokens 5 · prompt" in runs[0].stderr
    assert "seed 3" in runs[2].stderr
    assert "stopped: the context is full" in runs[3].stderr
    assert runs[4].stderr.splitlines()[-1].startswith("error: kv_cache_dtype 'int3'")


# --- settings


def test_settings() -> None:
    settings = Settings()
    settings.set("temperature", "0")
    settings.set("top-k", "5")
    settings.set("seed", "7")
    settings.set("max_tokens", "9")
    assert settings.params(1, 100) == SamplingParams(temperature=0.0, top_k=5, min_p=0.05, seed=7, max_tokens=9)
    assert str(settings) == "temperature 0, top_p 1, top_k 5, min_p 0.05, seed 7, max_tokens 9"
    settings.set("seed", "none")
    assert "seed drawn for each answer" in str(settings)
    for name, value, words in (
        ("heat", "1", "there is no setting 'heat'; there are: temperature"),
        ("top_k", "1.5", "top_k must be a whole number"),
        ("top_p", "2", "top_p must be a number in"),
    ):
        with pytest.raises(InvalidParameterError, match=words):
            settings.set(name, value)
    assert settings.top_p == 1.0


# --- the chat


def chat(engine: FakeEngine, *lines: str | type[BaseException], **options: Any) -> Chat:
    """Hold a chat of these lines; an exception class is raised at the prompt."""
    waiting = iter([*lines, EOFError])

    def read(prompt: str) -> str:
        line = next(waiting)
        if isinstance(line, str):
            return line
        raise line

    talk = Chat(engine, "fake", options.pop("settings", Settings()), read=read, **options)  # type: ignore[arg-type]
    talk.loop()
    return talk


def test_a_chat_has_history(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.words = ["ok"]
    talk = chat(engine, "one", "", "  ", "two", system="S")
    assert engine.prompts == ["<system>S<user>one", "<system>S<user>one<assistant>ok<user>two"]
    assert len(talk.messages) == 4
    out, err = capsys.readouterr()
    assert out.splitlines() == ["ok", "", "ok", "", ""]
    assert "fake: context of 500 tokens; /help" in err
    assert "first token" in err


def test_several_lines(engine: FakeEngine) -> None:
    chat(engine, "first \\", "second\\", "third", '"""one', "/two", 'three"""', '"""whole"""', '"""', "", "x", '"""')
    texts = [prompt.rsplit("<user>", 1)[1] for prompt in engine.prompts]
    assert texts == ["first \nsecond\nthird", "one\n/two\nthree", "whole", "x"]


def test_a_block_is_no_command(engine: FakeEngine) -> None:
    chat(engine, '"""/clear"""')
    assert engine.prompts == ["<user>/clear"]


def test_commands(engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine.words = ["ok"]
    file = tmp_path / "talk.json"
    talk = chat(
        engine, "/system Be nice", "one", "/set temperature 0", "/set", f"/save {file}", f"/save {file}", "/clear",
        "/system", "two", "/nonsense", "/set heat 3", "/save", "/help", "/bye", "never",
    )  # fmt: skip
    assert engine.prompts == ["<system>Be nice<user>one", "<user>two"]
    assert engine.params[1].temperature == 0
    assert [each["role"] for each in json.loads(file.read_text())] == ["system", "user", "assistant"]
    assert len(talk.messages) == 2
    err = capsys.readouterr().err
    for words in (
        "temperature 0, top_p 1",
        "saved 3 messages",
        f"cannot save to {file}: File exists",
        "no command /nonsense; there are: /help, /clear",
        "there is no setting 'heat'",
        "/save needs a file name",
        "/retry                answer the last message again",
    ):
        assert words in err


def test_retry(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.words = ["ok"]
    talk = chat(engine, "/retry", "one", "/retry", settings=Settings(temperature=0.0))
    assert engine.prompts == ["<user>one", "<user>one"]
    assert len(talk.messages) == 2
    err = capsys.readouterr().err
    assert "there is no answer to try again" in err
    assert "the answer is the same" in err


def test_ctrl_c_stops_the_answer_and_not_the_chat(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.on_step = lambda step: os.kill(os.getpid(), signal.SIGINT) if len(engine.prompts) == 1 else None
    talk = chat(engine, "one", KeyboardInterrupt, "two")
    assert talk.messages[1] == {"role": "assistant", "content": "Good "}
    assert engine.prompts[1] == "<user>one<assistant>Good <user>two"
    err = capsys.readouterr().err
    assert "stopped by Ctrl-C" in err
    assert "Ctrl-D or /bye leaves" in err


def test_a_message_without_an_answer_is_not_kept(engine: FakeEngine) -> None:
    talk = chat(engine, "one")
    engine.words = [""]  # as when Ctrl-C comes before the first word
    kept = list(talk.messages)
    talk.ask("two")
    assert talk.messages == kept
    talk.retry("")
    assert engine.prompts[2] == "<user>one"
    assert talk.messages == kept


def test_a_full_context_is_an_error_and_the_chat_goes_on(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.max_model_len = 30
    engine.words = ["ok"]
    talk = chat(engine, "x" * 50, "/clear", "short")
    assert engine.prompts == ["<user>short"]
    assert len(talk.messages) == 2
    assert "the context holds 30; /clear starts anew" in capsys.readouterr().err


def test_a_raw_chat_has_no_history(engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    chat(engine, "one", "two", "/system x", raw=True)
    assert engine.prompts == ["one", "two"]
    assert "--raw uses no system message" in capsys.readouterr().err
