"""A hint for a name that was mistyped."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `Did you mean 'lstm'?` with a leading space, or an empty string where no known name is close.

    Args:
        name: The unknown name.
        known: The names that exist.
    """
    close = get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
