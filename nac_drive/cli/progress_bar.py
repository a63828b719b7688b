"""Progress with the time that is left: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from nac_drive.storage.names import shown

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_OF_SPEED = 3600.0
"""The remaining time follows from the mean speed of the last hour, so that it includes validations."""


class ProgressBar(Protocol):
    """Shows how far one job is."""

    def update(self, done: float, note: str = "") -> None:
        """Show the state of the job.

        Args:
            done: The finished part of the job's total.
            note: A metric; the last one stays if there is none.
        """
        ...

    def part(self, label: str, total: float) -> ProgressBar:
        """Start a second bar for a part of the job, such as a validation; it ends when all of `total` is done."""
        ...


@contextmanager
def progress(console: Console, label: str, total: float) -> Iterator[ProgressBar]:
    """Show a job while the `with` block runs.

    Args:
        console: A bar is drawn in a terminal, lines are printed elsewhere.
        label: The name of the job.
        total: Its number of steps.

    Yields:
        The bar of the job.
    """
    label = shown(label)
    if not console.is_terminal:
        lines = _Lines(console, label, total)
        yield lines
        lines.close()
        return
    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=console, speed_estimate_period=_SECONDS_OF_SPEED) as bars:
        yield _Bar(bars, label, total)


class _Bar:
    def __init__(self, bars: Progress, label: str, total: float, hide_at_end: bool = False):
        self._bars = bars
        self._total = total
        self._task = bars.add_task(label, total=total, note="")
        self._hide_at_end = hide_at_end

    def update(self, done: float, note: str = "") -> None:
        if note:
            self._bars.update(self._task, completed=done, note=shown(note))
        else:
            self._bars.update(self._task, completed=done)
        if self._hide_at_end and done >= self._total:
            self._bars.remove_task(self._task)

    def part(self, label: str, total: float) -> ProgressBar:
        return _Bar(self._bars, label, total, hide_at_end=True)


@dataclass
class _Lines:
    console: Console
    label: str
    total: float
    started: float = field(default_factory=time.monotonic)
    last_line: float = field(default_factory=time.monotonic)
    done: float = 0.0
    text: str = ""

    def update(self, done: float, note: str = "") -> None:
        self.done, self.text = done, note or self.text
        if time.monotonic() - self.last_line >= _SECONDS_BETWEEN_LINES and 0 < done < self.total:
            self.last_line = time.monotonic()
            elapsed = self.last_line - self.started
            left = elapsed * (self.total - done) / done
            self._print(f"{100 * done / self.total:.0f} %, {elapsed:.0f} s gone, about {left:.0f} s left")

    def part(self, label: str, total: float) -> ProgressBar:
        return _Lines(self.console, f"{self.label}, {label}", total)

    def close(self) -> None:
        self._print(f"done in {time.monotonic() - self.started:.0f} s")

    def _print(self, text: str) -> None:
        note = f"  {shown(self.text)}" if self.text else ""
        self.console.print(f"{self.label}: {text}{note}", highlight=False, soft_wrap=True)
