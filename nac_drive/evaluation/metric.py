"""One metric of driving: its value, its aggregates, its columns."""

from __future__ import annotations

import copyreg
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from nac_drive.evaluation.trace import EpisodeTrace
from nac_drive.markdown import number_text
from nac_drive.plugins import place_of
from nac_drive.storage.read import FRACTION, NOT_NEGATIVE, one_line

Count = Annotated[int, Meta(ge=0, le=10**9)]
Number = Annotated[int, Meta(ge=-(10**9), le=10**9)] | Annotated[float, Meta(ge=-1e9, le=1e9)]
Fraction = Annotated[int, FRACTION] | Annotated[float, FRACTION]
NotNegative = Annotated[int, NOT_NEGATIVE] | Annotated[float, NOT_NEGATIVE]
"""Types of the values of an episode. JSON holds no NaN."""


def _remade(limits: Meta) -> tuple[Callable[..., Meta], tuple[()]]:
    """Return how to make limits again.

    msgspec cannot pickle them, and a metric goes to other processes.
    """
    names = inspect.signature(Meta).parameters
    return partial(Meta, **{name: value for name in names if (value := getattr(limits, name)) is not None}), ()


copyreg.pickle(Meta, _remade)

EMPTY = "-"
"""A cell without a value."""


@dataclass(frozen=True)
class TableColumn:
    """A column of the tables."""

    heading: str
    cell: Callable[[Any], str]
    """Text of a cell from an `Evaluation`, or from an `Entry` for TRAINING_COLUMNS; "-" without a value."""
    doc: str = ""
    """Meaning in one sentence."""


@dataclass(frozen=True)
class Aggregate:
    """A number over all episodes of a driver."""

    name: str
    """Key of summary.json."""
    over: Callable[[Sequence[Any]], Any]
    """Function of the values of all episodes."""
    doc: str
    """Name of the aggregate, such as mean."""
    column: TableColumn | None = None


@dataclass(frozen=True)
class Metric:
    """One thing that is measured of an episode."""

    name: str
    """Key of rows.jsonl."""
    per_episode: Callable[[EpisodeTrace], Any]
    """The value of an episode, JSON-able; None where it cannot be measured."""
    aggregate: tuple[Aggregate, ...] = ()
    """Numbers over all episodes."""
    unit: str = ""
    doc: str = ""
    """The metric in one sentence."""
    difference: str | None = None
    """Key of summary.json for the paired difference from the baseline."""
    difference_column: TableColumn | None = None
    kind: Any = Number
    """Type of the value, which rows that are read must have; `Number | None` for one that may be None."""
    needs: tuple[str, ...] = ()
    """Keys of `info` that it reads. The value is None in an environment without them."""

    def of(self, trace: EpisodeTrace) -> Any:
        """Return the value of an episode.

        None where `info` does not report what it needs.

        Raises:
            ValueError: The function fails, or its value is not of `kind`.
        """
        reported = all(
            key in trace.episode.outcome or all(key in step.outcome for step in trace.steps) for key in self.needs
        )
        if not reported:
            return None
        where = f"metric {self.name!r}, track {trace.episode.seed}: its function"
        try:
            value = self.per_episode(trace)
        except Exception as error:
            raise ValueError(f"{where} failed: {place_of(error)}{type(error).__name__}: {one_line(error)}.") from error
        value = value.item() if isinstance(value, np.generic) else value
        try:
            msgspec.convert(value, self.kind)
        except msgspec.ValidationError as error:
            raise ValueError(f"{where} returned {value!r}: {error}; return another value, or state its kind.") from None
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{where} returned {value}; return None where it cannot be measured.")
        return value

    @property
    def columns(self) -> list[TableColumn]:
        """Its columns in the tables."""
        columns = [aggregate.column for aggregate in self.aggregate] + [self.difference_column]
        return [column for column in columns if column]


# Aggregates


def mean(values: Sequence[Any]) -> float | None:
    """Return the mean of the values that are not None.

    None without any.
    """
    measured = [value for value in values if value is not None]
    return float(np.mean(measured)) if measured else None


def sample_sd(values: Sequence[float]) -> float | None:
    """Sample standard deviation; None for one value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def mean_of(name: str, column: TableColumn | None = None) -> tuple[Aggregate, ...]:
    """The mean alone, under the key `name`."""
    return (Aggregate(name, mean, "mean", column),)


# Cells


def number(value: float | None, digits: int, scale: float = 1.0) -> str:
    """A number as text; "-" for None."""
    return EMPTY if value is None else number_text(scale * value, f".{digits}f")


def _cell(evaluation: Any, key: str, digits: int, scale: float) -> str:
    return number(evaluation.summary.metrics[key], digits, scale)


def number_column(heading: str, key: str, digits: int, scale: float = 1.0, doc: str = "") -> TableColumn:
    """A column of the number `key` of the summary.

    Args:
        heading: Heading of the column.
        key: Key of summary.json.
        digits: Decimals.
        scale: Factor, such as 100 for per cent.
        doc: One sentence; the one of the metric without.

    Returns:
        The column.
    """
    return TableColumn(heading, partial(_cell, key=key, digits=digits, scale=scale), doc)
