"""Recovery of a dataset after a crash.

Whole episodes stay, the rest is removed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from nac_drive.data_collection.dataset import folder
from nac_drive.data_collection.dataset.episode_file import episode_sha256, file_sha256, read_episode
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.rows import DatasetRow, episode_file, episode_row, row_line
from nac_drive.envs import EnvConfig
from nac_drive.storage.write import write_atomically, writing


def require_seeds(path: Path, rows: Mapping[int, DatasetRow], seeds: Sequence[int]) -> None:
    """Raise DatasetError unless episode i is on track `seeds[i]`.

    Args:
        path: The dataset folder, for the error.
        rows: Index -> row of the recorded episodes.
        seeds: Tracks of the episodes 0, 1, 2, ...
    """
    for row, seed in zip((rows.get(i) for i in range(len(seeds))), seeds, strict=True):
        if row and row["seed"] != seed:
            raise DatasetError(
                f"cannot resume {path}: its episode {row['index']} is on track {row['seed']}, "
                f"got {seed}; pass the same tracks (more may follow them), or record into another folder."
            )


def recover(
    path: Path, env: EnvConfig, rows: Mapping[int, DatasetRow], seeds: Sequence[int], *, cut_off: bool
) -> dict[int, DatasetRow]:
    """Remove what is damaged or unfinished.

    Whole episodes without a row get one.

    Args:
        path: The dataset folder.
        env: The dataset's EnvConfig.
        rows: Index -> row of the recorded episodes.
        seeds: Tracks of the episodes 0, 1, 2, ..., which `require_seeds` has accepted.
        cut_off: Whether the last line of the rows is cut off.

    Returns:
        Index -> row of the episodes that stay, as it is on disk now.

    Raises:
        WriteError: Before anything is touched, if nothing can be written.
    """
    with writing(path):
        (path / folder.EPISODES).mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=path / folder.EPISODES):
            pass
    whole = {index: row for index, row in rows.items() if _is_intact(path, row)}
    for index, seed in enumerate(seeds):
        if index not in rows and (row := _orphan(path, env, index, seed)):
            whole[index] = row
    with writing(path):
        changed = [path / row["file"] for index, row in rows.items() if index not in whole]
        for leftover in (*changed, *folder.temporaries(path)):
            leftover.unlink(missing_ok=True)
        if cut_off or whole != rows:
            write_atomically(path / folder.ROWS, b"".join(row_line(whole[index]) for index in sorted(whole)))
    return whole


def _is_intact(path: Path, row: DatasetRow) -> bool:
    file = path / row["file"]
    return folder.is_plain_file(file) and episode_sha256(file) == row["sha256"]


def _orphan(path: Path, env: EnvConfig, index: int, seed: int) -> DatasetRow | None:
    """Return the row of a whole episode that has none."""
    file = path / episode_file(index)
    try:
        _, summary = read_episode(file, env)
    except DatasetError:
        return None
    return episode_row(index, summary, file_sha256(file)) if summary["seed"] == seed else None
