"""Room on a disk, checked before anything is written."""

from __future__ import annotations

import shutil
from pathlib import Path

from nac_drive.data_collection.dataset.limits import DatasetError


def require_space(path: Path, needed: int, fix: str) -> None:
    """Check that a disk has room.

    Args:
        path: The file or folder to be written, which need not exist.
        needed: Bytes, an upper bound.
        fix: Another way than to free some space, such as "choose another folder".

    Raises:
        DatasetError: If it has not.
    """
    disk = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    free = shutil.disk_usage(disk).free
    if free < needed:
        raise DatasetError(
            f"cannot write {path}: up to {needed / 1e6:,.1f} MB are needed, {free / 1e6:,.1f} MB are free; "
            f"free some space, {fix}."
        )
