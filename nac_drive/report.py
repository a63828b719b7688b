"""One comparison as a terminal table, markdown, JSON and a figure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from data_collection.files import write_atomically
from nac_drive.evaluation import Evaluation
from nac_drive.metrics import GOOD_LAP, Interval, Summary


@dataclass(frozen=True)
class Contestant:
    """One driver of a comparison: how it drove and, if it was trained here, what the training cost and gave."""

    evaluation: Evaluation
    trainings: int | None = None
    """How often it was trained, each time from another seed; the evaluation holds the laps of all."""
    parameters: int | None = None
    core_parameters: int | None = None
    held_out_accuracy: float | None = None
    held_out_at_changes: float | None = None
    training_seconds: float | None = None
    """Mean of the trainings."""
    history: tuple[dict[str, Any], ...] = ()
    """Rows of the training's metrics.jsonl."""

    @property
    def summary(self) -> Summary:
        return self.evaluation.summary


_EMPTY = "-"


def _number(value: float | None, digits: int, scale: float = 1.0) -> str:
    return _EMPTY if value is None else f"{scale * value:.{digits}f}"


def _interval(interval: Interval | None) -> str:
    return _EMPTY if interval is None else f"{interval.mean:+.0f} [{interval.low:+.0f}, {interval.high:+.0f}]"


def _each(returns: Sequence[float]) -> str:
    return " ".join(f"{value:.0f}" for value in returns) if len(returns) > 1 else _EMPTY


def _interventions(contestant: Contestant) -> float | None:
    """None where nobody would have intervened."""
    intervening = contestant.evaluation.rows[0].crash_mode == "intervene"
    return contestant.summary.interventions_per_lap if intervening else None


COLUMNS: dict[str, Callable[[Contestant], str]] = {
    "driver": lambda c: c.summary.driver,
    "return": lambda c: f"{c.summary.return_mean:.0f} ± {c.summary.return_sd:.0f}",
    "min": lambda c: _number(c.summary.return_min, 0),
    ">= 900 %": lambda c: _number(c.summary.good_laps, 0, 100),
    "vs baseline [95 %]": lambda c: _interval(c.summary.return_difference),
    "completion %": lambda c: _number(c.summary.completion, 1, 100),
    "crashes/lap": lambda c: _number(c.summary.crashes_per_lap, 2),
    "interventions/lap": lambda c: _number(_interventions(c), 2),
    "off road %": lambda c: _number(c.summary.off_road_share, 1, 100),
    "driving score": lambda c: _number(c.summary.driving_score, 1),
    "agreement %": lambda c: _number(c.summary.agreement, 1, 100),
    "held-out %": lambda c: _number(c.held_out_accuracy, 1, 100),
    "changes %": lambda c: _number(c.held_out_at_changes, 1, 100),
    "core": lambda c: _EMPTY if c.core_parameters is None else f"{c.core_parameters:,}",
    "parameters": lambda c: _EMPTY if c.parameters is None else f"{c.parameters:,}",
    "ms/act": lambda c: _number(c.summary.latency_ms, 2),
    "each training": lambda c: _each(c.summary.training_returns if c.trainings else []),
    "trained s": lambda c: _number(c.training_seconds, 0),
}
"""Heading and cell of every column; the meaning of each stands in docs/metrics.md."""


SHORT = ("driver", "return", "min", "vs baseline [95 %]", "crashes/lap", "agreement %", "held-out %", "parameters")
"""Columns of a comparison that fit into a terminal."""


def cells(contestants: Sequence[Contestant], columns: Iterable[str] = COLUMNS) -> tuple[list[str], list[list[str]]]:
    """Headings and rows, without the columns that no contestant fills."""
    rows = [[COLUMNS[name](contestant) for name in columns] for contestant in contestants]
    filled = [any(text != _EMPTY for text in column) for column in zip(*rows, strict=True)]
    return list(compress(columns, filled)), [list(compress(row, filled)) for row in rows]


def terminal_table(contestants: Sequence[Contestant], title: str, columns: Iterable[str] = COLUMNS) -> Table:
    """The table for a terminal."""
    headings, rows = cells(contestants, columns)
    table = Table(title=title)
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table


def markdown_table(contestants: Sequence[Contestant]) -> str:
    """The table as GitHub markdown."""
    headings, rows = cells(contestants)
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def save_results(folder: Path, contestants: Sequence[Contestant]) -> None:
    """`table.md` and `results.json` in `folder`."""
    write_atomically(folder / "table.md", markdown_table(contestants).encode())
    results = [
        {
            **asdict(contestant.summary),
            "trainings": contestant.trainings,
            "parameters": contestant.parameters,
            "core_parameters": contestant.core_parameters,
            "held_out_accuracy": contestant.held_out_accuracy,
            "held_out_at_changes": contestant.held_out_at_changes,
            "training_seconds": contestant.training_seconds,
        }
        for contestant in contestants
    ]
    write_atomically(folder / "results.json", (json.dumps(results, indent=2) + "\n").encode())


def draw_figure(path: Path, contestants: Sequence[Contestant]) -> None:
    """Returns on every track with mean and interval; beside it, where drivers were trained by DAgger, their rounds."""
    trained = [contestant for contestant in contestants if contestant.history]
    figure = Figure(figsize=(10 if trained else 5.5, 4))  # not pyplot's: a notebook keeps its backend
    axes = figure.subplots(1, 2 if trained else 1, squeeze=False)
    colors = {c.summary.driver: f"C{i}" for i, c in enumerate(contestants)}
    _draw_returns(axes[0, 0], contestants, colors)
    if trained:
        _draw_rounds(axes[0, 1], trained, colors)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def draw_leaderboard(path: Path, contestants: Sequence[Contestant]) -> None:
    """A line for each contestant, the first on top: returns of all laps, means of the trainings, mean and interval, and
    accuracies."""
    figure = Figure(figsize=(11, 1.6 + 0.27 * len(contestants)))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
    for line, contestant in enumerate(contestants):
        summary, returns = contestant.summary, [row.episode_return for row in contestant.evaluation.rows]
        interval, color = summary.return_interval, "C1" if contestant.trainings is None else "C0"
        left.scatter(returns, np.full(len(returns), line), s=14, alpha=0.35, color=color, linewidths=0)
        means = summary.training_returns if contestant.trainings else []
        left.plot(means, [line] * len(means), "|", ms=11, mew=1.5, color="C3", zorder=4)
        error = [[interval.mean - interval.low], [interval.high - interval.mean]]
        left.errorbar(interval.mean, line, xerr=error, fmt="D", ms=5, color=color, mec="black", capsize=3, zorder=3)
        for share, mark, fill in (
            (contestant.held_out_accuracy, "o", "C0"), (contestant.held_out_at_changes, "^", "C2"),
            (summary.agreement, "o", "white"),
        ):  # fmt: skip
            if share is not None:
                right.plot(100 * share, line, mark, ms=5, color="C2" if mark == "^" else "C0", markerfacecolor=fill)
    left.axvline(GOOD_LAP, color="grey", linewidth=0.8, linestyle="--")
    left.set_yticks(range(len(contestants)), [contestant.summary.driver for contestant in contestants])
    left.set_ylim(len(contestants) - 0.4, -0.6)
    left.set_xlabel("return of a lap: all laps, each training's mean (|), mean and 95 % interval")
    right.set_xlabel("actions equal to the expert's, %")
    for label, mark, color, fill in (
        ("held-out tracks", "o", "C0", "C0"), ("held-out, where the action changes", "^", "C2", "C2"),
        ("on its own states", "o", "C0", "white"),
    ):  # fmt: skip
        right.plot([], [], mark, ms=5, color=color, markerfacecolor=fill, label=label)
    right.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, columnspacing=1)
    for axis in (left, right):
        axis.grid(axis="y", color="0.92")
        axis.set_axisbelow(True)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def _draw_returns(axis: Any, contestants: Sequence[Contestant], colors: dict[str, str]) -> None:
    for i, contestant in enumerate(contestants):
        returns = [row.episode_return for row in contestant.evaluation.rows]
        interval = contestant.summary.return_interval
        color = colors[contestant.summary.driver]
        axis.scatter(i + np.linspace(-0.15, 0.15, len(returns)), returns, s=22, alpha=0.5, color=color, linewidths=0)
        error = [[interval.mean - interval.low], [interval.high - interval.mean]]
        axis.errorbar(i, interval.mean, error, fmt="D", color=color, markeredgecolor="black", capsize=5, zorder=3)
        axis.annotate(f"{interval.mean:.0f}", (i + 0.2, interval.mean), va="center", fontsize=9)
    axis.axhline(GOOD_LAP, color="grey", linewidth=0.8, linestyle="--")
    axis.set_xticks(range(len(contestants)), [contestant.summary.driver for contestant in contestants])
    axis.set_xlim(-0.5, len(contestants) - 0.3)
    axis.set_ylabel("return of a lap")
    axis.set_title("Closed loop: every track, mean, 95 % interval", fontsize=10)


def _draw_rounds(axis: Any, trained: Sequence[Contestant], colors: dict[str, str]) -> None:
    for contestant in trained:
        name = contestant.summary.driver
        frames = [row["frames"] / 1000 for row in contestant.history]
        returns = np.array([row["returns"] for row in contestant.history])  # (rounds, tracks)
        axis.plot(frames, returns, ".", color=colors[name], alpha=0.4, markersize=6, markeredgewidth=0)
        axis.plot(frames, returns.mean(axis=1), "o-", color=colors[name], label=f"{name}, mean")
    axis.axhline(GOOD_LAP, color="grey", linewidth=0.8, linestyle="--")
    axis.set_xlabel("labelled frames, thousands")
    axis.set_ylabel("return of a lap")
    axis.set_title("DAgger: validation tracks after every round", fontsize=10)
    axis.legend(fontsize=8, loc="lower right")
