"""`python scripts/collect.py`: the same as `nac-drive collect`."""

import sys

from nac_drive.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["collect", *sys.argv[1:]]))
