"""One comparison as a terminal table, markdown, JSON and a figure."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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
    parameters: int | None = None
    held_out_accuracy: float | None = None
    training_seconds: float | None = None
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


COLUMNS: dict[str, Callable[[Contestant], str]] = {
    "driver": lambda c: c.summary.driver,
    "return": lambda c: f"{c.summary.return_mean:.0f} ± {c.summary.return_sd:.0f}",
    "min": lambda c: _number(c.summary.return_min, 0),
    "vs baseline [95 %]": lambda c: _interval(c.summary.return_difference),
    "completion %": lambda c: _number(c.summary.completion, 1, 100),
    "crashes/lap": lambda c: _number(c.summary.crashes_per_lap, 2),
    "interventions/lap": lambda c: _number(c.summary.interventions_per_lap, 2),
    "off road %": lambda c: _number(c.summary.off_road_share, 1, 100),
    "driving score": lambda c: _number(c.summary.driving_score, 1),
    "agreement %": lambda c: _number(c.summary.agreement, 1, 100),
    "held-out %": lambda c: _number(c.held_out_accuracy, 1, 100),
    "parameters": lambda c: _EMPTY if c.parameters is None else f"{c.parameters:,}",
    "ms/act": lambda c: _number(c.summary.latency_ms, 2),
    "trained s": lambda c: _number(c.training_seconds, 0),
}
"""Heading and cell of every column; the meaning of each stands in docs/metrics.md."""


def cells(contestants: Sequence[Contestant]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows, without the columns that no contestant fills."""
    rows = [[cell(contestant) for cell in COLUMNS.values()] for contestant in contestants]
    filled = [any(row[i] != _EMPTY for row in rows) for i in range(len(COLUMNS))]
    return [name for name, keep in zip(COLUMNS, filled, strict=True) if keep], [
        [text for text, keep in zip(row, filled, strict=True) if keep] for row in rows
    ]


def terminal_table(contestants: Sequence[Contestant], title: str) -> Table:
    """The table for a terminal."""
    headings, rows = cells(contestants)
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
            "parameters": contestant.parameters,
            "held_out_accuracy": contestant.held_out_accuracy,
            "training_seconds": contestant.training_seconds,
        }
        for contestant in contestants
    ]
    write_atomically(folder / "results.json", (json.dumps(results, indent=2) + "\n").encode())


def draw_figure(path: Path, contestants: Sequence[Contestant]) -> None:
    """Returns on every track with mean and interval; beside it, where drivers were trained, their learning curves."""
    trained = [contestant for contestant in contestants if contestant.history]
    figure = Figure(figsize=(10 if trained else 5.5, 4))  # not pyplot's: a notebook keeps its backend
    axes = figure.subplots(1, 2 if trained else 1, squeeze=False)
    colors = {c.summary.driver: f"C{i}" for i, c in enumerate(contestants)}
    _draw_returns(axes[0, 0], contestants, colors)
    if trained:
        in_rounds = "laps" in trained[0].history[0]
        (_draw_rounds if in_rounds else _draw_histories)(axes[0, 1], trained, colors)
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


def _draw_histories(axis: Any, trained: Sequence[Contestant], colors: dict[str, str]) -> None:
    for contestant in trained:
        name = contestant.summary.driver
        epochs = [row["step"] for row in contestant.history]
        axis.plot(epochs, [row.get("accuracy") or np.nan for row in contestant.history], color=colors[name],
                  linewidth=1, alpha=0.5, linestyle=":", label=f"{name}, training")  # fmt: skip
        held_out = [row["held_out"]["accuracy"] if row.get("held_out") else np.nan for row in contestant.history]
        axis.plot(epochs, held_out, color=colors[name], label=f"{name}, held-out tracks")
    axis.set_xlabel("epoch")
    axis.set_ylabel("share of frames with the expert's action")
    axis.set_title("Cloning", fontsize=10)
    axis.legend(fontsize=8, loc="lower right")


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
