"""`python scripts/expert.py`: the same as `nac-drive expert`."""

import sys

from nac_drive.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["expert", *sys.argv[1:]]))
