"""Figures of the results of several drivers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from nac_drive.evaluation.formulas import SOLVED_RETURN
from nac_drive.evaluation.statistics import Interval
from nac_drive.leaderboard.tables import Entry
from nac_drive.storage.figure import write_figure

LEADERBOARD_CAPTION = (
    "Left: returns of all episodes, mean of each run (|), mean and 95 % interval. Right: agreement with the expert."
)
LEARNING_CAPTION = (
    "Learning curves, mean over the runs of a core and their range. Left: loss on the training sequences. "
    "Right: return on the validation tracks."
)

_STYLES = ("-", "--", ":", "-.")
"""Ten colours of lines, then the same in the next style."""
_ONE_COLUMN = 20
"""Most lines of a legend in one column."""


def draw_figure(path: Path, entries: Sequence[Entry]) -> None:
    """Draw returns on every track with mean and interval; beside them, for drivers trained by DAgger, their rounds.

    Args:
        path: The new PNG.
        entries: The drivers, from left to right.
    """
    trained = [entry for entry in entries if entry.history]
    figure = Figure(figsize=(10 if trained else 5.5, 4))  # pyplot would change the backend of a notebook
    axes = figure.subplots(1, 2 if trained else 1, squeeze=False)
    colors = {entry.summary.driver: f"C{i}" for i, entry in enumerate(entries)}
    _draw_returns(axes[0, 0], entries, colors)
    if trained:
        _draw_rounds(axes[0, 1], trained, colors)
    write_figure(path, figure, tight=True)


def draw_leaderboard(path: Path, entries: Sequence[Entry]) -> None:
    """Draw one line per driver: returns of all episodes, means of the runs, mean and interval, and accuracies.

    Args:
        path: The new PNG.
        entries: The drivers, the first on top.
    """
    figure = Figure(figsize=(11, 1.6 + 0.27 * len(entries)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
    for line, entry in enumerate(entries):
        summary, returns = entry.summary, [row.episode_return for row in entry.evaluation.rows]
        interval, color = summary.return_interval, "C1" if entry.runs is None else "C0"
        left.scatter(returns, np.full(len(returns), line), s=14, alpha=0.35, color=color, linewidths=0)
        means = summary.run_returns if entry.runs else []
        left.plot(means, [line] * len(means), "|", ms=11, mew=1.5, color="C3", zorder=4)
        left.errorbar(
            interval.mean, line, xerr=_ends(interval), fmt="D", ms=5, color=color, mec="black", capsize=3, zorder=3
        )
        for fraction, mark, fill in (
            (entry.validation_accuracy, "o", "C0"), (entry.validation_at_changes, "^", "C2"),
            (summary.agreement, "o", "white"),
        ):  # fmt: skip
            if fraction is not None:
                right.plot(100 * fraction, line, mark, ms=5, color="C2" if mark == "^" else "C0", markerfacecolor=fill)
    left.axvline(SOLVED_RETURN, color="grey", linewidth=0.8, linestyle="--")
    left.set_yticks(range(len(entries)), [entry.summary.driver for entry in entries])
    left.set_ylim(len(entries) - 0.4, -0.6)
    left.set_xlabel("return of an episode")
    right.set_xlabel("actions equal to the expert's, %")
    for label, mark, color, fill in (
        ("validation tracks", "o", "C0", "C0"), ("validation, where the action changes", "^", "C2", "C2"),
        ("on its own states", "o", "C0", "white"),
    ):  # fmt: skip
        right.plot([], [], mark, ms=5, color=color, markerfacecolor=fill, label=label)
    figure.legend(fontsize=8, loc="outside upper right", ncols=3, frameon=False, columnspacing=1)
    for axis in (left, right):
        axis.grid(axis="y", color="0.92")
        axis.set_axisbelow(True)
    write_figure(path, figure)


def draw_learning_curves(path: Path, histories: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> None:
    """Draw training loss and mean validation return by epoch: one line per driver, the range of its runs shaded.

    Args:
        path: The new PNG.
        histories: Name of a driver -> for each of its runs the rows of metrics.jsonl, see docs/metrics.md. The legend
            has their order.
    """
    lines = -(-len(histories) // 2) if len(histories) > _ONE_COLUMN else len(histories)
    figure = Figure(figsize=(11, max(4.0, 0.6 + 0.19 * lines)), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True)
    for axis, key, label in zip(axes, ("loss", "return_mean"), ("training loss", "validation return"), strict=True):
        for i, (name, runs) in enumerate(histories.items()):
            epochs, values = _by_epoch(runs, key)
            style = {"color": f"C{i % 10}", "linestyle": _STYLES[i // 10 % len(_STYLES)]}
            axis.plot(epochs, [np.mean(each) for each in values], marker="o", ms=2.5, lw=1.3, label=name, **style)
            low, high = ([of(each) for each in values] for of in (min, max))
            axis.fill_between(epochs, low, high, color=style["color"], alpha=0.12, linewidth=0)
        axis.set_xlabel("epoch")
        axis.set_ylabel(label)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axis.grid(color="0.92")
    low, high = axes[0].dataLim.intervaly
    if 0 < low < high / 5:
        axes[0].set_yscale("log")
        axes[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes[0].yaxis.set_minor_locator(NullLocator())
        axes[0].yaxis.set_major_formatter("{x:g}")
    axes[1].axhline(SOLVED_RETURN, color="grey", linewidth=0.8, linestyle="--")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside right upper", ncols=1 + (lines < len(histories)),
        fontsize=8, frameon=False, handlelength=3,
    )  # fmt: skip
    write_figure(path, figure)


def _by_epoch(runs: Sequence[Sequence[Mapping[str, Any]]], key: str) -> tuple[list[int], list[list[float]]]:
    """Return the epochs in which `key` was measured, and its values in each of them, one per run."""
    values: dict[int, list[float]] = {}
    for row in (row for rows in runs for row in rows if key in row):
        values.setdefault(row["step"], []).append(row[key])
    epochs = sorted(values)
    return epochs, [values[epoch] for epoch in epochs]


def _ends(interval: Interval) -> list[list[float]] | None:
    """Return the lengths of an error bar; None for a point, as of one value."""
    if interval.low == interval.high:
        return None
    return [[interval.mean - interval.low], [interval.high - interval.mean]]


def _draw_returns(axis: Any, entries: Sequence[Entry], colors: dict[str, str]) -> None:
    for i, entry in enumerate(entries):
        returns = [row.episode_return for row in entry.evaluation.rows]
        interval = entry.summary.return_interval
        color = colors[entry.summary.driver]
        axis.scatter(i + np.linspace(-0.15, 0.15, len(returns)), returns, s=22, alpha=0.5, color=color, linewidths=0)
        axis.errorbar(
            i, interval.mean, _ends(interval), fmt="D", color=color, markeredgecolor="black", capsize=5, zorder=3
        )
        axis.annotate(f"{interval.mean:.0f}", (i + 0.2, interval.mean), va="center", fontsize=9)
    axis.axhline(SOLVED_RETURN, color="grey", linewidth=0.8, linestyle="--")
    axis.set_xticks(range(len(entries)), [entry.summary.driver for entry in entries])
    axis.set_xlim(-0.5, len(entries) - 0.3)
    axis.set_ylabel("return of an episode")
    axis.set_title("Closed loop: every track, mean, 95 % interval", fontsize=10)


def _draw_rounds(axis: Any, trained: Sequence[Entry], colors: dict[str, str]) -> None:
    for entry in trained:
        name = entry.summary.driver
        frames = [row["frames"] / 1000 for row in entry.history]
        returns = np.array([row["returns"] for row in entry.history])  # (rounds, tracks)
        axis.plot(frames, returns, ".", color=colors[name], alpha=0.4, markersize=6, markeredgewidth=0)
        axis.plot(frames, returns.mean(axis=1), "o-", color=colors[name], label=f"{name}, mean")
    axis.axhline(SOLVED_RETURN, color="grey", linewidth=0.8, linestyle="--")
    axis.set_xlabel("labelled frames, thousands")
    axis.set_ylabel("return of an episode")
    axis.set_title("DAgger: validation tracks after every round", fontsize=10)
    axis.legend(fontsize=8, loc="lower right")
