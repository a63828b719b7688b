"""`python scripts/dagger.py`: the same as `nac-drive dagger`."""

import sys

from nac_drive.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["dagger", *sys.argv[1:]]))
