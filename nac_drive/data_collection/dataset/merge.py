"""Write the episodes of several datasets as one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nac_drive.data_collection.dataset import folder
from nac_drive.data_collection.dataset.create import write_dataset
from nac_drive.data_collection.dataset.episode_file import EncodedEpisode
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.meta import Meta, read_meta, require_same
from nac_drive.data_collection.dataset.rows import DatasetRow
from nac_drive.events import Progress, counting


class MergedDataset(NamedTuple):
    """A dataset that becomes a part of another."""

    path: Path
    meta: Meta
    rows: Sequence[DatasetRow]


def write_merged(path: Path, datasets: Sequence[MergedDataset], progress: Progress) -> None:
    """Write datasets as one at `path`, see `Demonstrations.merge`."""
    for dataset in datasets[1:]:
        fix = "merge datasets that were recorded with the same settings"
        require_same(dataset.path, dataset.meta, datasets[0].meta, fix)
    taken: set[int] = set()
    for dataset in datasets:
        seeds = {row["seed"] for row in dataset.rows}
        if twice := sorted(taken & seeds):
            raise DatasetError(
                f"datasets: track {twice[0]} comes twice, the second time in {dataset.path}; merge datasets of "
                "different tracks (recordings of Udacity and tubs are imported again with another --first-track)."
            )
        taken |= seeds
    rows = ((dataset, row) for dataset in datasets for row in dataset.rows)
    episodes = (
        (EncodedEpisode.read(dataset.path, row, dataset.meta.env, index), dataset.meta)
        for index, (dataset, row) in enumerate(rows)
    )
    total = sum(len(dataset.rows) for dataset in datasets)
    versions = read_meta(datasets[0].path / folder.META)[1]
    write_dataset(path, episodes, counting(progress, f"merge ({len(datasets)} datasets)", total), versions)
