"""Behaviour cloning, DART and DAgger: the returns of every episode, and accuracy offline and on a driver's own states.

    python benchmarks/figures/cloning_methods.py docs/runs/cloning-methods.json docs/figures/cloning_methods.png

Draws the results.json of `python benchmarks/protocols/harness.py cloning-methods`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nac_drive.storage.style import PALETTE, SOFT, stretch_returns, styled

METHODS = {"bc": "behaviour cloning", "dart": "DART", "dagger": "DAgger"}


@styled()
def draw(results: list[dict[str, Any]]) -> Figure:
    """Left: returns by core and method, with their means. Right: both accuracies."""
    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    cores = list(dict.fromkeys(row["core"] for row in results))
    for row in results:
        i, j = cores.index(row["core"]), [*METHODS].index(row["method"])
        x, color, label = i + 0.27 * (j - 1), PALETTE[j], METHODS[row["method"]]
        returns, offline, on_policy = row["returns"], 100 * row["offline"], 100 * row["on_policy"]
        spread = np.linspace(-0.09, 0.09, len(returns))
        left.scatter(x + spread, returns, s=12, alpha=0.45, color=color, linewidths=0)
        left.plot(x, np.mean(returns), "D", color=color, markeredgecolor="black", label=label if i == 0 else None)
        right.plot([x, x], [offline, on_policy], "-", color=color)
        right.plot(x, offline, "o", color=color)
        right.plot(x, on_policy, "o", markerfacecolor="white", color=color)
    right.plot([], [], "o", color=SOFT, label="offline")
    right.plot([], [], "o", color=SOFT, markerfacecolor="white", label="on its own states")
    left.axhline(900, color=SOFT, linewidth=1, linestyle="--")
    stretch_returns(left, min(min(row["returns"]) for row in results))
    left.set_ylabel("return of an episode (stretched scale)")
    right.set_ylabel("actions equal to the expert's, %")
    for axis in (left, right):
        axis.set_xticks(range(len(cores)), cores)
        axis.set_xlim(-0.5, len(cores) - 0.5)
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)  # over no point
    return figure


def main(results: Path, image: Path) -> None:
    draw(json.loads(results.read_text())).savefig(image, dpi=150)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
