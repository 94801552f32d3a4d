"""The chat of `octavo run`: a prompt with history and multi-line input, commands that start with a slash."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path

from octavo.cli import answer as answers
from octavo.cli.answer import ChatMessage, Engine
from octavo.cli.settings import Settings
from octavo.cli.terminal import say
from octavo.core.errors import OctavoError, RequestError

__all__ = ["Chat"]

PROMPT, MORE = ">>> ", "... "
FENCE = '"""'


class Chat:
    """A conversation at a terminal."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        settings: Settings,
        *,
        system: str | None = None,
        raw: bool = False,
        verbose: bool = False,
        read: Callable[[str], str] = input,
    ) -> None:
        """raw: each input is gone on with as it is, without template and history. read: shows a prompt, returns a line;
        EOFError ends the chat, KeyboardInterrupt drops the input."""
        self.engine, self.name, self.settings = engine, name, settings
        self.system, self.raw, self.verbose = system, raw, verbose
        self.messages: list[ChatMessage] = []
        self._read = read

    def loop(self) -> None:
        """Talk until /bye or Ctrl-D."""
        with contextlib.suppress(ImportError):
            import readline  # importing it gives input() editing and history

            readline.parse_and_bind("set enable-bracketed-paste on")  # pasted lines are one message, not one each
        kind = "plain continuation, " if self.raw else ""
        say(f"{self.name}: {kind}context of {self.engine.max_model_len} tokens; /help lists commands, Ctrl-D leaves")
        while True:
            try:
                text, fenced = self.read_input()
                if text.startswith("/") and not fenced:
                    if text.split()[0] in ("/bye", "/exit", "/quit"):
                        return
                    self.command(text)
                elif text.strip():
                    self.ask(text)
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
                say("Ctrl-D or /bye leaves the chat")
            except (OctavoError, OSError) as error:
                say(f"error: {error}")

    def read_input(self) -> tuple[str, bool]:
        """One input: a line; lines that end in a backslash and the one after; or a block between triple quotes, which
        is never a command and for which the second value is True."""
        line = self._read(PROMPT)
        if line.lstrip().startswith(FENCE):
            return self._read_block(line.lstrip()[len(FENCE) :]), True
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(self._read(MORE))
        return "\n".join(lines), False

    def _read_block(self, line: str) -> str:
        lines: list[str] = []
        while not line.rstrip().endswith(FENCE):
            lines.append(line)
            line = self._read(MORE)
        lines.append(line.rstrip()[: -len(FENCE)])
        return "\n".join(lines).strip("\n")

    def ask(self, text: str) -> None:
        """Answer a message; what was answered before Ctrl-C stays in the conversation, a message without answer not."""
        if self.raw:
            self._answer(text, len(self.engine.tokenizer.encode(text)))
            return
        turn: ChatMessage = {"role": "user", "content": text}
        tokens = self.engine.encode_chat([*self._opening(), *self.messages, turn])
        reply = self._answer(tokens, len(tokens))
        if reply:
            self.messages += [turn, {"role": "assistant", "content": reply}]

    def _answer(self, prompt: str | list[int], prompt_tokens: int) -> str:
        window = self.engine.max_model_len
        if prompt_tokens >= window:
            raise RequestError(
                f"the conversation has {prompt_tokens} tokens and the context holds {window}; /clear starts anew, "
                "--max-model-len makes it larger"
            )
        params = self.settings.params(prompt_tokens, window)
        answer = answers.write_answer(self.engine, prompt, params)
        say(answers.stat_line(answer, params, self.engine, verbose=self.verbose))
        print()
        return answer.text

    def _opening(self) -> list[ChatMessage]:
        return [{"role": "system", "content": self.system}] if self.system else []

    def command(self, line: str) -> None:
        """Carry out a line that starts with a slash. Raises RequestError for one that is not known."""
        name, _, rest = line.partition(" ")
        action = _COMMANDS.get(name)
        if action is None:
            raise RequestError(
                f"no command {name}; there are: {', '.join(_COMMANDS)}, /bye (a message that starts with a slash goes "
                f"between {FENCE})"
            )
        action(self, rest.strip())

    def help(self, rest: str) -> None:
        """/help                 this list"""
        for action in _COMMANDS.values():
            say(inspect.getdoc(action) or "")
        say("/bye                  leave, as Ctrl-D does")
        say(f"Ctrl-C stops an answer. Several lines: {FENCE} before and after, or a backslash at the end of a line.")

    def clear(self, rest: str) -> None:
        """/clear                forget the conversation"""
        self.messages.clear()
        say("the conversation is empty")

    def set_system(self, rest: str) -> None:
        """/system [TEXT]        set the system message, or without a text remove it"""
        if self.raw:
            raise RequestError("--raw uses no system message")
        self.system = rest or None
        say("system message set; it holds for the whole conversation" if rest else "no system message")

    def set_value(self, rest: str) -> None:
        """/set [NAME VALUE]     change a sampling setting, such as temperature 0.5, or show them all"""
        if rest:
            name, _, value = rest.partition(" ")
            self.settings.set(name, value.strip())
        say(str(self.settings))

    def retry(self, rest: str) -> None:
        """/retry                answer the last message again"""
        if not self.messages:
            raise RequestError("there is no answer to try again")
        if self.settings.temperature == 0 or self.settings.seed is not None:
            say("with temperature 0 or a fixed seed the answer is the same; /set temperature or /set seed changes that")
        before = self.messages
        self.messages = before[:-2]
        try:
            self.ask(before[-2]["content"])
        finally:
            if len(self.messages) < len(before):  # no new answer: the old one stays
                self.messages = before

    def save(self, rest: str) -> None:
        """/save FILE            write the conversation to a new file, as JSON messages"""
        if not rest:
            raise RequestError("/save needs a file name")
        messages = [*self._opening(), *self.messages]
        try:
            with Path(rest).expanduser().open("x", encoding="utf-8") as file:
                json.dump(messages, file, indent=1, ensure_ascii=False)
                file.write("\n")
        except OSError as error:
            raise RequestError(f"cannot save to {rest}: {error.strerror or error}") from None
        say(f"saved {len(messages)} messages to {rest}")


_COMMANDS: dict[str, Callable[[Chat, str], None]] = {
    "/help": Chat.help,
    "/clear": Chat.clear,
    "/system": Chat.set_system,
    "/set": Chat.set_value,
    "/retry": Chat.retry,
    "/save": Chat.save,
}
