"""The command line: `nac-drive COMMAND`. A command is a dataclass of its options with a `run`."""

from nac_drive.callable_modules import callable_module
from nac_drive.cli.main import COMMANDS, completion_script, main, main_console

main = callable_module("nac_drive.cli.main", main)

__all__ = ["COMMANDS", "completion_script", "main", "main_console"]
