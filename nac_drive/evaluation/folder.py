"""The folder of an evaluation: finished episodes are on disk, and `--resume` goes on with the missing ones.

FOLDER/conditions.json  rows.jsonl (one row per finished episode)  summary.json  report.html  figure.png
"""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nac_drive.envs import CrashMode, EnvConfig
from nac_drive.evaluation.evaluate import Evaluation, save_evaluations
from nac_drive.evaluation.results import EpisodeResult, read_results
from nac_drive.storage.lock import LOCK, locked
from nac_drive.storage.read import FileError, read_json
from nac_drive.storage.write import flatten, remove_leftovers, sync_folder, write_atomically, writing

CONDITIONS, ROWS, SUMMARY = "conditions.json", "rows.jsonl", "summary.json"


@dataclass(frozen=True)
class Conditions:
    """Everything that the rows of an evaluation depend on, latencies aside."""

    driver: str
    """Name of the driver in the rows."""
    driver_sha256: str
    """See `driver_hash`."""
    baseline: str | None
    """Name of the baseline, which is queried at every frame too; None without one."""
    baseline_sha256: str | None
    env: EnvConfig
    """The environment of the driver."""
    tracks: list[int]
    """Seeds of the tracks, in their order."""
    crash: CrashMode
    perturbation: str


class EvaluationFolder:
    """A folder that `evaluation_folder` holds."""

    def __init__(self, path: Path, conditions: Conditions, rows: Sequence[EpisodeResult]):
        self.path = path
        self._conditions = conditions
        self._found = list(rows)

    def rows_of(self, role: int) -> list[EpisodeResult]:
        """Return the episodes that were finished before, in any order.

        Args:
            role: 0 for the baseline, or for the driver where there is no baseline; 1 for the driver after a baseline.
        """
        tracks = len(self._conditions.tracks)
        return self._found[role * tracks : (role + 1) * tracks]

    def append(self, row: EpisodeResult) -> None:
        """Add a finished episode; it is on disk when the call returns.

        Raises:
            WriteError: If it cannot be written.
        """
        append_row(self.path, row, self._conditions)

    def save(self, evaluations: Sequence[Evaluation]) -> None:
        """Write rows.jsonl in the order of the tracks, and summary.json.

        Raises:
            WriteError: If they cannot be written.
        """
        with writing(self.path):
            save_evaluations(self.path, evaluations)


@contextmanager
def evaluation_folder(
    path: str | os.PathLike[str], conditions: Conditions, *, resume: bool = False
) -> Iterator[EvaluationFolder]:
    """Hold the folder of an evaluation for a `with` block. It can be written when the block begins.

    Args:
        path: The folder.
        conditions: Those of the evaluation.
        resume: Go on with the missing episodes of an interrupted evaluation under the same conditions.

    Raises:
        FileExistsError: If `path` holds anything and `resume` is off.
        FileNotFoundError: If there is nothing to resume.
        FileError: If the folder holds something else, its files are damaged, or it has other conditions.
        FolderInUseError: If another process holds it.
        WriteError: If it cannot be written.
    """
    path = Path(path)
    require_own_folder(path, "an evaluation", resume=resume)
    with locked(path):
        require_own_folder(path, "an evaluation", resume=resume)  # another process may have been quicker
        for name in (CONDITIONS, ROWS, SUMMARY, "report.html"):
            remove_leftovers(path / name)
        yield EvaluationFolder(path, conditions, _finished(path, conditions))


def append_row(folder: Path, row: EpisodeResult, conditions: Any) -> None:
    """Add a finished episode to rows.jsonl; it is on disk when the call returns.

    Args:
        folder: The folder.
        row: The episode.
        conditions: A dataclass for conditions.json, which is written before the first row, so that a start that fails
            leaves nothing.

    Raises:
        WriteError: If it cannot be written.
    """
    path = folder / ROWS
    with writing(path):
        if not (folder / CONDITIONS).exists():
            write_conditions(folder, conditions)
        with path.open("ab") as file:
            file.write((json.dumps(row.to_dict()) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        sync_folder(folder)


def write_conditions(folder: Path, conditions: Any) -> None:
    """Write a dataclass as conditions.json."""
    write_atomically(folder / CONDITIONS, (json.dumps(asdict(conditions), indent=2) + "\n").encode())


def require_own_folder(path: Path, kind: str, *, resume: bool) -> None:
    """Check that a folder of rows may be written to, before it is touched.

    Args:
        path: The folder.
        kind: What it should hold, such as "an evaluation".
        resume: Whether it may hold such rows.

    Raises:
        FileNotFoundError: If there is nothing to resume.
        FileExistsError: If it holds anything and `resume` is off.
        FileError: If it holds something else.
    """
    if not path.exists():
        if resume:
            raise FileNotFoundError(f"nothing to resume at {path}: there is no such folder; start without --resume.")
        return
    names = [file.name for file in path.iterdir()] if path.is_dir() else [path.name]
    if all(name == LOCK or (name.startswith(f"{CONDITIONS}.") and name.endswith(".tmp")) for name in names):
        return  # killed before the first row
    if not resume:
        raise FileExistsError(f"{path} already exists; choose another folder, or go on with --resume.")
    if CONDITIONS not in names:
        raise FileError(f"{path} is not the folder of {kind}: {CONDITIONS} is missing; choose another folder.")


def _finished(path: Path, conditions: Conditions) -> list[EpisodeResult]:
    """Return the rows of an interrupted evaluation, those of the baseline first; a row that was cut off is removed."""
    if not (path / CONDITIONS).exists():
        return []
    saved = read_json(path / CONDITIONS, Conditions, "the conditions of an evaluation", "choose another folder")
    before, now = flatten(asdict(saved)), flatten(asdict(conditions))
    if differing := [key for key in now if before[key] != now[key]]:
        differences = "; ".join(
            f"{key}: it has {reprlib.repr(before[key])}, got {reprlib.repr(now[key])}" for key in differing
        )
        raise FileError(
            f"cannot resume {path} under other conditions ({differences}); keep them, or choose another folder."
        )
    if not (path / ROWS).exists():
        return []
    rows, cut_off = read_results(path / ROWS)
    _require_rows_of(conditions, rows, path / ROWS)
    if cut_off:
        with writing(path / ROWS):
            write_atomically(path / ROWS, "".join(json.dumps(row.to_dict()) + "\n" for row in rows).encode())
    return rows


def _require_rows_of(conditions: Conditions, rows: Sequence[EpisodeResult], path: Path) -> None:
    tracks, missing = set(conditions.tracks), set(conditions.tracks)
    drivers = [name for name in (conditions.baseline, conditions.driver) if name is not None]
    for number, row in enumerate(rows):
        if number % len(tracks) == 0:
            missing = set(tracks)
        role = number // len(tracks)
        expected = (conditions.crash, conditions.perturbation)
        if (
            drivers[role : role + 1] != [row.driver]
            or row.seed not in missing
            or (row.crash_mode, row.perturbation) != expected
        ):
            raise FileError(
                f"{path}, line {number + 1} is no episode that is missing here (driver {row.driver!r}, track "
                f"{row.seed}); remove the line and those after it, and go on with --resume."
            )
        missing.remove(row.seed)
