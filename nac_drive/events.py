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
