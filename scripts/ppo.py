"""`python scripts/ppo.py`: the same as `nac-drive ppo`."""

import sys

from nac_drive.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["ppo", *sys.argv[1:]]))
