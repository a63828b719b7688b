"""`python scripts/watch.py`: the same as `nac-drive watch`."""

import sys

from nac_drive.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["watch", *sys.argv[1:]]))
