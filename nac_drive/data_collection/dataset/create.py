"""Make the folder of a dataset, empty or whole."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from nac_drive.data_collection.dataset import folder
from nac_drive.data_collection.dataset.episode_file import EncodedEpisode, read_episode
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.meta import META_SCHEMA, Meta
from nac_drive.data_collection.dataset.rows import DatasetRow, row_line, row_note
from nac_drive.parallel.versions import installed_versions
from nac_drive.storage.lock import locked
from nac_drive.storage.write import sync_folder, write_atomically, writing


def require_vacant(path: Path, fix: str = "choose another folder") -> None:
    """Raise FileExistsError unless `path` can become a dataset.

    The error advises `fix`.
    """
    if not folder.vacant(path):
        raise FileExistsError(f"{path} already exists; {fix}.")


def create_folder(path: Path, meta: Meta, name: str = folder.META, versions: dict[str, str] | None = None) -> None:
    """Make the folder of a dataset without episodes.

    Args:
        path: The new folder.
        meta: The origin of its episodes.
        name: Name of its meta file, which says whether it is finished.
        versions: Versions of the packages that made it; the installed ones by default.

    Raises:
        FileExistsError: Unless `path` is vacant.
        WriteError: If it cannot be written; nothing is left behind then.
    """
    require_vacant(path)
    made = not path.exists()
    document = {"schema": META_SCHEMA, **meta.document(), "versions": versions or installed_versions()}
    try:
        with writing(path):
            folder.clear(path)
            (path / folder.EPISODES).mkdir(parents=True, exist_ok=True)
            write_atomically(path / folder.ROWS, b"")
            write_atomically(path / name, (json.dumps(document, indent=2) + "\n").encode())
            sync_folder(path.parent)
    except Exception:
        folder.clear(path)
        if made:
            with suppress(OSError):
                path.rmdir()
        raise


def remove_empty(path: Path) -> None:
    """Remove a dataset that has no episode."""
    if any((path / folder.EPISODES).iterdir()) or (path / folder.ROWS).read_bytes():
        return
    (path / folder.META).unlink()
    folder.clear(path)
    with suppress(OSError):
        path.rmdir()


def write_dataset(
    path: Path,
    episodes: Iterable[tuple[EncodedEpisode, Meta]],
    finished: Callable[[str], None],
    versions: dict[str, str] | None = None,
) -> None:
    """Write a dataset of finished episodes. The folder is a dataset when the last one is written.

    Each episode is read again, which checks its types and values.

    Args:
        path: The new folder.
        episodes: Episodes 0, 1, 2, ..., and the settings of the first one.
        finished: Called with a note on each episode once it is written.
        versions: As in `create_folder`.

    Raises:
        FileExistsError: Unless `path` is vacant.
        FolderInUseError: If another process writes to `path`.
        DatasetError: If there is no episode, or one could not be read again.
        WriteError: If it cannot be written.
    """
    require_vacant(path)
    rows: list[DatasetRow] = []
    with locked(path):
        try:
            for episode, meta in episodes:
                if not rows:
                    create_folder(path, meta, folder.UNFINISHED, versions)
                rows.append(episode.write(path))
                read_episode(path / rows[-1]["file"], meta.env)
                finished(row_note(rows[-1]))
            if not rows:
                raise DatasetError("there is no episode to write; pass at least one.")
            with writing(path):
                write_atomically(path / folder.ROWS, b"".join(row_line(row) for row in rows))
                os.replace(path / folder.UNFINISHED, path / folder.META)
                sync_folder(path)
        except BaseException:
            folder.clear(path)
            raise
