"""The figure of a run's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nac_drive.storage.figure import write_figure
from nac_drive.storage.style import PALETTE, styled

CURVE = "curve.png"
_FEW = 60
"""Most points that are drawn one by one. Of more, a moving mean is drawn too."""


class CurveLine(NamedTuple):
    """A line of a panel."""

    key: str
    """Key of the rows; a key of a nested dict follows a dot."""
    label: str


_RETURNS = (CurveLine("return_mean", "validation, mean and range"), CurveLine("episodes_return_mean", "training"))
_CLONING: dict[str, tuple[CurveLine, ...]] = {
    "return of an episode": _RETURNS,
    "loss": (CurveLine("loss", "training"),),
    "accuracy": (CurveLine("accuracy", "training"), CurveLine("validation.accuracy", "validation")),
    "squared error of the steering": (CurveLine("validation.steering_mse", "validation"),),
    "agreement with the expert": (CurveLine("agreement", "frames of the learner"),),
}
_PPO = {
    "return of an episode": _RETURNS,
    "loss of the value network": (CurveLine("value_loss", "training"),),
    "entropy of the actions": (CurveLine("entropy", "training"),),
}
"""Label of the vertical axis -> its lines."""


@styled()
def draw_curve(path: Path, rows: Sequence[Mapping[str, Any]], step: str) -> None:
    """Draw the curves of a run. Panels without a number are left out, and a figure without panels.

    Args:
        path: The new PNG.
        rows: The rows of metrics.jsonl.
        step: Unit of the steps: epoch, round or frame.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    panels = _PPO if step == "frame" else _CLONING
    unit, scale = (step, 1.0) if step != "frame" else _unit_of_frames(rows)
    shown = {
        label: points
        for label, lines in panels.items()
        if (points := {line: _points(rows, line.key) for line in lines if len(_points(rows, line.key))})
    }
    if not shown:
        return
    figure = Figure(figsize=(3.6 * len(shown), 3.2), layout="constrained")
    for axis, (label, lines) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
        for color, (line, points) in zip(PALETTE, lines.items(), strict=False):
            steps, values = points.T / [[scale], [1]]
            if len(values) > _FEW:
                axis.plot(steps, values, color=color, lw=0.6, alpha=0.3)
                axis.plot(steps, _smooth(values), color=color, label=line.label)
            else:
                axis.plot(steps, values, "o-", color=color, ms=3, label=line.label)
            if line.key == "return_mean":
                low, high = ([end(row["returns"]) for row in rows if "returns" in row] for end in (min, max))
                axis.fill_between(steps, low, high, color=color, alpha=0.12, linewidth=0)
        axis.set_xlabel(unit)
        axis.set_ylabel(label)
        axis.xaxis.set_major_locator(MaxNLocator("auto", integer=scale == 1, min_n_ticks=1))
        if len(lines) > 1 or lines.keys() & set(_RETURNS):
            axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2, columnspacing=1)
    write_figure(path, figure)


def _unit_of_frames(rows: Sequence[Mapping[str, Any]]) -> tuple[str, float]:
    """Return the name and the size of a unit."""
    many = max((row["step"] for row in rows), default=0) >= 1e6
    return ("million frames", 1e6) if many else ("thousand frames", 1e3)


def _points(rows: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """Return (N, 2) steps and values of a key."""
    part, _, name = key.rpartition(".")
    values = [(row["step"], ((row.get(part) or {}) if part else row).get(name)) for row in rows]
    return np.array([point for point in values if point[1] is not None], dtype=float)


def _smooth(values: np.ndarray) -> np.ndarray:
    """Return a moving mean, over a twentieth of all values."""
    sums, half = np.concatenate(([0.0], np.cumsum(values))), len(values) // 40
    places = np.arange(len(values))
    starts, ends = np.maximum(places - half, 0), np.minimum(places + half + 1, len(values))
    return (sums[ends] - sums[starts]) / (ends - starts)
