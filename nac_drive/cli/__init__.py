"""The command line: `nac-drive COMMAND`. A command is a dataclass of its options with a `run`."""

from nac_drive.cli.main import COMMANDS, completion_script, main, main_console

__all__ = ["COMMANDS", "completion_script", "main", "main_console"]
