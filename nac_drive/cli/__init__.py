"""The command line: `nac-drive COMMAND`. A command is a dataclass of its options with a `run`."""

from nac_drive.cli.main import COMMANDS, main

__all__ = ["COMMANDS", "main"]
