"""Progress of a command: bars in a terminal, lines in a log, JSON for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Literal

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from nac_drive.events import Event, Progress
from nac_drive.storage.names import shown

ProgressMode = Literal["auto", "json"]
"""auto: bars or lines; json: a line of JSON for every event, on stderr."""

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_OF_SPEED = 3600.0
"""The remaining time follows from the mean speed of the last hour, so that it includes validations."""


@contextmanager
def show_progress(console: Console, mode: ProgressMode = "auto") -> Iterator[Progress]:
    """Show events while the `with` block runs.

    Args:
        console: Bars are drawn in a terminal, lines are printed elsewhere.
        mode: See `ProgressMode`.

    Yields:
        The function to call with events.
    """
    if console.quiet:
        yield lambda event: None
    elif mode == "json":
        yield _as_json
    elif console.is_terminal:
        columns = (
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}", markup=False),
        )  # fmt: skip
        with Bars(*columns, console=console, speed_estimate_period=_SECONDS_OF_SPEED) as bars:
            yield _Bars(bars)
    else:
        lines = _Lines(console)
        yield lines
        lines.end()


def print_sentences(console: Console, sentences: Iterable[str]) -> None:
    """Print results below a table, one sentence a paragraph."""
    for sentence in sentences:
        console.print(shown(sentence), highlight=False, markup=False, soft_wrap=True)


def _as_json(event: Event) -> None:
    print(json.dumps(asdict(event)), file=sys.stderr, flush=True)


class _Bars:
    """A bar for each job. The bar of a job inside of another one, such as a validation, goes when it ends."""

    def __init__(self, bars: Bars):
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}
        self._unfinished: dict[str, None] = {}

    def __call__(self, event: Event) -> None:
        job, note = shown(event.job), shown(event.note)
        if not event.total:
            self._bars.console.print(f"{job}: {note}", highlight=False, soft_wrap=True)
            return
        inside = any(other != job for other in self._unfinished)
        if job not in self._unfinished:  # the first event, or another run of the job
            if job in self._tasks:
                self._bars.remove_task(self._tasks.pop(job))
            self._tasks[job] = self._bars.add_task(job, total=event.total, note="")
            self._unfinished[job] = None
        task = self._tasks[job]
        self._bars.update(task, completed=event.done, total=event.total)
        if note:  # the last one stays
            self._bars.update(task, note=note)
        if event.done >= event.total:
            del self._unfinished[job]
            if inside:
                self._bars.remove_task(self._tasks.pop(job))


@dataclass
class _Job:
    """A job as the lines of a log report it."""

    started: float
    done_at_start: float
    note: str = ""


class _Lines:
    """A line at once, one every ten seconds with the time that is left, and one at the end of a job."""

    def __init__(self, console: Console):
        self._console = console
        self._jobs: dict[str, _Job] = {}
        self._last_line = 0.0

    def __call__(self, event: Event) -> None:
        now, job = time.monotonic(), shown(event.job)
        if not event.total:
            self._print(job, event.note)
            return
        inside = any(other != job for other in self._jobs)
        first = not self._jobs and not self._last_line
        state = self._jobs.setdefault(job, _Job(now, event.done))
        state.note = event.note or state.note
        if event.done >= event.total:
            del self._jobs[job]
            if not inside:
                self._print(job, f"done in {now - state.started:.0f} s", state.note)
        elif first:
            self._print(job, f"{100 * event.done / event.total:.0f} %", state.note)
        elif now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._print(job, self._rate(event, state, now), state.note)

    def _rate(self, event: Event, state: _Job, now: float) -> str:
        """Return how far a job is; the time that is left from what was done since its first event."""
        gone, done = now - state.started, event.done - state.done_at_start
        text = f"{100 * event.done / event.total:.0f} %, {gone:.0f} s gone"
        return f"{text}, about {gone * (event.total - event.done) / done:.0f} s left" if done > 0 else text

    def end(self) -> None:
        """Print a line for every job that did not reach its end."""
        for job, state in self._jobs.items():
            self._print(job, f"done in {time.monotonic() - state.started:.0f} s", state.note)

    def _print(self, job: str, text: str, note: str = "") -> None:
        self._last_line = time.monotonic()
        note = f"  {shown(note)}" if note else ""
        self._console.print(f"{job}: {text}{note}", highlight=False, soft_wrap=True)
