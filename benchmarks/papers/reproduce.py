"""Measure a table of this folder again, as `nac-drive reproduce` measures the tables of the package.

    python benchmarks/papers/reproduce.py thesis-4.4 --out thesis-4.4
    python benchmarks/papers/reproduce.py thesis-4.4 --out thesis-4.4-full --full

The tables are the files of `protocols/`. Options, folders and pages are the same as in `nac-drive reproduce`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tyro
from circuits import Circuits  # the files beside this one
from flow import Flow
from learning_curves import LearningCurves
from pictures import Pictures
from responses import Responses
from rich.console import Console
from trajectory import Trajectory

from nac_drive.cli.reproduction import Reproduce
from nac_drive.experiments.paper import PaperExperiment
from nac_drive.experiments.protocol import listed

EXPERIMENTS: dict[str, type[PaperExperiment]] = {
    "circuits": Circuits,
    "flow": Flow,
    "learning-curves": LearningCurves,
    "pictures": Pictures,
    "responses": Responses,
    "trajectory": Trajectory,
}
"""Name of an experiment -> its settings and its work. Worker processes import them, as they search this folder too."""
PROTOCOLS = Path(__file__).parent / "protocols"
COMMAND = "python benchmarks/papers/reproduce.py"


def main() -> None:
    command = tyro.cli(Reproduce, description=f"Measure a table of this folder again.\n\n{listed(PROTOCOLS)}")
    try:
        command.run(Console(), experiments=EXPERIMENTS, protocols=PROTOCOLS, command=COMMAND)
    except (ValueError, OSError) as error:
        sys.exit(f"reproduce.py: {error}")
    except KeyboardInterrupt:
        sys.exit("reproduce.py: stopped; go on with --resume")


if __name__ == "__main__":
    main()
