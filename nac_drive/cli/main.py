"""Read the command line and run one command."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tyro
from rich.console import Console
from tyro.conf import Positional

import nac_drive
from nac_drive.cli.completion import with_names
from nac_drive.cli.driving import Collect, Dataset, Evaluate, Watch
from nac_drive.cli.training import Compare, Dagger, Demo, Ppo, Train
from nac_drive.suggest import did_you_mean


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
    "compare": Compare,
    "dagger": Dagger,
    "dataset": Dataset,
    "ppo": Ppo,
    "completion": Completion,
}
"""Name of a command -> dataclass of its options, with a `run`."""

_DESCRIPTION = (
    "Collect demonstrations of CarRacing, train cloned drivers (NAC, LSTM, CfC and others), and measure how they "
    "drive. Start with `nac-drive demo`, or `nac-drive watch --driver champion --video episode.mp4`. An error is one "
    "line; with NAC_DRIVE_TRACEBACK=1 in the environment it comes with its traceback."
)
_FLAT = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
_WIDTH_OF_LOGS = 160
"""Columns of tables where there is no terminal."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: The words of the command line; those of this process by default.

    Returns:
        The exit status: 0; 2 after one line that names what was wrong and the fix; 130 after Ctrl-C.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    warnings.formatwarning = lambda message, *_: f"nac-drive: warning: {message}\n"
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments == ["--version"]:
        print(f"nac-drive {nac_drive.__version__}")
        return 0
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        hint = did_you_mean(arguments[0], COMMANDS)
        print(f"nac-drive: there is no command {arguments[0]!r}.{hint} `nac-drive --help` lists them.", file=sys.stderr)
        return 2
    command = _parse(arguments)
    try:
        command.run(main_console())
    except KeyboardInterrupt:
        print("nac-drive: interrupted; finished work is kept", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        if os.environ.get("NAC_DRIVE_TRACEBACK"):
            raise
        print(f"nac-drive: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def main_console() -> Console:
    """The console of results and progress: as wide as the terminal, or as a log."""
    return Console() if sys.stdout.isatty() else Console(width=_WIDTH_OF_LOGS)


def _parse(arguments: list[str]) -> Any:
    """The command with its options. Only the parser of the named command is built."""
    if arguments and arguments[0] in COMMANDS:
        name, *words = arguments
        command = COMMANDS[name]
        # A command may read other defaults off its words, as train does for --recipe paper.
        defaults = command.defaults(words) if hasattr(command, "defaults") else None
        keywords = {} if defaults is None else {"default": defaults}
        return tyro.cli(command, args=words, prog=f"nac-drive {name}", config=_FLAT, **keywords)
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
