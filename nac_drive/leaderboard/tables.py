"""One comparison as a terminal table, markdown, JSON and a figure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import compress
from pathlib import Path
from typing import Any

from rich.table import Table

from nac_drive.data_collection.files import write_atomically
from nac_drive.evaluation.evaluate import Evaluation
from nac_drive.evaluation.statistics import Interval, Summary


@dataclass(frozen=True)
class Entry:
    """One driver of a comparison: how it drove and, if it was trained here, what the training cost and gave."""

    evaluation: Evaluation
    runs: int | None = None
    """Runs, each from another seed; the evaluation holds the episodes of all."""
    parameters: int | None = None
    core_parameters: int | None = None
    validation_accuracy: float | None = None
    validation_at_changes: float | None = None
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


def _interventions(entry: Entry) -> float | None:
    """None where nobody would have intervened."""
    intervening = entry.evaluation.rows[0].crash_mode == "intervene"
    return entry.summary.interventions_per_episode if intervening else None


COLUMNS: dict[str, Callable[[Entry], str]] = {
    "driver": lambda c: c.summary.driver,
    "return": lambda c: f"{c.summary.return_mean:.0f} ± {c.summary.return_sd:.0f}",
    "min": lambda c: _number(c.summary.return_min, 0),
    ">= 900 %": lambda c: _number(c.summary.solved, 0, 100),
    "vs baseline [95 %]": lambda c: _interval(c.summary.return_difference),
    "completion %": lambda c: _number(c.summary.completion, 1, 100),
    "crashes/episode": lambda c: _number(c.summary.crashes_per_episode, 2),
    "interventions/episode": lambda c: _number(_interventions(c), 2),
    "off road %": lambda c: _number(c.summary.off_road_fraction, 1, 100),
    "driving score": lambda c: _number(c.summary.driving_score, 1),
    "agreement %": lambda c: _number(c.summary.agreement, 1, 100),
    "validation %": lambda c: _number(c.validation_accuracy, 1, 100),
    "changes %": lambda c: _number(c.validation_at_changes, 1, 100),
    "core": lambda c: _EMPTY if c.core_parameters is None else f"{c.core_parameters:,}",
    "parameters": lambda c: _EMPTY if c.parameters is None else f"{c.parameters:,}",
    "ms/act": lambda c: _number(c.summary.latency_ms, 2),
    "each run": lambda c: _each(c.summary.run_returns if c.runs else []),
    "trained s": lambda c: _number(c.training_seconds, 0),
}
"""Heading and cell of every column; the meaning of each stands in docs/metrics.md."""


SHORT = (
    "driver",
    "return",
    "min",
    "vs baseline [95 %]",
    "crashes/episode",
    "agreement %",
    "validation %",
    "parameters",
)
"""Columns of a comparison that fit into a terminal."""


def cells(entries: Sequence[Entry], columns: Iterable[str] = COLUMNS) -> tuple[list[str], list[list[str]]]:
    """Headings and rows, without the columns that no entry fills."""
    rows = [[COLUMNS[name](entry) for name in columns] for entry in entries]
    filled = [any(text != _EMPTY for text in column) for column in zip(*rows, strict=True)]
    return list(compress(columns, filled)), [list(compress(row, filled)) for row in rows]


def terminal_table(entries: Sequence[Entry], title: str, columns: Iterable[str] = COLUMNS) -> Table:
    """The table for a terminal."""
    headings, rows = cells(entries, columns)
    table = Table(title=title)
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table


def markdown_table(entries: Sequence[Entry]) -> str:
    """The table as GitHub markdown."""
    headings, rows = cells(entries)
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def save_results(folder: Path, entries: Sequence[Entry]) -> None:
    """`table.md` and `results.json` in `folder`."""
    write_atomically(folder / "table.md", markdown_table(entries).encode())
    results = [
        {
            **asdict(entry.summary),
            "runs": entry.runs,
            "parameters": entry.parameters,
            "core_parameters": entry.core_parameters,
            "validation_accuracy": entry.validation_accuracy,
            "validation_at_changes": entry.validation_at_changes,
            "training_seconds": entry.training_seconds,
        }
        for entry in entries
    ]
    write_atomically(folder / "results.json", (json.dumps(results, indent=2) + "\n").encode())
