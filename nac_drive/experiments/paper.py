"""The form of a measurement that tables of papers need: its tasks, and the columns of its results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np

from nac_drive.experiments.experiment import Map, Row

Whole = Annotated[int, msgspec.Meta(ge=1)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=10)]
"""Types of settings: a number of something, and a learning rate."""

Place = tuple[tuple[str, Any], ...]
"""Coordinates of a task within its entry, for example (("split", "tracks"), ("fold", 0))."""


@dataclass(frozen=True)
class PaperTask:
    """One measurement of one entry."""

    entry: str
    core: str
    core_args: Mapping[str, Any]
    place: Place
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the experiment that are others for this entry."""

    @property
    def coordinates(self) -> Row:
        """Return what decides the result besides the settings of the table; its row begins with them."""
        named = {"entry": self.entry, "core": self.core, "args": dict(self.core_args), "settings": dict(self.settings)}
        return named | dict(self.place)


@dataclass(frozen=True)
class ResultColumn:
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

    def counted(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows that belong here, also those without a value."""
        return [row for row in rows if all(row.get(key) == value for key, value in self.where.items())]

    def values(self, rows: Sequence[Row]) -> np.ndarray:
        """Return the numbers of some rows that belong here, scaled; rows without a value are left out."""
        if self.of is not None:
            numbers = np.array([self.of(rows)] if rows else [], dtype=float)
            return numbers[~np.isnan(numbers)]
        numbers = [row[self.value] for row in self.counted(rows) if row.get(self.value) is not None]
        return self.scale * np.array(numbers, dtype=float)


@dataclass(frozen=True)
class PaperExperiment(ABC):
    """A kind of measurement. Its dataclass fields are the settings of a protocol."""

    device: str = field(default="cpu", kw_only=True)
    """Where networks learn, `cpu` or `cuda`; `reproduce` sets it."""

    alone: ClassVar[bool] = False
    """Whether nothing else may run beside a measurement."""
    repeats: ClassVar[str] = "runs"
    """The noun for the rows that a cell of the page is the mean of."""

    def check(self) -> None:
        """Check what the types of settings do not say.

        Raises:
            ValueError: A setting cannot be measured with.
        """
        return

    def drivers(self) -> dict[str, str]:
        """Return the drivers that measurements read: name and control -> `driver_hash`."""
        return {}

    def prepare(self, folder: Path, each: Map) -> Iterator[str]:
        """Make in `folder` what all tasks need, unless it is there; yields what is ready."""
        return iter(())

    @abstractmethod
    def places(self) -> list[Place]:
        """Return the tasks of every entry, see `PaperTask.place`."""

    @abstractmethod
    def measure(self, folder: Path, task: PaperTask) -> Row:
        """Return the numbers of a task; called in any process, on one thread.

        `self` has the settings of the task's entry, which may differ from the table's (`Entry.settings`).
        """

    @abstractmethod
    def numbers(self, task: PaperTask) -> dict[str, Any]:
        """Return the type of every value of a task's result; one that allows None may also be missing."""

    @abstractmethod
    def columns(self) -> list[ResultColumn]:
        """Return the columns of the page."""

    @abstractmethod
    def describe(self) -> str:
        """Return what was done, in Markdown."""

    def conclude(self, folder: Path, rows: Sequence[Row]) -> str:
        """Return what else the results say, in Markdown; may draw figures into `folder`."""
        return ""


def require_numbers(row: Row, experiment: PaperExperiment, task: PaperTask) -> None:
    """Check that a row has all numbers of a task, and nothing else.

    Raises:
        msgspec.ValidationError: If one is missing, not finite, of another type, or unknown.
    """
    numbers = {name: value for name, value in row.items() if name not in task.coordinates}
    msgspec.convert(numbers, record_of(experiment.numbers(task)))


def record_of(kinds: Mapping[str, Any]) -> Any:
    """Return the type of a dict with these keys and types; a key whose type allows None may be missing."""
    fields: list[Any] = []
    for index, (name, kind) in enumerate(kinds.items()):  # names such as return_gap:3 are no identifiers
        default = {"default": None} if _is_optional(kind) else {}
        fields.append((f"value_{index}", kind, msgspec.field(name=name, **default)))
    return msgspec.defstruct("Numbers", fields, kw_only=True, forbid_unknown_fields=True)


def list_of(kind: Any, length: int) -> Any:
    """Return the type of a list of so many values."""
    return Annotated[list[kind], msgspec.Meta(min_length=length, max_length=length)]


def _is_optional(kind: Any) -> bool:
    try:
        msgspec.convert(None, kind)
    except msgspec.ValidationError:
        return False
    return True
