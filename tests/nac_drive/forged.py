"""Files of rows as no command writes them: damaged lines, lines twice, of nothing, in another order, cut off."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from nac_drive.storage.read import FileError
from tests.data_collection.recordings import contents

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


def require_the_same_or_a_refusal(
    whole: Path,
    copies: Path,
    others: Sequence[dict[str, Any]],
    resume: Callable[[Path], Any],
    *,
    seeds: int,
    least: int,
) -> None:
    """Resume copies of a finished experiment whose rows were forged.

    Each gives the same files again, or is refused in one line and stays as it was.

    Args:
        whole: The folder of the experiment.
        copies: The folder of the copies.
        others: See `forged`.
        resume: Goes on in a copy.
        seeds: Number of copies.
        least: More copies than this end either way.
    """
    files, outcomes = contents(whole), {True: 0, False: 0}
    lines = files["rows.jsonl"].decode().splitlines(keepends=True)
    for seed in range(seeds):
        folder = Path(shutil.copytree(whole, copies / str(seed)))
        (folder / "rows.jsonl").write_text("".join(forged(seed, lines, others)))
        before = contents(folder)
        try:
            resume(folder)
        except FileError as error:
            message = str(error)
            assert message.startswith(f"{folder / 'rows.jsonl'}, line ")
            assert message.isprintable(), message
            assert contents(folder) == before
            outcomes[False] += 1
        else:
            assert contents(folder) == files, seed
            outcomes[True] += 1
    assert min(outcomes.values()) > least


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
