"""The learning curves of the shipped drivers, from the metrics of their runs.

    python benchmarks/curves.py docs/runs docs/figures/curves.png

Left: DAgger, returns on the validation tracks after every round against labelled frames. Right: PPO from a clone,
against the frames that it drove. A dot is a lap, a line the mean.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

DAGGER = (
    "clone-discrete",
    "champion-discrete",
    "clone-continuous",
    "champion-continuous",
    "champion-continuous-window-32",
    "champion-continuous-residual",
)
PPO = ("expert-discrete-first", "expert-discrete")
LABELS = {
    "champion-continuous-window-32": "the same with a window of 32 frames, constant rate",
    "champion-continuous-residual": "that with a residual path past the attention",
    "expert-discrete-first": "without a price for frames off the road (val-10)",
    "expert-discrete": "with it, from a later clone (val-25): shipped",
}


def draw(axis: Any, rows: list[dict[str, Any]], frames: str, color: str, label: str) -> None:
    at = [row[frames] / 1000 for row in rows]
    for x, row in zip(at, rows, strict=True):
        axis.plot([x] * len(row["returns"]), row["returns"], ".", color=color, alpha=0.3, markersize=4)
    axis.plot(at, [sum(row["returns"]) / len(row["returns"]) for row in rows], "o-", color=color, label=label)


def main(runs: Path, picture: Path) -> None:
    figure = Figure(figsize=(10, 4))
    left, right = figure.subplots(1, 2)
    for axis, names, frames in ((left, DAGGER, "frames"), (right, PPO, "step")):
        for i, name in enumerate(names):
            rows = [json.loads(line) for line in (runs / f"{name}.jsonl").read_text().splitlines()]
            draw(axis, rows, frames, f"C{i}", LABELS.get(name, name))
        axis.axhline(900, color="grey", linewidth=0.8, linestyle="--")
        axis.set_ylim(350, 960)
        axis.set_ylabel("return of a validation lap")
        axis.legend(fontsize=8, loc="lower right")
    left.set_xlabel("labelled frames, thousands")
    right.set_xlabel("frames of PPO, thousands")
    figure.tight_layout()
    figure.savefig(picture, dpi=150)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
