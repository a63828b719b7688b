"""The return of every driver while frames are lost or late.

    python benchmarks/figures/broken_worlds.py docs/leaderboard.md docs/figures/ranking.png

Draws the ranking of the page: a dot is a mean, a bar the 95 % interval of the difference from the LSTM, laid around the
LSTM's mean, which is the vertical line.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from nac_drive.storage.style import NORMAL, SMALL, colour_of, styled

HEADING = "| runs | undisturbed | irregular | blackouts | late | all |"
WORLDS = {
    "undisturbed": "nothing is lost",
    "irregular": "irregular frames,\nhalf of them black",
    "blackouts": "blackouts of\nfive frames",
    "late": "late actions, half of\nthe frames black",
}
BASELINE, INK = "lstm", "#555555"
LEFT_OUT = ("nac-sharp, gated values",)


@dataclass(frozen=True)
class Cell:
    """A mean return, and the interval of its difference from the baseline."""

    mean: float
    low: float
    high: float


def ranking(page: str) -> dict[str, list[Cell]]:
    """Driver -> its cell in every world."""
    start = page.rindex("\n", 0, page.index(HEADING)) + 1
    heading, _, *lines = page[start:].partition("\n\n")[0].splitlines()
    name, runs = ([cell.strip() for cell in heading.strip("|").split("|")].index(word) for word in ("driver", "runs"))
    drivers = {}
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        numbers = [[float(number) for number in re.findall(r"[-+]?\d+", cell)] for cell in cells[runs + 1 :]]
        drivers[cells[name]] = [Cell(mean, *(interval[1:] or (0, 0))) for mean, *interval in numbers]
    return drivers


@styled()
def draw(drivers: dict[str, list[Cell]]) -> Figure:
    """One column per world, one line per driver."""
    names = [name for name in drivers if name not in LEFT_OUT]
    figure = Figure(figsize=(9, 1.4 + 0.25 * len(names)), layout="constrained")
    axes = figure.subplots(1, len(WORLDS), sharey=True)
    for column, (axis, title) in enumerate(zip(axes, WORLDS.values(), strict=True)):
        baseline = drivers[BASELINE][column].mean
        axis.axvline(baseline, color=colour_of(BASELINE), linewidth=1, alpha=0.6)
        for line, name in enumerate(names):
            cell, colour = drivers[name][column], colour_of(name)
            axis.plot([baseline + cell.low, baseline + cell.high], [line, line], color=colour, linewidth=3, alpha=0.3)
            axis.plot(cell.mean, line, "o", color=colour, markersize=6)
            low, high = min(cell.mean, baseline + cell.low), max(cell.mean, baseline + cell.high)
            place, shift, side = (low, -6, "right") if low > 200 else (high, 6, "left")
            axis.annotate(
                f"{cell.mean:.0f}", (place, line), (shift, 0), textcoords="offset points", fontsize=SMALL, va="center",
                ha=side, color=colour, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )  # fmt: skip
        axis.set_title(title, fontsize=NORMAL, loc="center")
        axis.set_xlim(-60, 1080)
        axis.set_xticks([0, 300, 600, 900])
        axis.grid(axis="y", visible=False)
    axes[0].set_ylim(len(names) - 0.4, -0.6)
    axes[0].set_yticks(range(len(names)), names)
    for label, name in zip(axes[0].get_yticklabels(), names, strict=True):
        label.set_color(colour_of(name))
        label.set_fontweight("bold" if name.startswith("nac") else "normal")
    figure.supxlabel("return; line: LSTM; bar: 95 % interval of the difference from it", fontsize=NORMAL, color=INK)
    return figure


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python benchmarks/figures/broken_worlds.py PAGE.md FIGURE.png")
    draw(ranking(Path(sys.argv[1]).read_text())).savefig(sys.argv[2], dpi=180)
