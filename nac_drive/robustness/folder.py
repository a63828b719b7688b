"""The folder of a stress test: finished episodes are on disk, and `--resume` goes on with the missing ones."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from nac_drive.envs import CrashMode, EnvConfig
from nac_drive.evaluation.folder import (
    CONDITIONS,
    ROWS,
    SUMMARY,
    append_row,
    require_own_folder,
    write_conditions,
)
from nac_drive.evaluation.results import EpisodeResult, read_results
from nac_drive.storage.lock import locked
from nac_drive.storage.read import FileError, read_json
from nac_drive.storage.write import remove_leftovers, write_atomically, writing

_FIX = "choose another folder"


@dataclass(frozen=True)
class DriverUnderTest:
    """A driver of a stress test."""

    name: str
    sha256: str
    """See `driver_hash`."""
    env: EnvConfig
    """Its environment."""


@dataclass(frozen=True)
class Conditions:
    """Everything that the rows of a stress test depend on, latencies aside."""

    drivers: list[DriverUnderTest]
    tracks: list[int]
    perturbations: list[str]
    """Specifications; the first one is empty."""
    crash: CrashMode


class StressFolder:
    """A folder that `stress_folder` holds."""

    def __init__(self, path: Path, conditions: Conditions, finished: Sequence[EpisodeResult]):
        self.path, self._conditions = path, conditions
        self.finished = list(finished)
        """Rows of before."""

    def append(self, row: EpisodeResult) -> None:
        """Add a finished episode; it is on disk when the call returns.

        Raises:
            WriteError: If it cannot be written.
        """
        append_row(self.path, row, self._conditions)

    def save(self, rows: Mapping[tuple[str, str], Sequence[EpisodeResult]], summary: str) -> None:
        """Write rows.jsonl in order, and summary.json.

        Raises:
            WriteError: If they cannot be written.
        """
        with writing(self.path):
            lines = [json.dumps(row.to_dict()) + "\n" for part in rows.values() for row in part]
            write_atomically(self.path / ROWS, "".join(lines).encode())
            write_atomically(self.path / SUMMARY, summary.encode())


@contextmanager
def stress_folder(
    path: str | os.PathLike[str], conditions: Conditions, *, resume: bool = False
) -> Iterator[StressFolder]:
    """Hold the folder of a stress test for a `with` block.

    Args:
        path: The folder.
        conditions: Those of the test.
        resume: Go on with the missing episodes of an interrupted test; it may have fewer drivers, tracks and
            perturbations.

    Raises:
        FileExistsError: If `path` holds anything and `resume` is off.
        FileNotFoundError: If there is nothing to resume.
        FileError: If the folder holds something else, its files are damaged, or it has other conditions.
        FolderInUseError: If another process holds it.
        WriteError: If it cannot be written.
    """
    path = Path(path)
    require_own_folder(path, "a stress test", resume=resume)
    with locked(path):
        require_own_folder(path, "a stress test", resume=resume)  # another process may have been quicker
        for name in (CONDITIONS, ROWS, SUMMARY):
            remove_leftovers(path / name)
        rows, cut_off = _finished(path, conditions)
        folder = StressFolder(path, conditions, rows)
        if (path / CONDITIONS).exists():
            with writing(path):
                if cut_off:
                    lines = "".join(json.dumps(row.to_dict()) + "\n" for row in rows)
                    write_atomically(path / ROWS, lines.encode())
                write_conditions(path, conditions)
        yield folder


def _finished(path: Path, conditions: Conditions) -> tuple[list[EpisodeResult], bool]:
    """Return the rows of an interrupted test, and whether the last one was cut off."""
    if not (path / CONDITIONS).exists():
        return [], False
    saved = read_json(path / CONDITIONS, Conditions, "the conditions of a stress test", _FIX)
    if saved.crash != conditions.crash:
        raise FileError(
            f"cannot resume {path}: it was begun with crash={saved.crash}, got crash={conditions.crash}; keep it, or "
            f"{_FIX}."
        )
    now = {driver.name: driver for driver in conditions.drivers}
    for driver in saved.drivers:
        if now.get(driver.name) != driver:
            raise FileError(
                f"cannot resume {path}: driver {driver.name[:100]!r} of it is missing here or has changed; pass all of "
                f"its drivers as they were, or {_FIX}."
            )
    for name in ("tracks", "perturbations"):
        if gone := set(getattr(saved, name)) - set(getattr(conditions, name)):
            raise FileError(
                f"cannot resume {path}: {name} must hold all that it was begun with, and {str(min(gone))[:100]!r} is "
                f"missing; add it, or {_FIX}."
            )
    if not (path / ROWS).exists():
        return [], False
    rows, cut_off = read_results(path / ROWS)
    missing = set(product([driver.name for driver in saved.drivers], saved.perturbations, saved.tracks))
    for number, row in enumerate(rows, 1):
        key = row.driver, row.perturbation, row.seed
        if key not in missing or row.crash_mode != saved.crash:
            raise FileError(
                f"{path / ROWS}, line {number} holds an episode twice, or one of another test (driver {row.driver!r}, "
                f"track {row.seed}); remove the line and go on with --resume."
            )
        missing.remove(key)
    return rows, cut_off
