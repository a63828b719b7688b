"""`python scripts/dataset.py`: the same as `nac-drive dataset`."""

import sys

from nac_drive.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["dataset", *sys.argv[1:]]))
