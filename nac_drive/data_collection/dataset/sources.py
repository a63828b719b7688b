"""Arguments that name one source or several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def one_or_several(name: str, given: Any, kinds: tuple[type, ...], what: str) -> list[Any]:
    """Return one source or several as a list.

    Args:
        name: The argument, for errors.
        given: The sources.
        kinds: The types of a source.
        what: The noun for a source, for errors, such as "the folder of a tub".

    Raises:
        ValueError: There is none, or one is of another type.
    """
    alone = isinstance(given, (*kinds, bytes)) or not isinstance(given, Iterable)
    sources = [given] if alone else list(given)
    for source in sources:
        if not isinstance(source, kinds):
            raise ValueError(f"{name} must be {what}, or several, got {source!r}; pass a path.")
    if not sources:
        raise ValueError(f"{name} must name at least one, got none; pass {what}.")
    return sources
