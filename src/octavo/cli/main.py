"""The `octavo` command: its subcommands are imported when they are asked for, and every error is one line."""

from __future__ import annotations

import difflib
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import click

from octavo.core.env import check_environment, env
from octavo.core.errors import ConfigError, OctavoError

__all__ = ["cli", "main"]

INTERRUPTED = 130  # 128 + SIGINT, as shells count


@dataclass(frozen=True)
class Command:
    """A subcommand: where it lives, and its line in the help, which must not cost an import."""

    name: str
    target: str
    about: str


SECTIONS: dict[str, tuple[Command, ...]] = {
    "Talk to a model": (
        Command("run", "octavo.cli.run:run", "Answer one prompt, or chat."),
        Command("serve", "octavo.cli.serve:serve", "Serve models over HTTP."),
    ),
    "Models": (
        Command("pull", "octavo.cli.models:pull", "Download a model."),
        Command("list", "octavo.cli.models:list_models", "List the models on this machine."),
        Command("show", "octavo.cli.models:show", "Show what a model file holds."),
        Command("rm", "octavo.cli.models:remove", "Delete downloaded models."),
    ),
    "This machine": (
        Command("info", "octavo.cli.info:info", "Show cores, memory and the measured stream rate."),
        Command("bench", "octavo.cli.bench:bench", "Measure the engine or its kernels against the machine's limits."),
    ),
}

_COMMANDS = {command.name: command for section in SECTIONS.values() for command in section}


class LazyGroup(click.Group):
    """A group that imports a subcommand when it is run, and lists them by section."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name].target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(_COMMANDS)}"
            ctx.fail(f"no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(command.name, command.about) for command in commands])


def _version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        import importlib.metadata  # 10 ms that other commands need not spend

        try:
            version = importlib.metadata.version("octavo")
        except importlib.metadata.PackageNotFoundError:
            version = "(not installed: run from a source tree)"
        click.echo(f"octavo {version}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version.")
def cli() -> None:
    """Octavo runs large language models on an ordinary CPU.

    \b
    octavo run "Why is the sky blue?"     one answer from the default model
    octavo run                            a chat
    octavo COMMAND --help                 all options of a command
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0, 1 for an error, 2 for a wrong command line, 130 for Ctrl-C."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(_run(arguments or ["--help"]))


def _run(arguments: list[str]) -> int:
    try:
        _open_streams()
        check_environment()
        result = cli.main(args=arguments, prog_name="octavo", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Abort:
        return INTERRUPTED
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "octavo"
        return _report(error, f"{error.format_message().rstrip('.')} (see {path} --help)", error.exit_code)
    except click.ClickException as error:
        return _report(error, error.format_message(), error.exit_code)
    except OctavoError as error:
        return _report(error, str(error), 1)
    except BrokenPipeError:
        # Whoever read the output has gone, as `head` does: that is no error, but nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        what = f"{error.filename}: " if error.filename else "cannot read or write: "
        return _report(error, f"{what}{error.strerror or error}", 1)
    except Exception as error:  # whatever it is, a person at a command line gets one line first
        kind = type(error).__name__
        return _report(error, f"unexpected {kind} (OCTAVO_DEBUG=1 shows where): {error}", 1)


def _open_streams() -> None:
    """What an encoding lacks is written as an escape; a closed standard error swallows what it is given.

    Raises ConfigError if standard output is closed.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  it lives as long as the process
    if sys.stdout is None:
        raise ConfigError("standard output is closed, so an answer could not be shown; redirect it to a file instead")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _report(error: BaseException, message: str, code: int) -> int:
    """One line on standard error; the traceback too if OCTAVO_DEBUG is on."""
    if _debugging():
        traceback.print_exception(error)
    print("error:", " ".join(message.split()), file=sys.stderr)
    return code


def _debugging() -> bool:
    try:
        return env("OCTAVO_DEBUG")
    except OctavoError:
        return False
