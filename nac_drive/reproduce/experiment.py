"""The form of an experiment: tasks that processes share, and the columns of its results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

Row = dict[str, Any]
"""A result: `entry`, the paper's name; the keys of the task; and numbers."""
Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""`map`, perhaps over processes."""
Place = tuple[tuple[str, Any], ...]
"""What tells a task from the others of its entry, such as (("split", "tracks"), ("fold", 0))."""


@dataclass(frozen=True)
class Task:
    """One measurement of one entry."""

    entry: str
    core: str
    core_args: Mapping[str, Any]
    place: Place

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the key by which a finished row is recognised."""
        return (self.entry, *self.place)


def key_of(row: Row, task: Task) -> tuple[Any, ...]:
    """Return the `Task.key` that a row of the same experiment has."""
    return (row["entry"], *((name, row.get(name)) for name, _ in task.place))


@dataclass(frozen=True)
class Column:
    """A column of the page."""

    key: str
    """Its name in a protocol's `printed`."""
    heading: str
    value: str
    """The number of a row that is aggregated."""
    where: Mapping[str, Any]
    """Only rows with these values count."""
    digits: int = 1
    scale: float = 1.0
    of: Callable[[Sequence[Row]], float] | None = None
    """Computes one number of all rows of an entry, in place of `value`."""

    def values(self, rows: Sequence[Row]) -> np.ndarray:
        """Return the numbers of some rows that belong here, scaled."""
        if self.of is not None:
            return np.array([self.of(rows)]) if rows else np.empty(0)
        mine = [row for row in rows if all(row.get(key) == value for key, value in self.where.items())]
        return self.scale * np.array([row[self.value] for row in mine if row.get(self.value) is not None], dtype=float)


class Experiment(ABC):
    """A kind of measurement. Its dataclass fields are the settings of a protocol."""

    alone: ClassVar[bool] = False
    """Whether nothing else may run beside a measurement."""

    def prepare(self, folder: Path, each: Each) -> Iterator[str]:
        """Make in `folder` what all tasks need, unless it is there; yields what is ready."""
        return iter(())

    @abstractmethod
    def places(self) -> list[Place]:
        """Return the tasks of every entry, see `Task.place`."""

    @abstractmethod
    def measure(self, folder: Path, task: Task) -> Row:
        """Return the numbers of a task; called in any process, on one thread.

        `self` has the settings of the task's entry, which may differ from those of the table (`Entry.settings`).
        """

    @abstractmethod
    def columns(self) -> list[Column]:
        """Return the columns of the page."""

    @abstractmethod
    def describe(self) -> str:
        """Return what was done, in Markdown."""

    def conclude(self, folder: Path, rows: Sequence[Row]) -> str:
        """Return what else the results say, in Markdown; may draw figures into `folder`."""
        return ""
