"""The files in a dataset's folder, and removable ones.

Only files with a name of ours are ever removed: episodes that a row names, `NAME.PROCESS.tmp` of a write that was
killed, and the remains of a creation that was killed.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from nac_drive.data_collection.dataset.limits import DatasetError, unreadable
from nac_drive.data_collection.dataset.meta import META
from nac_drive.storage.lock import LOCK

ROWS, EPISODES = "episodes.jsonl", "episodes"
UNFINISHED = "unfinished.json"
"""meta.json of a dataset of own data until its last episode is written. Without that, all is removed."""

_EPISODE = re.compile(r"\d{6,9}\.h5")
_TEMPORARY = re.compile(r"(meta\.json|unfinished\.json|episodes\.jsonl|\d{6,9}\.h5)\.\d+\.tmp")


def require_dataset(path: Path) -> None:
    """Check that a folder has the files of a dataset.

    No link may lead out of it.

    Raises:
        DatasetError: If it does not.
    """
    try:
        if not path.is_dir():
            raise DatasetError(f"no dataset at {path}: there is no such folder; pass the folder of a recording.")
        names = os.listdir(path)
        for name in (META, ROWS):
            if name not in names:
                raise DatasetError(f"{path} is not a dataset: {name} is missing; pass the folder of a recording.")
            if not is_plain_file(path / name):
                raise DatasetError(f"{path} is not a dataset: {name} is no plain file; replace it by a copy.")
            (path / name).open("rb").close()
        for folder in (path, path / EPISODES):
            for entry in os.scandir(folder) if os.path.lexists(folder) else ():
                if entry.is_symlink():
                    raise DatasetError(f"{entry.path} is a link, which a dataset cannot hold; replace it by a copy.")
                if not entry.is_file() and not entry.is_dir():
                    raise DatasetError(f"{entry.path} is no plain file, such as a pipe; remove it.")
    except OSError as error:
        raise unreadable(error.filename or path, error, "pass the folder of a recording") from error


def is_plain_file(path: Path) -> bool:
    """Return whether `path` is a file and no link."""
    return path.is_file() and not path.is_symlink()


def vacant(path: Path) -> bool:
    """Return whether a dataset can be made at `path`.

    There may be what a killed creation left.
    """
    try:
        return not os.path.lexists(path) or (path.is_dir() and _remains(path) is not None)
    except OSError:  # it cannot be looked into
        return False


def clear(path: Path) -> None:
    """Remove what a killed creation left at `path`.

    Nothing is removed if there is anything else. The lock file stays.
    """
    remains = (path.is_dir() and _remains(path)) or []
    for file in sorted(remains, key=lambda file: file.name == UNFINISHED):  # the mark last
        file.unlink(missing_ok=True)
    with suppress(OSError):
        (path / EPISODES).rmdir()


def temporaries(path: Path) -> list[Path]:
    """Return the files of killed writes in a dataset."""
    folders = (path, path / EPISODES)
    return [
        file
        for folder in folders if folder.is_dir() and not folder.is_symlink()
        for file in sorted(folder.iterdir()) if _TEMPORARY.fullmatch(file.name) and is_plain_file(file)
    ]  # fmt: skip


def _remains(path: Path) -> list[Path] | None:
    """Return the files that a killed creation left.

    None if the folder has anything else.
    """
    unfinished = is_plain_file(path / UNFINISHED) and not os.path.lexists(path / META)
    remains = []
    for file in path.iterdir():
        if file.name == EPISODES and file.is_dir() and not file.is_symlink():
            for inner in file.iterdir():
                if not is_plain_file(inner) or not (
                    _TEMPORARY.fullmatch(inner.name) or (unfinished and _EPISODE.fullmatch(inner.name))
                ):
                    return None
                remains.append(inner)
        elif is_plain_file(file) and (
            _TEMPORARY.fullmatch(file.name)
            or (file.name in (UNFINISHED, ROWS) and unfinished)
            or (file.name == ROWS and file.stat().st_size == 0)
        ):
            remains.append(file)
        elif not (file.name == LOCK and is_plain_file(file)):
            return None
    return remains
