"""The last and the best checkpoint of a run.

RUN/checkpoints/checkpoints.json names them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import msgspec

from nac_drive.storage.links import require_own_file
from nac_drive.storage.read import FileError, read_json
from nac_drive.storage.write import write_atomically

CHECKPOINTS, RECORD = "checkpoints", "checkpoints.json"
NAMES = ("last", "best")

StepName = Annotated[str, msgspec.Meta(pattern=r"^step_[0-9]{1,18}\Z")]
"""Name of a checkpoint's folder: one word, so that no path leads out of the run."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The checkpoints of a run that count. None before the first."""

    last: StepName | None
    best: StepName | None


def step_of(folder: Path) -> int | None:
    """Return N of a folder `step_N`. None for every other name, and for a link."""
    step = re.fullmatch(r"step_([0-9]{1,18})", folder.name)
    return int(step[1]) if step and folder.is_dir() and not folder.is_symlink() else None


def read_record(run: Path) -> Record | None:
    """Read which checkpoints count. None if the run does not say so.

    Raises:
        FileError: The file is damaged, or a link, or an older version made the run.
    """
    path = run / CHECKPOINTS / RECORD
    for inside in (path.parent, path):
        require_own_file(inside)
    if path.exists():
        return read_json(path, Record, "a record of checkpoints", "restore it or start a new run")
    if any(os.path.lexists(run / CHECKPOINTS / name) for name in NAMES):
        raise FileError(
            f"{run} was made by an older version of nac-drive, without a record of its checkpoints; train it again."
        )
    return None


def write_record(run: Path, record: Record) -> None:
    """Write which checkpoints count."""
    write_atomically(run / CHECKPOINTS / RECORD, msgspec.json.encode(record) + b"\n")


def checkpoint_folder(run: str | os.PathLike[str], name: str) -> Path | None:
    """Return the folder of the `last` or `best` checkpoint of a run; None before the first.

    Raises:
        FileError: The record is damaged or a link, or names a checkpoint that is missing or a link.
    """
    run = Path(run)
    record = read_record(run)
    step = None if record is None else getattr(record, name)
    if step is None:
        return None
    folder = run / CHECKPOINTS / step
    require_own_file(folder)
    if not folder.is_dir():
        raise FileError(f"{folder} is missing, the {name} checkpoint of the run; restore it or start a new run.")
    return folder
