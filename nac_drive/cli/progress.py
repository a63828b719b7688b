"""Progress with the time that is left: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_SECONDS_BETWEEN_LINES = 10.0


class ProgressBar(Protocol):
    """Shows how far one job is."""

    def update(self, done: float, note: str = "") -> None:
        """`done` of the job's total is finished; `note` is a metric worth showing."""
        ...

    def note(self, text: str) -> None:
        """Show `text`; the job is as far as before."""
        ...


@contextmanager
def progress(console: Console, label: str, total: float) -> Iterator[ProgressBar]:
    """A progress bar for the job `label` of `total` steps."""
    if not console.is_terminal:
        lines = _Lines(console, label, total)
        yield lines
        lines.close()
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as bar:
        yield _Bar(bar, label, total)


class _Bar:
    def __init__(self, bar: Progress, label: str, total: float):
        self._bar = bar
        self._task = bar.add_task(label, total=total, note="")

    def update(self, done: float, note: str = "") -> None:
        if note:
            self._bar.update(self._task, completed=done, note=note)
        else:
            self._bar.update(self._task, completed=done)

    def note(self, text: str) -> None:
        self._bar.update(self._task, note=text)


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

    def note(self, text: str) -> None:
        self.update(self.done, text)

    def close(self) -> None:
        self._print(f"done in {time.monotonic() - self.started:.0f} s")

    def _print(self, text: str) -> None:
        note = f"  {self.text}" if self.text else ""
        self.console.print(f"{self.label}: {text}{note}", highlight=False, soft_wrap=True)
