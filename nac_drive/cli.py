"""The command line. A command is a dataclass of its options with a `run` that calls the library and shows progress."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import tyro
from rich.console import Console

from nac_drive.cli_driving import Collect, Dataset, Evaluate, Watch
from nac_drive.cli_training import Compare, Dagger, Demo, Expert, Train

COMMANDS = {
    "expert": Expert,
    "collect": Collect,
    "dataset": Dataset,
    "train": Train,
    "dagger": Dagger,
    "evaluate": Evaluate,
    "compare": Compare,
    "watch": Watch,
    "demo": Demo,
}

_DESCRIPTION = (
    "Collect laps of CarRacing, clone drivers from them (NAC, LSTM, CfC and others), and measure how they drive. "
    "Start with `nac-drive demo`. An error is told in one line; with NAC_DRIVE_TRACEBACK=1 in the environment it comes "
    "with its traceback."
)
_WIDTH_OF_LOGS = 160
"""Columns of tables that no terminal shows."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status: 0, or 2 after one line that names what was wrong and the fix."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    warnings.formatwarning = lambda message, *_: f"nac-drive: warning: {message}\n"
    command: Any = tyro.extras.subcommand_cli_from_dict(
        COMMANDS, args=arguments, prog="nac-drive", description=_DESCRIPTION,
        config=(tyro.conf.OmitArgPrefixes,),
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
