"""Write a dataset in the format of another program.

It is written whole or not at all.
"""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from nac_drive.arguments import checks_shared_arguments, path_of
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.rows import CORRECTIONS
from nac_drive.data_collection.dataset.space import require_space
from nac_drive.data_collection.interchange import ExportFormat
from nac_drive.data_collection.interchange.recording import ExportSource
from nac_drive.data_collection.interchange.to_lerobot import write_lerobot
from nac_drive.data_collection.interchange.to_minari import write_minari
from nac_drive.data_collection.interchange.to_mp4 import write_mp4
from nac_drive.data_collection.interchange.to_tub import write_tub
from nac_drive.events import Progress, counting
from nac_drive.notebook import automatic
from nac_drive.storage.write import process_runs, require_new, sync_folder, sync_tree, writing
from nac_drive.suggest import did_you_mean

WRITERS: dict[str, Callable[[Path, ExportSource], None]] = {
    "minari": write_minari,
    "lerobot": write_lerobot,
    "mp4": write_mp4,
    "tub": write_tub,
}
"""Name of a format -> function that writes a recording into an empty folder."""
_GROWTH = 1.5
"""Bytes of an export for each byte of the dataset's episodes, at most: LeRobot's frames are PNG files, 1.4."""


@checks_shared_arguments
def export_dataset(
    dataset: Demonstrations | str | os.PathLike[str],
    path: str | os.PathLike[str],
    to: ExportFormat,
    *,
    progress: Progress = automatic,
) -> None:
    """Write a dataset in the format of another program (docs/interchange.md).

    The folder appears when the last episode is written. One episode is in memory at a time.

    Args:
        dataset: The dataset, or its folder.
        path: The new folder.
        to: minari: a folder for MINARI_DATASETS_PATH, lossless. lerobot: a LeRobotDataset v3.0, lossless. mp4: one
            video per episode, lossy. tub: a tub of donkeycar, with every label, and frames as JPEG.
        progress: Called after every episode.

    Raises:
        FileExistsError: If `path` exists.
        ValueError: If `to` is unknown, or its package is not installed.
        DatasetError: If the dataset is empty or damaged, an episode has no last frame where one is needed, the disk has
            no room, a person corrected an episode (neither minari nor lerobot can say which frames have a label), or a
            tub needs angle and throttle of actions whose meaning is not known.
        WriteError: If it cannot be written.
    """
    path = path_of("path", path)
    if to not in WRITERS:
        raise ValueError(f"to must be one of {', '.join(WRITERS)}, got {to!r}.{did_you_mean(to, WRITERS)}")
    require_new(path, "choose another folder")
    if not isinstance(dataset, Demonstrations):
        dataset = Demonstrations.open(dataset)
    job = f"export ({dataset.path.name} to {to})"
    recording = ExportSource.of(dataset, counting(progress, job, len(dataset)))
    if to in ("minari", "lerobot") and any(CORRECTIONS in row for row in dataset.rows):
        raise DatasetError(
            f"{dataset.path} holds frames without a label, and {to} cannot say which frames have a label; "
            "train on the dataset itself, or export a tub."
        )
    # HDF5 cannot close a file of Minari's on a full disk, and crashes the process later.
    needed = sum((dataset.path / row["file"]).stat().st_size for row in dataset.rows)
    require_space(path, int(_GROWTH * needed), "choose another folder")
    building = path.absolute().with_name(f".{path.name}.{os.getpid()}.tmp")  # Minari joins a relative path twice
    try:
        with writing(path):
            _remove_leftovers(path)
            building.mkdir(parents=True)
            WRITERS[to](building, recording)
            sync_tree(building)
            require_new(path, "choose another folder")
            os.rename(building, path)
            sync_folder(path.parent)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _remove_leftovers(path: Path) -> None:
    """Remove the unfinished folders of killed processes.

    They are `.NAME.PROCESS.tmp`; the processes were writing `path`.
    """
    for folder in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        process = folder.name.removeprefix(f".{path.name}.").removesuffix(".tmp")
        if process.isdecimal() and not process_runs(int(process)) and folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
