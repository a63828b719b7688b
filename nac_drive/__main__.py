"""`python -m nac_drive` and the console script `nac-drive`."""

import sys

from nac_drive.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
