"""Files of rows as no command writes them: damaged lines, lines twice, of nothing, in another order, cut off."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

NO_VALUE: list[Any] = [[], {}, [None], {"a": 1}, 1e300, -1e300]
"""Values that no key of a row may have."""
_NO_ROWS = ["{}", "[]", "null", "3", '"x"', "{", "\x00", "[" * 5000, '{"seed": NaN}']


def forged(seed: int, lines: Sequence[str], others: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of a file after one or two forgeries, and perhaps a kill in the middle of the last one.

    Args:
        seed: Seed of the forgeries.
        lines: The lines of a good file, with their ends.
        others: Keys and values that make any row one of something else.
    """
    rng, forgery = Random(seed), list(lines)
    for _ in range(rng.choice([1, 1, 2])):
        if forgery:
            _forge(rng, forgery, others)
    if forgery and rng.random() < 0.3:
        forgery[-1] = forgery[-1][: rng.randrange(len(forgery[-1]))]
    return forgery


def _forge(rng: Random, lines: list[str], others: Sequence[dict[str, Any]]) -> None:
    at = rng.randrange(len(lines))
    whole_lines: list[Callable[[], Any]] = [
        lambda: lines.insert(rng.randrange(len(lines)), lines[at]), lambda: lines.pop(at), lambda: rng.shuffle(lines),
        lambda: lines.insert(at, rng.choice(_NO_ROWS) + "\n"),
    ]  # fmt: skip
    row = _row(lines[at])
    if row is None or rng.random() < 0.5:
        rng.choice(whole_lines)()
        return
    key = rng.choice(sorted(row))
    values: list[Callable[[], Any]] = [
        lambda: row.pop(key), lambda: row.update({key: rng.choice(NO_VALUE)}), lambda: row.update(more=1),
        lambda: row.update(rng.choice(others)), lambda: row.update(rng.choice(others)),
    ]  # fmt: skip
    rng.choice(values)()
    lines[at] = json.dumps(row) + "\n"


def _row(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and row else None
