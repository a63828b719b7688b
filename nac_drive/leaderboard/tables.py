"""One comparison as a terminal table, markdown and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

from rich.table import Table

from nac_drive.evaluation import metrics
from nac_drive.evaluation.evaluate import Evaluation
from nac_drive.evaluation.metrics import EMPTY, Column, number
from nac_drive.evaluation.statistics import Summary
from nac_drive.storage.names import markdown
from nac_drive.storage.write import write_atomically


@dataclass(frozen=True)
class Entry:
    """One driver of a comparison: its evaluation and, if it was trained here, its training."""

    evaluation: Evaluation
    runs: int | None = None
    """Runs, each from another seed; the evaluation holds the episodes of all."""
    parameters: int | None = None
    core_parameters: int | None = None
    neurons: int | None = None
    """Neurons and synapses of the core, see `Core.neurons`."""
    synapses: int | None = None
    validation_accuracy: float | None = None
    validation_at_changes: float | None = None
    training_seconds: float | None = None
    """Mean over the runs."""
    history: tuple[dict[str, Any], ...] = ()
    """Rows of the run's metrics.jsonl."""

    @property
    def summary(self) -> Summary:
        """Name of the driver in its evaluation."""
        return self.evaluation.summary


def _each(returns: Sequence[float]) -> str:
    return " ".join(f"{value:.0f}" for value in returns) if len(returns) > 1 else EMPTY


def _count(value: int | None) -> str:
    return EMPTY if value is None else f"{value:,}"


DRIVER_COLUMN = Column("driver", lambda entry: entry.summary.driver, "Name of the driver.")

TRAINING_COLUMNS = (
    Column(
        "validation %", lambda entry: number(entry.validation_accuracy, 1, 100),
        "Accuracy on the validation tracks of the dataset: percentage of frames with the expert's action.",
    ),
    Column(
        "changes %", lambda entry: number(entry.validation_at_changes, 1, 100),
        "The same accuracy where the expert's action changes.",
    ),
    Column(
        "neurons", lambda entry: _count(entry.neurons),
        "Number of neurons of the core: units of its recurrent state; of NAC those of its circuits in all heads.",
    ),
    Column(
        "synapses", lambda entry: _count(entry.synapses),
        "Number of synapses of the core: weights from an input or a neuron to a neuron or to one of its gates.",
    ),
    Column("core", lambda entry: _count(entry.core_parameters), "Number of weights of the core."),
    Column("parameters", lambda entry: _count(entry.parameters), "Number of weights of the whole driver."),
    Column(
        "each run", lambda entry: _each(entry.summary.run_returns if entry.runs else []),
        "Mean return of each run, one run per seed.",
    ),
    Column(
        "trained s", lambda entry: number(entry.training_seconds, 0),
        "Mean training time of the runs in seconds, without validation and features.",
    ),
)  # fmt: skip
"""Columns about the training of a driver."""


def columns() -> dict[str, Column]:
    """All columns by their headings: the driver, all metrics (see METRICS), and its training. Cells are of entries."""
    measured = [replace(each, cell=lambda entry, of=each.cell: of(entry.evaluation)) for each in metrics.columns()]
    return {each.heading: each for each in (DRIVER_COLUMN, *measured, *TRAINING_COLUMNS)}


SHORT = (
    "driver", "return ± sd", "min", "vs baseline [95 %]", "crashes/episode", "agreement %", "validation %",
    "parameters",
)  # fmt: skip
"""Columns of a comparison that fit into a terminal."""


def cells(entries: Sequence[Entry], headings: Iterable[str] | None = None) -> tuple[list[str], list[list[str]]]:
    """The texts of a table.

    Args:
        entries: The rows.
        headings: The columns; all by default.

    Returns:
        Headings and rows, without the columns that no entry fills.
    """
    every = columns()
    headings = list(every if headings is None else headings)
    rows = [[every[heading].cell(entry) for heading in headings] for entry in entries]
    filled = [any(text != EMPTY for text in column) for column in zip(*rows, strict=True)]
    return list(compress(headings, filled)), [list(compress(row, filled)) for row in rows]


def legend(entries: Sequence[Entry]) -> str:
    """One line that explains the deviation and the baseline."""
    line = "Return: mean ± standard deviation over episodes."
    baselines = {entry.summary.versus for entry in entries if entry.summary.versus}
    if baselines:
        line += f" Baseline: {', '.join(sorted(baselines))}, on the same tracks."
    return line


def terminal_table(entries: Sequence[Entry], title: str, headings: Iterable[str] | None = None) -> Table:
    """The table for a terminal, with its legend; arguments as for `cells`."""
    names, rows = cells(entries, headings)
    table = Table(title=title, caption=legend(entries))
    for i, heading in enumerate(names):
        table.add_column(heading, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table


def markdown_table(entries: Sequence[Entry]) -> str:
    """The table as GitHub markdown."""
    headings, rows = cells(entries)
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)]]
    lines += [[markdown(driver), *others] for driver, *others in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def training_columns_table() -> str:
    """The columns about training as a GitHub markdown table, as docs/metrics.md shows it."""
    lines = ["| column | meaning |", "| --- | --- |"]
    lines += [f"| {column.heading} | {column.doc} |" for column in TRAINING_COLUMNS]
    return "\n".join(lines) + "\n"


def save_results(folder: str | os.PathLike[str], entries: Sequence[Entry]) -> None:
    """Write `table.md` and `results.json`.

    Args:
        folder: An existing folder.
        entries: The drivers, in the order of the table.
    """
    folder = Path(folder)
    write_atomically(folder / "table.md", f"{markdown_table(entries)}\n{markdown(legend(entries))}\n".encode())
    results = [
        {
            **entry.summary.to_dict(),
            "runs": entry.runs,
            "parameters": entry.parameters,
            "core_parameters": entry.core_parameters,
            "neurons": entry.neurons,
            "synapses": entry.synapses,
            "validation_accuracy": entry.validation_accuracy,
            "validation_at_changes": entry.validation_at_changes,
            "training_seconds": entry.training_seconds,
        }
        for entry in entries
    ]
    write_atomically(folder / "results.json", (json.dumps(results, indent=2) + "\n").encode())
