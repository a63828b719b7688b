"""Progress of long work: one event for every kind of it.

Library code names its job and writes its note. A subscriber draws bars, prints lines or counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """One step of a job."""

    job: str
    """Name of the job, such as "round 2: training"."""
    done: float
    """The finished part of `total`."""
    total: float
    """The whole job; 0 for a message, which has no length."""
    note: str = ""
    """The latest result, such as "loss 0.312"."""


Progress = Callable[[Event], None]
"""Called with every event."""


def silent(event: Event) -> None:
    """Ignore an event."""


def message(job: str, note: str) -> Event:
    """Return an event without a length, such as the result of a whole round."""
    return Event(job, 0, 0, note)


def counting(progress: Progress, job: str, total: int, done: int = 0) -> Callable[[str], None]:
    """Report the start of a job of equal steps.

    Args:
        progress: Called with the events.
        job: The job's name.
        total: Number of steps; 0 if it is not known: every step is a message then.
        done: Steps that were finished before.

    Returns:
        A function that reports one more finished step; its argument is the note.
    """
    finished = done

    def one_more(note: str) -> None:
        nonlocal finished
        finished += 1
        progress(Event(job, finished, total, note))

    if total:
        progress(Event(job, done, total))
    return one_more


def one_of(progress: Progress, job: str, done: int, total: int) -> Progress:
    """Return a progress for one of `total` equal parts of a job.

    Args:
        progress: Called with the events of the job.
        job: The job's name.
        done: Parts that are finished.
        total: Number of parts.
    """
    return lambda event: progress(Event(job, done + event.done / event.total, total, event.note))
