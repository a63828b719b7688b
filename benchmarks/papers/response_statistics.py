"""Statistics of the responses of cells: whether they predict the damage, and what more cells change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nac_drive.evaluation.intervals import Interval, rank_correlation
from nac_drive.experiments.paper import Row
from nac_drive.markdown import markdown_table

PREDICTIONS = {"delta": "absolute delta response", "amplitude": "amplitude"}
"""Metrics whose absolute value ranks the cells -> their names in sentences."""
DAMAGES = {"offline": "rise of the squared error", "driven": "loss of return"}
"""Kinds of damage -> their names in sentences."""


def spread(values: np.ndarray, count: int) -> list[int]:
    """Return the indices of `count` values, or all, that are evenly spread over the ranks; both extremes included."""
    ranks = np.linspace(0, len(values) - 1, min(count, len(values))).round().astype(int)
    return np.argsort(values)[ranks].tolist()


def correlation(rows: Sequence[Row], prediction: str, damage: str) -> Interval | None:
    """Return the rank correlation of a prediction with a damage, over cells.

    Args:
        rows: Runs of one entry, over which the correlation is averaged.
        prediction: One of PREDICTIONS; its absolute value counts.
        damage: One of DAMAGES.

    Returns:
        Spearman's correlation with its 95 % bootstrap interval over the cells of each run; None without damages, or
        where all predictions or damages are equal.
    """
    pairs = [pair for row in rows if (pair := _pair(row, prediction, damage)) is not None]
    interval = rank_correlation(*pairs) if pairs else None
    return None if interval is None or np.isnan(interval.mean) else interval


def _pair(row: Row, prediction: str, damage: str) -> np.ndarray | None:
    """Return prediction and damage of some cells (2, cells)."""
    predicted = np.abs(row["cells"][prediction])
    if damage == "offline":
        return np.stack((predicted, row["cells"]["offline"]))
    driven = row.get("driven")
    return None if driven is None else np.stack((predicted[driven["index"]], driven["lost"]))


def verdict(rows: Sequence[Row]) -> str:
    """Return a table of the correlations of every entry, and one sentence, in Markdown.

    Args:
        rows: Results of networks of one width.
    """
    headings = [f"{of}, {loss}" for of in PREDICTIONS.values() for loss in DAMAGES.values()]
    lines = []
    above = dict.fromkeys([(prediction, damage) for prediction in PREDICTIONS for damage in DAMAGES], 0)
    entries = list(dict.fromkeys(row["entry"] for row in rows))
    for entry in entries:
        mine = [row for row in rows if row["entry"] == entry]
        found = {key: correlation(mine, *key) for key in above}
        above = {key: above[key] + (each is not None and each.low > 0) for key, each in found.items()}
        lines.append([entry, *map(_interval, found.values())])
    counts = "; ".join(
        f"{PREDICTIONS[prediction]} and {DAMAGES[damage]} in {count} of {len(entries)}"
        for (prediction, damage), count in above.items()
    )
    compared = len(above) * len(entries)
    word = {0: "is not shown to predict", compared: "predicts"}.get(sum(above.values()), "partly predicts")
    sentence = (
        f"**The response {word} the damage.** Cores whose interval lies above zero: {counts}. Without any relation, "
        f"about {0.025 * compared:.1f} of the {compared} intervals would lie there by chance."
    )
    heading = "Rank correlations of a prediction with the damage, with 95 % bootstrap intervals over cells:"
    return f"{heading}\n\n{markdown_table(['printed as', *headings], lines)}\n\n{sentence}"


def capacity(rows: Sequence[Row]) -> str:
    """Return the exponents of the number of cells in amplitude and settling time, in Markdown.

    Args:
        rows: Results of networks of several widths.
    """
    parts = []
    for entry in dict.fromkeys(row["entry"] for row in rows):
        mine = [row for row in rows if row["entry"] == entry]
        amplitude, time = (
            exponent([row["units"] for row in mine], [row[metric] for row in mine])
            for metric in ("amplitude", "settling_time")
        )
        parts.append(f"{entry} {_interval(amplitude)} and {_interval(time)}")
    return (
        "**Exponents of N**, the number of cells, in the mean amplitude and in the mean settling time, with 95 % "
        f"intervals of the fit: {'; '.join(parts)}. The thesis has roughly -1 and 0."
    )


def exponent(sizes: Sequence[int], values: Sequence[float]) -> Interval | None:
    """Return the slope of a line through the logarithms, with the 95 % interval of the fit.

    Returns:
        None for fewer than three points, fewer than two sizes, or a value of 0.
    """
    from scipy.stats import t  # slow to import

    if len(values) < 3 or len(set(sizes)) < 2 or min(values) <= 0:
        return None
    (slope, _), covariance = np.polyfit(np.log(sizes), np.log(values), 1, cov=True)
    error = float(np.sqrt(covariance[0, 0]) * t.ppf(0.975, len(values) - 2))
    return Interval(float(slope), float(slope) - error, float(slope) + error)


def _interval(interval: Interval | None) -> str:
    return "unknown" if interval is None else interval.text("+.2f")
