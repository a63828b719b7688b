"""`python scripts/compare.py`: the same as `nac-drive compare`."""

import sys

from nac_drive.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["compare", *sys.argv[1:]]))
