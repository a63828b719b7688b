"""Reads the command line and runs one command."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import tyro
from rich.console import Console

import nac_drive
from nac_drive.cli.driving import Collect, Dataset, Evaluate, Watch
from nac_drive.cli.training import Compare, Dagger, Demo, Ppo, Train
from nac_drive.suggest import did_you_mean

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
}

_DESCRIPTION = (
    "Collect demonstrations of CarRacing, train cloned drivers (NAC, LSTM, CfC and others), and measure how they drive. "
    "Start with `nac-drive demo`, or `nac-drive watch --driver champion --video episode.mp4`. An error is one line; with "
    "NAC_DRIVE_TRACEBACK=1 in the environment it comes with its traceback."
)
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
    command: Any = tyro.extras.subcommand_cli_from_dict(
        COMMANDS, args=arguments, prog="nac-drive", description=_DESCRIPTION,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )  # fmt: skip
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH_OF_LOGS)
    try:
        command.run(console)
    except KeyboardInterrupt:
        print("nac-drive: interrupted; what is finished is kept", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        if os.environ.get("NAC_DRIVE_TRACEBACK"):
            raise
        print(f"nac-drive: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0
