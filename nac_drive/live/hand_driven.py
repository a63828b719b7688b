"""Episodes that a person drove, as an ordinary dataset."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.episode_arrays import EpisodeArrays, summarize
from nac_drive.data_collection.dataset.episode_file import EncodedEpisode
from nac_drive.data_collection.dataset.meta import Meta
from nac_drive.data_collection.dataset.rows import DatasetRow
from nac_drive.data_collection.drivers import driver_hash
from nac_drive.data_collection.human import HUMAN
from nac_drive.envs import EnvConfig
from nac_drive.live.race import Driven
from nac_drive.storage.lock import locked


class HandDriven:
    """A dataset that grows by the episodes of a person.

    Args:
        dataset: The dataset.
    """

    def __init__(self, dataset: Demonstrations) -> None:
        self._dataset = dataset

    def add(self, driven: Driven) -> DatasetRow:
        """Write an episode.

        Raises:
            ValueError: If something was perturbed in it: a replay would show other frames.
            WriteError: If it cannot be written.
        """
        if not driven.undisturbed:
            raise ValueError("an episode with perturbations is not recorded; drive it again without.")
        arrays = EpisodeArrays.from_steps(driven.steps, driven.episode.last_observation)
        index = max((row["index"] for row in self._dataset.rows), default=-1) + 1
        row = EncodedEpisode.encode(index, arrays, summarize(driven.episode)).write(self._dataset.path)
        self._dataset.append(row)
        return row


@contextmanager
def hand_driven(path: Path, env: EnvConfig) -> Iterator[HandDriven]:
    """Hold the dataset at `path` for a `with` block. One that is there already is added to.

    Args:
        path: The dataset folder.
        env: The environment of the person.

    Raises:
        FolderInUseError: If another process writes to `path`.
        DatasetError: If there is something else, or a dataset with other settings.
    """
    meta = Meta(env, HUMAN, driver_hash(HUMAN, env), None, 0)
    with locked(path):
        if Demonstrations.vacant(path):
            yield HandDriven(Demonstrations.create(path, meta))
            return
        dataset = Demonstrations.open(path)
        dataset.require_meta(meta)
        dataset.recover([row["seed"] for row in dataset.rows])
        yield HandDriven(dataset)
