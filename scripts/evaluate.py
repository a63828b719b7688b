"""`python scripts/evaluate.py`: the same as `nac-drive evaluate`."""

import sys

from nac_drive.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))
