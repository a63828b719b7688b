"""Compare lines of a table fold by fold.

    python benchmarks/papers/folds.py docs/runs/thesis-6.1-ten-folds.jsonl squared_error --baseline "LSTM (64 units)"

The rows are `rows.jsonl` of a folder of `nac-drive reproduce`: folds over tracks, or over frames with `--split frames`.
The table has the difference of every line from the baseline, its mean over folds x 100 with a 95 % bootstrap interval
over them, and in how many folds it is positive.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from nac_drive.evaluation.intervals import bootstrap
from nac_drive.markdown import markdown_table


def values_of(rows: Path, value: str, split: str = "tracks") -> dict[str, dict[int, float]]:
    """Return entry -> fold -> value, of one split."""
    values: dict[str, dict[int, float]] = {}
    for row in map(json.loads, rows.read_text().splitlines()):
        if row["split"] == split:
            values.setdefault(row["entry"], {})[row["fold"]] = row[value]
    return values


def table(values: dict[str, dict[int, float]], baseline: str) -> str:
    """Return differences from the baseline in Markdown, the least first."""
    folds = sorted(values[baseline])
    grids = {entry: np.array([[of_fold[fold] for fold in folds]]) for entry, of_fold in values.items()}
    rest = grids.pop(baseline)
    rows = [
        [entry, bootstrap(grid, rest).text("+.3f", 100), f"{(grid > rest).sum()} of {len(folds)}"]
        for entry, grid in sorted(grids.items(), key=lambda item: item[1].mean())
    ]
    return markdown_table(("line", f"difference from {baseline}", "folds with more"), rows, "lrr")


def main() -> None:
    parser = argparse.ArgumentParser(description="Lines of a table, compared fold by fold.")
    parser.add_argument("rows", type=Path, help="rows.jsonl of a folder of nac-drive reproduce")
    parser.add_argument("value", help="a number of the rows, such as squared_error")
    parser.add_argument("--baseline", required=True, help="the line that the others are compared with")
    parser.add_argument("--split", choices=("tracks", "frames"), default="tracks", help="folds over which of them")
    options = parser.parse_args()
    values = values_of(options.rows, options.value, options.split)
    if options.baseline not in values:
        parser.error(f"--baseline must be one of {', '.join(values)}, got {options.baseline!r}")
    print(table(values, options.baseline))


if __name__ == "__main__":
    main()
