"""Arguments that name one source or several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nac_drive.arguments import value_text
from nac_drive.envs import track_seeds


def one_or_several(name: str, given: Any, kinds: tuple[type, ...], what: str, fix: str = "pass a path") -> list[Any]:
    """Return one source or several as a list.

    Args:
        name: The argument, for errors.
        given: The sources.
        kinds: The types of a source.
        what: The noun for a source, for errors, such as "the folder of a tub".
        fix: The advice for a source of another type.

    Raises:
        ValueError: There is none, or one is of another type.
    """
    alone = isinstance(given, (*kinds, bytes)) or not isinstance(given, Iterable)
    sources = [given] if alone else list(given)
    for source in sources:
        if not isinstance(source, kinds):
            raise ValueError(f"{name} must be {what}, or several, got {value_text(source)}; {fix}.")
    if not sources:
        raise ValueError(f"{name} must name at least one, got none; pass {what}.")
    return sources


def seeds_of(seeds: str | Iterable[int]) -> list[int]:
    """Return the track seeds of an argument `seeds`.

    Args:
        seeds: SPLIT-COUNT, such as `train-20`, a comma list, or the seeds themselves, see `track_seeds`.

    Raises:
        ValueError: As `track_seeds` does.
    """
    try:
        return track_seeds(seeds)  # type: ignore[arg-type]
    except ValueError as error:
        raise ValueError(f"seeds{str(error).removeprefix('tracks')}") from None
