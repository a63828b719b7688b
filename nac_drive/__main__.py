"""`python -m nac_drive` and the console script `nac-drive`."""

import sys

from nac_drive.light_install import what_is_missing
from nac_drive.memory import NO_MEMORY, out_of_memory
from nac_drive.parallel.signals import Ended, signals_raised


def main() -> int:
    """Run one command and return its exit status.

    Modules that are missing, or do not fit into the memory, are reported in one line, and so is a signal that comes
    while they are loaded.
    """
    try:
        with signals_raised():
            from nac_drive.cli.main import main as run
    except Ended as end:
        print(f"nac-drive: {end.word}", file=sys.stderr)
        return end.exit_status
    except (ImportError, MemoryError) as error:
        if out_of_memory(error):
            print(f"nac-drive: {NO_MEMORY}", file=sys.stderr)
        elif sentence := what_is_missing("the command line", error):
            print(f"nac-drive: {sentence}", file=sys.stderr)
        else:
            raise
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
