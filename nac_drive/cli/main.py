"""Read the command line and run one command."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.text import Text
from tyro.conf import Positional

import nac_drive
from nac_drive.cli.challenge import Challenge
from nac_drive.cli.checking import CheckEnvironment
from nac_drive.cli.completion import with_names
from nac_drive.cli.datasets import Dataset, DatasetRebuild
from nac_drive.cli.driving import Collect, Evaluate, Inspect, Stress, Watch
from nac_drive.cli.exporting import Export
from nac_drive.cli.live import Arena, ServeUdacity
from nac_drive.cli.output import Output
from nac_drive.cli.plugins import CheckCore
from nac_drive.cli.reproduction import Reproduce
from nac_drive.cli.settings import TrainingCommand
from nac_drive.cli.training import Compare, Dagger, Demo, Ppo, Repeat, Train
from nac_drive.memory import NO_MEMORY, out_of_memory
from nac_drive.parallel.signals import Terminated, signals_raised
from nac_drive.plugins import load_plugin
from nac_drive.storage.names import shown
from nac_drive.storage.write import WriteError
from nac_drive.suggest import did_you_mean
from nac_drive.training.main_process import is_first_here, is_main_process


@dataclass(frozen=True)
class Completion:
    """Print a script that completes commands, options and names of drivers, cores, tracks and perturbations."""

    shell: Positional[Literal["bash"]] = "bash"
    """The shell, see docs/cli.md."""

    def run(self, console: Console) -> None:
        """Print the script to stdout."""
        print(with_names(completion_script(self.shell)))


COMMANDS: dict[str, Any] = {
    "demo": Demo,
    "watch": Watch,
    "collect": Collect,
    "train": Train,
    "evaluate": Evaluate,
    "inspect": Inspect,
    "arena": Arena,
    "stress": Stress,
    "compare": Compare,
    "challenge": Challenge,
    "reproduce": Reproduce,
    "dagger": Dagger,
    "dataset": Dataset,
    "ppo": Ppo,
    "repeat": Repeat,
    "serve-udacity": ServeUdacity,
    "export": Export,
    "check-core": CheckCore,
    "check-environment": CheckEnvironment,
    "completion": Completion,
}
"""Name of a command -> dataclass of its options, with a `run`."""

_DESCRIPTION = (
    "Collect demonstrations of CarRacing, train cloned drivers (NAC, LSTM, CfC and others), and measure how they "
    "drive. Start with `nac-drive demo`, or `nac-drive watch --driver champion --video episode.mp4`. An error is one "
    "line; with NAC_DRIVE_TRACEBACK=1 in the environment it comes with its traceback. "
    "Every command takes --plugin FILE.py or --plugin MODULE: it is imported first, and adds cores, environments, "
    "drivers and more."
)
_RESUMABLE = (Collect, DatasetRebuild, Evaluate, Stress, Train, Dagger, Ppo, Repeat, Compare, Reproduce, Challenge)
"""Commands that go on with --resume."""
_FLAT = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
_WIDTH_OF_LOGS = 160
"""Columns of tables where there is no terminal."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Output that cannot be written is dropped, and the work goes on. A reader that closes its pipe, such as `head`, is no
    error; any other failure of stdout is reported in one line at the end.

    Args:
        arguments: The words of the command line; by default this process's.

    Returns:
        The exit status: 0; 1 after one line that a training diverged; 2 after one line that names what was wrong and
        the fix; 130 after Ctrl-C, 143 after SIGTERM and 129 after SIGHUP, with one line that says how to go on.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    out, errors = Output(sys.stdout), Output(sys.stderr)
    with (
        contextlib.redirect_stdout(out),  # type: ignore[type-var]
        contextlib.redirect_stderr(errors),  # type: ignore[type-var]
        warnings.catch_warnings(),
    ):
        warnings.showwarning = _show_warning
        try:
            status = _run(list(sys.argv[1:] if arguments is None else arguments))
        except SystemExit as end:  # tyro's help, and its own refusals
            status = int(end.code or 0)
        out.flush()
        if status == 0 and out.error and not isinstance(out.error, BrokenPipeError):
            status = _report(f"stdout cannot be written: {out.error.strerror}; the work is done, its output is lost.")
        errors.flush()
    return status


def _run(arguments: list[str]) -> int:
    command = None
    try:
        with signals_raised():
            sources, arguments = plugins_and_words(arguments)
            for source in sources:
                load_plugin(source)
            if arguments == ["--version"]:
                print(f"nac-drive {nac_drive.__version__}")
                return 0
            if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
                hint = did_you_mean(arguments[0], COMMANDS)
                return _report(f"there is no command {arguments[0]!r}.{hint} `nac-drive --help` lists them.")
            command = _parse(arguments)
            command.run(main_console())
    except KeyboardInterrupt:
        return _report_end(f"stopped{_to_go_on(command)}", 130)
    except Terminated as end:
        return _report_end(f"{end.word}{_to_go_on(command)}", end.exit_status)
    except Exception as error:
        no_memory = out_of_memory(error)
        if os.environ.get("NAC_DRIVE_TRACEBACK") or not (no_memory or isinstance(error, ValueError | OSError)):
            raise
        message = NO_MEMORY if no_memory else _message_of(error)
        if isinstance(error, WriteError):
            message = f"{message.removesuffix('.')}{_to_go_on(command)}."
        return _report(message, getattr(error, "exit_status", 2))
    return 0


def plugins_and_words(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the plug-ins of `--plugin`, and the other words.

    The module of `--environment MODULE:ID` is one, too.

    Raises:
        ValueError: `--plugin` is the last word.
    """
    words = iter(arguments)
    sources: list[str] = []
    others: list[str] = []
    for word in words:
        if word == "--plugin" or word.startswith("--plugin="):
            source = word.partition("=")[2] or next(words, "")
            if not source:
                raise ValueError("--plugin: needs a Python file or a module, got nothing; such as --plugin mine.py.")
            sources.append(source)
        else:
            others.append(word)
    for place, word in enumerate(others):
        option, equals, value = word.rpartition("=") if word.startswith("--environment=") else ("", "", word)
        if (equals or others[place - 1 : place] == ["--environment"]) and ":" in value:
            source, _, name = value.rpartition(":")
            sources.append(source)
            others[place] = f"{option}{equals}{name}"
    return sources, others


def _message_of(error: Exception) -> str:
    """Return the message of an error."""
    if not isinstance(error, OSError) or error.filename is None:
        return str(error)
    fix = "; choose a shorter name" if error.errno == errno.ENAMETOOLONG else ""
    return f"{os.fsdecode(error.filename)}: {error.strerror}{fix}."


def _report(message: str, status: int = 2) -> int:
    """Print one line on stderr and return the exit status."""
    print(f"nac-drive: {_as_line(message)}", file=sys.stderr)
    return status


def _report_end(message: str, status: int) -> int:
    """Report a signal once on each machine."""
    return _report(message, status) if is_first_here() else status


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as one line on stderr, without the place in the code."""
    _report(f"warning: {message}")


def _as_line(message: str) -> str:
    """Return a message as one line, with a question mark for every character that does not print."""
    return "".join(character if character.isprintable() else "?" for character in " ".join(message.split()))


def _to_go_on(command: Any) -> str:
    """Return the end of the message of an interruption."""
    if isinstance(command, Demo):
        return "; the same command goes on"
    action = command.action if isinstance(command, Dataset) else command
    if isinstance(action, _RESUMABLE):
        folder = action.folder if isinstance(action, Challenge) else action.out
        return "; go on with --resume" if folder is not None and os.path.exists(folder) else ""
    return ""


def main_console() -> Console:
    """The console of results and progress: as wide as the terminal, or as a log. It is quiet beside a main process.

    Text is printed as it is: names of drivers and folders may hold brackets.
    """
    width = None if sys.stdout.isatty() else _WIDTH_OF_LOGS
    return _PlainConsole(width=width, quiet=not is_main_process(), markup=False, emoji=False)


class _PlainConsole(Console):
    """A console that shows control characters and line ends in names of others, and does not obey them.

    Text of several lines is printed as a `Text`.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string, a cell or a title as it is printed."""
        return super().render_str(shown(text), **options)


def _parse(arguments: list[str]) -> Any:
    """The command with its options. Only the parser of the named command is built."""
    if arguments and arguments[0] in COMMANDS:
        name, *words = arguments
        command = COMMANDS[name]
        parse = partial(tyro.cli, command, args=words, prog=f"nac-drive {name}", config=_FLAT)
        if command is Reproduce and {"-h", "--help"} & set(words):
            parse = partial(parse, description=Reproduce.description())
        options = parse()
        defaults = None
        while isinstance(options, TrainingCommand) and (latest := options.as_defaults()) not in (None, defaults):
            defaults, options = latest, parse(default=latest)
        return options
    return tyro.extras.subcommand_cli_from_dict(
        COMMANDS, args=arguments, prog="nac-drive", description=_DESCRIPTION, config=_FLAT
    )


def completion_script(shell: str) -> str:
    """Return tyro's completion script.

    Args:
        shell: bash, zsh, fish or tcsh.

    Returns:
        The script, which completes commands, options and their choices.
    """
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        _parse(["--tyro-print-completion", shell])
    return text.getvalue()
