"""The end of a task that may fail, or die, without costing any other task."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_LONGEST = 500
"""Characters of an error in one line."""


@dataclass(frozen=True)
class TaskOutcome:
    """The end of one task."""

    value: Any = None
    """The result of the work."""
    error: str = ""
    """Its exception in one line, or how its process died; empty for a result."""
    traceback: str = ""
    """The traceback, where the work itself failed."""


def outcome_of(function: Callable[[Any], Any], task: Any) -> TaskOutcome:
    """Call `function(task)`, and return its result or its exception."""
    try:
        return TaskOutcome(function(task))
    except Exception as error:
        return failure(error)


def failure(error: Exception) -> TaskOutcome:
    """Return the end of a task that raised `error`.

    The cause of an error of Ray is the task's own error.
    """
    raised = getattr(error, "cause", None) or error
    line = " ".join(f"{type(raised).__name__}: {raised}".split())
    return TaskOutcome(
        error=line if len(line) <= _LONGEST else f"{line[:_LONGEST]}...",
        traceback="".join(traceback.format_exception(error)),
    )
