"""Demonstrations on disk, sound after every crash.

They are a folder of episodes.

DATASET/meta.json  episodes.jsonl (one row per finished episode)  episodes/000123.h5
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nac_drive.arguments import checks_shared_arguments, path_of
from nac_drive.data_collection.dataset import folder
from nac_drive.data_collection.dataset.create import create_folder, require_vacant
from nac_drive.data_collection.dataset.frames import Frames, load_frames, rows_on, stream_frames
from nac_drive.data_collection.dataset.info import dataset_info, facts
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.merge import MergedDataset, write_merged
from nac_drive.data_collection.dataset.meta import Meta, read_meta, require_same
from nac_drive.data_collection.dataset.minari_data import (
    exported_meta,
    minari_dataset,
    minari_episodes,
    minari_seeds,
    write_exported,
)
from nac_drive.data_collection.dataset.own_data import write_own_data
from nac_drive.data_collection.dataset.recovery import recover, require_seeds
from nac_drive.data_collection.dataset.rows import DatasetRow, read_rows, row_line
from nac_drive.data_collection.dataset.sources import one_or_several
from nac_drive.data_collection.dataset.split import split_tracks
from nac_drive.data_collection.dataset.stored_frames import StoredFrames
from nac_drive.data_collection.dataset.verify import check_dataset
from nac_drive.envs import EnvConfig
from nac_drive.events import Progress, counting
from nac_drive.notebook import automatic, image, table
from nac_drive.storage.write import writing

_PICTURES = 5
"""Frames of a dataset in a notebook."""


class Demonstrations:
    """A dataset folder.

    `open` opens one; `nac_drive.collect` and `from_episodes` fill it.
    """

    def __init__(self, path: Path, meta: Meta, rows: Sequence[DatasetRow], cut_off: bool):
        self.path = path
        self.meta = meta
        self._rows = {row["index"]: row for row in rows}
        self._cut_off = cut_off

    def __repr__(self) -> str:
        named = ", ".join(f"{name} {value}" for name, value in facts(self.meta, self.rows))
        return f"Demonstrations({str(self.path)!r}, {named})"

    def _repr_html_(self) -> str:
        """Return facts, and frames of the first episode, as HTML."""
        text = table([], [("folder", str(self.path)), *facts(self.meta, self.rows)], names=2)
        try:
            frames = self.stream(self.seeds[:1]).frames
            places = np.linspace(0, len(frames) - 1, _PICTURES).astype(int)
            pictures = [image(frames[place : place + 1][0], f"frame {place}", 144) for place in map(int, places)]
        except (DatasetError, OSError):  # a table is better than an error in its place
            return text
        return text + "".join(pictures)

    @classmethod
    def create(cls, path: str | os.PathLike[str], meta: Meta) -> Demonstrations:
        """Create a dataset without episodes.

        Args:
            path: The new folder.
            meta: The origin of its episodes.

        Raises:
            FileExistsError: Unless `path` is `vacant`.
            WriteError: If it cannot be written; nothing is left behind then.
        """
        path = path_of("path", path)
        create_folder(path, meta)
        return cls(path, meta, [], cut_off=False)

    @staticmethod
    def vacant(path: str | os.PathLike[str]) -> bool:
        """Return whether `create` accepts `path`.

        It may hold the leftovers of a creation that was killed.
        """
        return folder.vacant(Path(path))

    @classmethod
    def require_vacant(cls, path: Path, fix: str = "choose another folder") -> None:
        """Raise FileExistsError unless `path` is `vacant`.

        The error advises `fix`.
        """
        require_vacant(path, fix)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Demonstrations:
        """Open an existing dataset.

        A last row that was cut off by a crash is left out; episodes themselves are checked when they are read.

        Args:
            path: The dataset folder.

        Raises:
            DatasetError: If `path` is missing, something else or damaged, or holds links.
            ValueError: If it is neither text nor a path.
        """
        path = path_of("dataset path", path)
        folder.require_dataset(path)
        meta, _ = read_meta(path / folder.META)
        rows, cut_off = read_rows(path / folder.ROWS, f"{'delete the line and ' * meta.simulated}{meta.repair}")
        return cls(path, meta, rows, cut_off)

    @classmethod
    @checks_shared_arguments
    def from_episodes(
        cls,
        path: str | os.PathLike[str],
        episodes: Iterable[Mapping[str, Any]],
        *,
        driver: str = "own data",
        dt: float | None = None,
        seeds: Iterable[int] | None = None,
        env: EnvConfig | None = None,
        progress: Progress = automatic,
    ) -> Demonstrations:
        """Write own data as a dataset.

        It loads and trains like a recorded one.

        The folder is a dataset when the last episode is written: all of it or nothing.

        Args:
            path: The new folder.
            episodes: One mapping per episode of N steps: `observations` uint8 (N or N + 1, 96, 96, 3), or frames of
                `env`; `actions` int (N,) from 0 to 4, or float (N, 3) steer, gas, brake from (-1, 0, 0) to (1, 1, 1);
                optionally `labels` of an expert, like the actions, by default the actions; `labelled` bool (N,), False
                where a label is not the expert's and nothing is learned; `zooming` bool (N,), True where the picture
                still zooms in, as in the first second of CarRacing, and nothing is measured; `rewards` (N,), zeros by
                default; `dt` (N,), seconds since the previous observation; `terminated` and `truncated`, True or False,
                as gymnasium defines them, both or neither.
            driver: The name of the driver in tables.
            dt: Seconds between observations where an episode has no `dt`; by default a frame of the environment.
            seeds: The seed of the environment, one per episode, at least 0. Episodes with one seed stay on one side of
                a split, so give episodes on the same track the same seed. By default the seeds are not known, and the
                tracks are numbered 0, 1, 2, ...
            env: The environment in which drivers that learn from the data are validated; one with the control of the
                actions by default.
            progress: Called after every episode.

        Returns:
            The dataset.

        Raises:
            FileExistsError: If `path` exists.
            FolderInUseError: If another process writes to `path`.
            DatasetError: If an episode has another key, shape, dtype or range, or there is none.
            ValueError: If the driver's name is no line of text, or `env` no `EnvConfig`.
            WriteError: If it cannot be written.
        """
        total = len(episodes) if isinstance(episodes, Sized) else 0
        path = path_of("path", path)
        finished = counting(progress, f"write ({path.name})", total)
        write_own_data(path, episodes, driver, dt, seeds, seeds is not None, env, finished)
        return cls.open(path)

    @classmethod
    @checks_shared_arguments
    def from_minari(
        cls, path: str | os.PathLike[str], dataset: Any, *, progress: Progress = automatic, **options: Any
    ) -> Demonstrations:
        """Write a dataset of Minari (https://minari.farama.org) as demonstrations.

        One that `export_dataset` wrote comes back as it was, with its labels, telemetry and settings. Of any other one
        the ends are taken, and the seeds if every episode has one.

        Args:
            path: The new folder.
            dataset: A folder with a dataset of Minari, or the id of one, which Minari downloads if need be: both are
                checked before Minari reads them. Or a `minari.MinariDataset`, which is read as it is.
            progress: Called after every episode.
            **options: As in `from_episodes`; none for a dataset that `export_dataset` wrote.

        Returns:
            The dataset.

        Raises:
            FileExistsError: If `path` exists.
            DatasetError: If there is no such dataset, or its episodes are not CarRacing's, see `from_episodes`.
            ValueError: If a folder or an id is given and Minari is not installed, or for options that do not fit.
        """
        path, dataset = path_of("path", path), minari_dataset(dataset)
        recorded = exported_meta(dataset)
        if recorded is None:
            options = {"seeds": minari_seeds(dataset), **options}
            return cls.from_episodes(path, minari_episodes(dataset), progress=progress, **options)
        if options:
            raise ValueError(f"{', '.join(options)}: the dataset knows them, as nac-drive exported it; leave them out.")
        write_exported(path, dataset, *recorded, progress)
        return cls.open(path)

    @classmethod
    @checks_shared_arguments
    def merge(
        cls,
        path: str | os.PathLike[str],
        datasets: Demonstrations | str | os.PathLike[str] | Sequence[Demonstrations | str | os.PathLike[str]],
        *,
        progress: Progress = automatic,
    ) -> Demonstrations:
        """Write the episodes of several datasets as one.

        They keep their order: first the first one's, then the second one's.

        Args:
            path: The new folder.
            datasets: A dataset, or several that were recorded with the same settings, such as the datasets of DAgger
                runs whose learners have different cores.
            progress: Called after every episode.

        Returns:
            The dataset.

        Raises:
            FileExistsError: If `path` exists.
            FolderInUseError: If another process writes to `path`.
            DatasetError: If a dataset was recorded with other settings than the first one, a track comes twice, an
                episode is damaged, or there is none.
            ValueError: If there is no dataset, or one is of another type.
            WriteError: If it cannot be written.
        """
        sources = one_or_several("datasets", datasets, (Demonstrations, str, os.PathLike), "the folder of a dataset")
        opened = (dataset if isinstance(dataset, Demonstrations) else cls.open(dataset) for dataset in sources)
        merged = [MergedDataset(dataset.path, dataset.meta, dataset.rows) for dataset in opened]
        write_merged(path_of("path", path), merged, progress)
        return cls.open(path)

    @property
    def rows(self) -> list[DatasetRow]:
        """One dict per finished episode, by index, with keys `ROW`."""
        return [self._rows[index] for index in sorted(self._rows)]

    @property
    def seeds(self) -> list[int]:
        """The track seed of each finished episode, by index."""
        return [row["seed"] for row in self.rows]

    def __len__(self) -> int:
        return len(self._rows)

    # Reading

    def load(self, seeds: str | Sequence[int] | None = None) -> Frames[NDArray[np.uint8]]:
        """Decode episodes into memory, 27 KiB per frame.

        Args:
            seeds: Tracks of the episodes: their seeds, or named ones such as "train-2"; all by default.

        Returns:
            The episodes, end to end.

        Raises:
            DatasetError: If a seed was not recorded, an episode is damaged, or there is none.
        """
        return load_frames(self.path, rows_on(self.path, self.meta, self.rows, seeds), self.meta.env)

    def stream(self, seeds: str | Sequence[int] | None = None) -> Frames[StoredFrames]:
        """Read episodes without their frames.

        Frames are decoded where they are read; they take 30 bytes of memory each.

        Args:
            seeds: Tracks of the episodes: their seeds, or named ones such as "train-2"; all by default.

        Returns:
            The episodes, end to end.

        Raises:
            DatasetError: If a seed was not recorded, an episode is damaged, or there is none. Frames are checked when
                they are decoded.
        """
        return stream_frames(self.path, rows_on(self.path, self.meta, self.rows, seeds), self.meta.env)

    def split(self, validation_fraction: float) -> tuple[list[int], list[int]]:
        """Split the tracks into training and validation.

        No track is in both.

        The split is the same for every run, whatever its seed: no run is measured on a track that another learned from.

        Args:
            validation_fraction: Fraction of the tracks, in [0, 1); any fraction above 0 gives at least one track.

        Returns:
            Track seeds for training and for validation, each sorted.

        Raises:
            ValueError: If the fraction is out of range, or above 0 with fewer than two tracks.
        """
        return split_tracks(self.path, self.meta, self.seeds, validation_fraction)

    def fingerprint(self) -> str:
        """Return the SHA-256 of the rows, by index.

        It names the set of episodes, wherever the folder is.
        """
        return hashlib.sha256(b"".join(row_line(row) for row in self.rows)).hexdigest()

    def info(self) -> dict[str, Any]:
        """Return a description in plain values, ready for JSON. `describe` turns it into text with units.

        Returns:
            `view`: as in EnvConfig; None where an environment has one alone.  `mask_bar`: None without a status bar.
            `seconds`: duration of all episodes.  `labels`, `actions`: fraction of frames with each discrete action, or
            the mean of steer, gas and brake.  `off_label_fraction`: fraction of frames whose executed action is not the
            label; frames without a label do not count, and both are None without any.  `bytes`: size of the episode
            files.  Completion, laps finished, off-road events and crashes are there where all episodes have them; own
            data has them from an exported tub alone.
        """
        return dataset_info(self.path, self.meta, self.rows)

    @checks_shared_arguments
    def verify(self, *, replay: bool = False, workers: int = 1, progress: Progress = automatic) -> list[str]:
        """Check every episode, see `check_episode`.

        Args:
            replay: Simulate every episode again as well (slow).
            workers: Processes.
            progress: Called after every episode.

        Returns:
            One line per problem, with its fix; empty for a sound dataset.

        Raises:
            DatasetError: Own data is to be replayed.
        """
        return check_dataset(
            self.path, self.meta, self.rows, self._cut_off, replay=replay, workers=workers, progress=progress
        )

    # Writing

    def require_meta(self, meta: Meta, fix: str = "keep it, or record into another folder") -> None:
        """Raise DatasetError unless the dataset has `meta`.

        The error names the keys that differ, and advises `fix`.
        """
        require_same(self.path, self.meta, meta, fix)

    def append(self, row: DatasetRow) -> None:
        """Add the row of an episode to the disk.

        Its file is in place. The row is on disk when the call returns.

        Raises:
            WriteError: If it cannot be written.
        """
        path = self.path / folder.ROWS
        with writing(path), path.open("ab") as file:
            file.write(row_line(row))
            file.flush()
            os.fsync(file.fileno())
        self._rows[row["index"]] = row

    def recover(self, seeds: Sequence[int]) -> None:
        """Prepare an interrupted dataset for the episodes that are missing.

        Remove unfinished files and episodes whose file has changed or is missing, and adopt whole episodes that the
        crash left without a row.

        Args:
            seeds: `seeds[i]` is the track of episode i.

        Raises:
            DatasetError: Before anything is touched, if `seeds` differs from the recorded tracks.
            WriteError: Before anything is touched, if nothing can be written.
        """
        self.require_seeds(seeds)
        self._rows = recover(self.path, self.meta.env, self._rows, seeds, cut_off=self._cut_off)
        self._cut_off = False

    def require_seeds(self, seeds: Sequence[int]) -> None:
        """Raise DatasetError unless every recorded episode i is on track `seeds[i]`."""
        require_seeds(self.path, self._rows, seeds)
