"""`python -m nac_drive` and the console script `nac-drive`."""

import sys

from nac_drive.memory import NO_MEMORY, out_of_memory


def main() -> int:
    """Run one command and return its exit status, also where its modules do not fit into the memory."""
    try:
        from nac_drive.cli.main import main as run
    except (ImportError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        print(f"nac-drive: {NO_MEMORY}", file=sys.stderr)
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
