"""The leaderboard as a figure, from the results of a comparison.

    python benchmarks/figures/leaderboard.py docs/runs/leaderboard.json docs/figures/leaderboard.png

Draws the results.json of `nac-drive compare`, which holds summaries: means of the runs, mean and interval, accuracies.
The figure.png of a comparison shows the return of every episode too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from nac_drive.evaluation.evaluate import Evaluation
from nac_drive.evaluation.intervals import Interval
from nac_drive.evaluation.statistics import Summary
from nac_drive.experiments.figures import draw_leaderboard
from nac_drive.experiments.leaderboard import RankedDriver


def entry(result: dict[str, Any]) -> RankedDriver:
    """The entry of one driver, without its episodes."""
    interval = Interval(**result["return_interval"])
    summary = Summary(result["driver"], result["tracks"], result, interval, result["run_returns"])
    return RankedDriver(
        Evaluation([], summary),
        runs=result["runs"],
        validation_accuracy=result["validation_accuracy"],
        validation_at_changes=result["validation_at_changes"],
    )


def main(results: Path, path: Path) -> None:
    draw_leaderboard(path, [entry(result) for result in json.loads(results.read_text())])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python benchmarks/figures/leaderboard.py RESULTS.json FIGURE.png")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
