"""Figures of the responses of cells: their distributions, the damage of their loss, and their capacity."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nac_drive.experiments.paper import Row
from nac_drive.storage.figure import write_figure
from nac_drive.storage.style import LARGE, PALETTE, looks_of, styled

if TYPE_CHECKING:  # slow to import, and not every process draws
    from matplotlib.figure import Figure

METRICS = {
    "settling_time": ("settling time", "s"), "delta": ("delta response", ""), "amplitude": ("amplitude", ""),
    "frequency": ("frequency", "Hz"), "correlation": ("correlation", ""),
}  # fmt: skip
"""Metrics of `Responses` -> name and unit, in the order of the thesis' figures."""
_BARS, _PREDICTION = PALETTE[0], "0.3"


@styled()
def draw_distributions(path: Path, rows: Sequence[Row]) -> None:
    """Draw every metric sorted over cells, one line per entry (thesis, Fig. 7.3).

    Args:
        path: The new PNG.
        rows: Results of networks of one width; the first of every entry is drawn.
    """
    from matplotlib.ticker import MaxNLocator

    figure, axes = _panels()
    first = _first(rows)
    looks = looks_of(row["entry"] for row in first)
    for row in first:
        look = looks[row["entry"]]
        for axis, metric in zip(axes, METRICS, strict=True):
            values = np.sort(row["cells"][metric])
            places = np.arange(1, len(values) + 1)
            axis.plot(places, values, label=row["entry"], color=look.color, linestyle=look.linestyle)
    for axis in axes:
        axis.set_xlabel("cells, sorted")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    _save(figure, axes, path)


@styled()
def draw_capacity(path: Path, rows: Sequence[Row]) -> None:
    """Draw the mean of every metric over the number of cells, one line per entry (thesis, Fig. 7.5).

    Args:
        path: The new PNG.
        rows: Results of networks of several widths.
    """
    from matplotlib.ticker import NullLocator

    figure, axes = _panels()
    sizes = sorted({row["units"] for row in rows})
    for number, (entry, look) in enumerate(looks_of(row["entry"] for row in rows).items()):
        mine = [[row for row in rows if row["entry"] == entry and row["units"] == size] for size in sizes]
        there = [(size, found) for size, found in zip(sizes, mine, strict=True) if found]
        for axis, metric in zip(axes, METRICS, strict=True):
            means, deviations = (
                [np.mean([row[key] for row in found]) for _, found in there] for key in (metric, f"{metric}_sd")
            )
            places = [size * 1.04 ** (number - 1) for size, _ in there]  # side by side
            axis.errorbar(
                places, means, deviations, fmt=look.marker, linestyle=look.linestyle, capsize=2.5, elinewidth=0.8,
                color=look.color, label=entry,
            )  # fmt: skip
    for axis in axes:
        axis.set_xlabel("number of cells, N")
        axis.set_xscale("log")
        axis.set_xticks(sizes, map(str, sizes))
        axis.xaxis.set_minor_locator(NullLocator())
    _save(figure, axes, path)


@styled()
def draw_ablation(path: Path, rows: Sequence[Row]) -> None:
    """Draw the damage of the loss of single cells beside its prediction (thesis, Fig. 7.4): a column per entry.

    Args:
        path: The new PNG.
        rows: Results of networks of one width; the first of every entry is drawn.
    """
    from matplotlib.figure import Figure

    first = _first(rows)
    figure = Figure(figsize=(0.6 + 3.9 * len(first), 8.2), layout="constrained")
    axes = figure.subplots(3, len(first), squeeze=False)
    for column, row in zip(axes.T, first, strict=True):
        cells, lost = row["cells"], row["driven"]["lost"]
        delta, amplitude = np.abs(cells["delta"]), np.array(cells["amplitude"])
        offline = np.array(cells["offline"])
        _draw_damage(column[0], delta, offline, "|delta response|", "rise of squared error")
        _draw_damage(column[1], amplitude, offline, "amplitude", "rise of squared error")
        _draw_damage(column[2], amplitude[row["driven"]["index"]], np.array(lost), "amplitude", "return lost")
        column[0].set_title(row["entry"])
        column[1].set_xlabel("all cells, in the order of the prediction")
        column[2].set_xlabel("some cells, in the order of the prediction")
    write_figure(path, figure)


def _draw_damage(axis: Any, prediction: np.ndarray, damage: np.ndarray, name: str, label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    order = np.argsort(prediction)
    places = np.arange(1, len(order) + 1)
    axis.bar(places, damage[order], width=0.8, color=_BARS)
    axis.axhline(0.0, color="0.3", lw=0.6)
    axis.set_ylabel(label, color=_BARS)
    axis.margins(x=0.02)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    right = axis.twinx()
    right.grid(visible=False)
    right.plot(places, prediction[order], color=_PREDICTION, lw=1.6)
    right.set_ylim(bottom=0.0)
    right.set_ylabel(name, color=_PREDICTION)


def _first(rows: Sequence[Row]) -> list[Row]:
    """Return the first run of every entry."""
    return [
        min((row for row in rows if row["entry"] == entry), key=lambda row: row["run"])
        for entry in dict.fromkeys(row["entry"] for row in rows)
    ]


def _panels() -> tuple[Figure, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    *axes, last = figure.subplots(2, 3).flat
    last.axis("off")  # the place of the legend
    for axis, (name, unit) in zip(axes, METRICS.values(), strict=True):
        axis.set_title(f"{name}, {unit}" if unit else name)
    return figure, axes


def _save(figure: Figure, axes: Sequence[Any], path: Path) -> None:
    figure.axes[-1].legend(*axes[0].get_legend_handles_labels(), loc="center", fontsize=LARGE, handlelength=3)
    write_figure(path, figure)
