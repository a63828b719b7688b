"""Drivers side by side: the columns of a comparison, in a terminal, in Markdown, as JSON and in a page."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nac_drive.evaluation import metrics
from nac_drive.evaluation.evaluate import Evaluation
from nac_drive.evaluation.metric import EMPTY, TableColumn, number
from nac_drive.evaluation.statistics import Summary
from nac_drive.experiments.table import Table
from nac_drive.markdown import markdown_table
from nac_drive.storage.names import markdown
from nac_drive.storage.write import write_atomically


@dataclass(frozen=True)
class RankedDriver:
    """One driver of a comparison: its evaluation and, if it was trained here, its training."""

    evaluation: Evaluation
    runs: int | None = None
    """Runs, each from another seed; the evaluation holds the episodes of all."""
    parameters: int | None = None
    core_parameters: int | None = None
    neurons: int | None = None
    """Neurons and synapses of the core, see `Core`."""
    synapses: int | None = None
    has_memory: bool | None = None
    """Whether the core carries a state from frame to frame."""
    validation_accuracy: float | None = None
    validation_at_changes: float | None = None
    learning_rate: float | None = None
    """Adam's rate of the core in its runs."""
    training_seconds: float | None = None
    """Mean over the runs."""
    histories: tuple[tuple[dict[str, Any], ...], ...] = ()
    """Rows of metrics.jsonl of every run."""

    @property
    def summary(self) -> Summary:
        """Name of the driver, and its numbers."""
        return self.evaluation.summary


def _each(returns: Sequence[float]) -> str:
    return " ".join(f"{value:z.0f}" for value in returns) if len(returns) > 1 else EMPTY


def _count(value: int | None) -> str:
    return EMPTY if value is None else f"{value:,}"


DRIVER_COLUMN = TableColumn("driver", lambda driver: driver.summary.driver, "Name of the driver.")

TRAINING_COLUMNS = (
    TableColumn(
        "validation %", lambda driver: number(driver.validation_accuracy, 1, 100),
        "Accuracy on the validation tracks of the dataset: percentage of frames with the expert's action.",
    ),
    TableColumn(
        "changes %", lambda driver: number(driver.validation_at_changes, 1, 100),
        "The same accuracy where the expert's action changes; discrete control only.",
    ),
    TableColumn(
        "neurons", lambda driver: _count(driver.neurons),
        "Number of neurons of the core: units of its recurrent state; of NAC the units of its circuits in all heads.",
    ),
    TableColumn(
        "synapses", lambda driver: _count(driver.synapses),
        "Number of synapses of the core: weights from an input or a neuron to a neuron or to one of its gates.",
    ),
    TableColumn("core", lambda driver: _count(driver.core_parameters), "Number of weights of the core."),
    TableColumn("parameters", lambda driver: _count(driver.parameters), "Number of weights of the whole driver."),
    TableColumn(
        "each run", lambda driver: _each(driver.summary.run_returns if driver.runs else []),
        "Mean return of each run, one run per seed.",
    ),
    TableColumn(
        "rate", lambda driver: EMPTY if driver.learning_rate is None else f"{driver.learning_rate:g}",
        "Adam's learning rate of the core.",
    ),
    TableColumn(
        "trained s", lambda driver: number(driver.training_seconds, 0),
        "Mean training time of the runs in seconds, without validation and features.",
    ),
)  # fmt: skip
"""Columns about the training of a driver."""


def columns() -> list[TableColumn]:
    """Return all columns: the driver, all metrics (see METRICS), and its training."""
    measured = [
        replace(column, cell=lambda driver, of=column.cell: of(driver.evaluation)) for column in metrics.columns()
    ]
    return [DRIVER_COLUMN, *measured, *TRAINING_COLUMNS]


SHORT = (
    "driver", "return ± sd", "min", "vs baseline [95 %]", "crashes/episode", "agreement %", "steering error", "squared",
    "validation %", "parameters",
)  # fmt: skip
"""Columns of a comparison that fit into a terminal."""


def leaderboard(drivers: Sequence[RankedDriver], headings: Iterable[str] | None = None) -> Table:
    """Return the table of some drivers, without the columns that nothing fills.

    Args:
        drivers: The lines.
        headings: The columns; all by default.
    """
    chosen = None if headings is None else set(headings)
    return Table.of(
        [column for column in columns() if chosen is None or column.heading in chosen], drivers, legend(drivers)
    )


def legend(drivers: Sequence[RankedDriver]) -> str:
    """Return one line that explains the deviation and the baseline."""
    line = "Return: mean ± standard deviation over episodes."
    baselines = {driver.summary.versus for driver in drivers if driver.summary.versus}
    if baselines:
        line += f" Baseline: {', '.join(sorted(baselines))}, on the same tracks."
    if stars := [driver.evaluation.verdict for driver in drivers if driver.evaluation.verdict is not None]:
        family = stars[0].comparisons
        correction = f" with Holm's correction for {family} comparisons" if family > 1 else ""
        line += f" *: a difference{correction}." if any(verdict.apart for verdict in stars) else ""
    return line


def verdicts(drivers: Sequence[RankedDriver]) -> list[str]:
    """Return one sentence for each compared driver."""
    return [driver.evaluation.verdict.sentence for driver in drivers if driver.evaluation.verdict]


def training_columns_table() -> str:
    """Return the columns about training in Markdown, as docs/metrics.md shows them."""
    rows = [(column.heading, column.doc) for column in TRAINING_COLUMNS]
    return markdown_table(("column", "meaning"), rows, "ll") + "\n"


def save_results(folder: str | os.PathLike[str], drivers: Sequence[RankedDriver]) -> None:
    """Write table.md and results.json.

    Args:
        folder: An existing folder.
        drivers: The lines of the table.
    """
    folder, table = Path(folder), leaderboard(drivers)
    parts = [table.markdown(), markdown(table.legend), *map(markdown, verdicts(drivers))]
    write_atomically(folder / "table.md", ("\n\n".join(parts) + "\n").encode())
    trained = (
        "runs", "parameters", "core_parameters", "neurons", "synapses", "validation_accuracy", "validation_at_changes",
        "learning_rate", "training_seconds",
    )  # fmt: skip
    results = [
        {**driver.evaluation.to_dict(), **{name: getattr(driver, name) for name in trained}} for driver in drivers
    ]  # fmt: skip
    write_atomically(folder / "results.json", (json.dumps(results, indent=2) + "\n").encode())
