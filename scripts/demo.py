"""`python scripts/demo.py`: the same as `nac-drive demo`."""

import sys

from nac_drive.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["demo", *sys.argv[1:]]))
