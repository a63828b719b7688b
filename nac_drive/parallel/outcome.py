"""The end of a task that may fail, or die, without costing any other task."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TaskOutcome:
    """The end of one task."""

    value: Any = None
    """The result of the work."""
    error: str = ""
    """The last line of its traceback, or how its process died; empty for a result."""
    traceback: str = ""
    """The traceback, where the work itself failed."""


def outcome_of(function: Callable[[Any], Any], task: Any) -> TaskOutcome:
    """Call `function(task)`, and return its result or its exception."""
    try:
        return TaskOutcome(function(task))
    except Exception:
        text = traceback.format_exc()
        return TaskOutcome(error=text.splitlines()[-1], traceback=text)
