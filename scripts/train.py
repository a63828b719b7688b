"""`python scripts/train.py`: the same as `nac-drive train`."""

import sys

from nac_drive.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
