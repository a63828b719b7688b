"""A dataset that is read once, for a writer.

Episodes come one at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.episode_arrays import EpisodeArrays
from nac_drive.data_collection.dataset.episode_file import read_episode, require_recorded
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.meta import Meta
from nac_drive.data_collection.dataset.rows import DatasetRow


@dataclass(frozen=True)
class ExportSource:
    """The origin of a dataset, and its episodes by index. One episode is in memory at a time."""

    meta: Meta
    """Its settings."""
    document: dict[str, Any]
    """Its meta.json."""
    rows: Sequence[DatasetRow]
    """Its rows, at least one."""
    path: Path
    """Its folder."""
    finished: Callable[[str], None]
    """Called with a note on each episode when it is written."""

    @classmethod
    def of(cls, dataset: Demonstrations, finished: Callable[[str], None]) -> ExportSource:
        """Return the recording of a dataset.

        Raises:
            DatasetError: If there is no episode in it, or one is missing or not the recorded one.
        """
        if not dataset.rows:
            raise DatasetError(f"dataset {dataset.path} holds no finished episode; {dataset.meta.repair}.")
        for row in dataset.rows:
            require_recorded(dataset.path, row, dataset.meta.env)
        document = json.loads((dataset.path / "meta.json").read_text())
        return cls(dataset.meta, document, dataset.rows, dataset.path, finished)

    def __iter__(self) -> Iterator[tuple[EpisodeArrays, DatasetRow]]:
        """Yield the arrays and the row of each episode.

        Raises:
            DatasetError: If an episode is damaged, or not the recorded one.
        """
        for row in self.rows:
            require_recorded(self.path, row, self.meta.env)
            yield read_episode(self.path / row["file"], self.meta.env)[0], row
            self.finished(f"track {row['seed']}")

    def frames_per_second(self) -> int:
        """Return the rate of the first episode, rounded.

        It is one over the median time between its observations.
        """
        arrays, _ = next(iter(self))
        seconds = float(np.median(arrays.dt[1:])) if len(arrays.dt) > 1 else 0.0
        return max(1, round(1 / seconds)) if seconds > 0 else self.meta.env.spec.frames_per_second
