"""Demonstrations on disk: a folder of episodes that is sound after every crash.

DATASET/meta.json  episodes.jsonl (one row per finished episode)  episodes/000123.h5
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from nac_drive.data_collection.dataset.episode_file import (
    DatasetError,
    episode_file,
    episode_row,
    read_episode,
    write_episode,
)
from nac_drive.data_collection.dataset.frames import Frames, load_frames
from nac_drive.data_collection.dataset.info import dataset_info
from nac_drive.data_collection.dataset.meta import META_SCHEMA, Meta, Row, read_meta, read_rows
from nac_drive.data_collection.dataset.own_data import minari_episodes, own_episode
from nac_drive.data_collection.dataset.verify import check_episode, file_sha256
from nac_drive.data_collection.files import flatten, sync_folder, write_atomically, writing
from nac_drive.data_collection.processes import map_in_processes
from nac_drive.data_collection.versions import installed_versions
from nac_drive.envs import FRAMES_PER_SECOND, EnvConfig


class Demonstrations:
    """A dataset folder: opened by `open`, filled by `nac_drive.collect` or `from_episodes`."""

    def __init__(self, path: Path, meta: Meta, rows: Sequence[Row], cut_off: bool):
        self.path = path
        self.meta = meta
        self._rows = {row["index"]: row for row in rows}
        self._cut_off = cut_off

    @classmethod
    def create(cls, path: str | os.PathLike[str], meta: Meta) -> Demonstrations:
        """Create a dataset without episodes.

        Args:
            path: The new folder.
            meta: The origin of its episodes.

        Raises:
            FileExistsError: Unless `path` is `vacant`.
            WriteError: If it cannot be written.
        """
        path = Path(path)
        with writing(path):
            cls._require_vacant(path)
            (path / "episodes").mkdir(parents=True, exist_ok=True)
            write_atomically(path / "episodes.jsonl", b"")
            document = {"schema": META_SCHEMA, **asdict(meta), "versions": installed_versions()}
            write_atomically(path / "meta.json", (json.dumps(document, indent=2) + "\n").encode())
            sync_folder(path.parent)
        return cls(path, meta, [], cut_off=False)

    @staticmethod
    def vacant(path: str | os.PathLike[str]) -> bool:
        """Return whether `create` accepts `path`: it holds at most the leftovers of a creation that was killed."""
        path = Path(path)
        return not path.exists() or (
            path.is_dir()
            and not any(
                file.is_file() and file.suffix != ".tmp" and (file.stat().st_size or file.name != "episodes.jsonl")
                for file in path.rglob("*")
            )
        )

    @classmethod
    def _require_vacant(cls, path: Path) -> None:
        if not cls.vacant(path):
            raise FileExistsError(f"{path} already exists; choose another folder, or add to it with --resume.")

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Demonstrations:
        """Open an existing dataset.

        A last row that was cut off by a crash is left out; episodes themselves are checked when they are read.

        Args:
            path: The dataset folder.

        Raises:
            DatasetError: If `path` is missing, something else or damaged.
        """
        path = Path(path)
        if not path.is_dir():
            raise DatasetError(f"no dataset at {path}: there is no such folder; pass the folder of a recording.")
        for name in ("meta.json", "episodes.jsonl"):
            if not (path / name).is_file():
                raise DatasetError(f"{path} is not a dataset: {name} is missing; pass the folder of a recording.")
        rows, cut_off = read_rows(path / "episodes.jsonl")
        return cls(path, read_meta(path / "meta.json"), rows, cut_off)

    @classmethod
    def from_episodes(
        cls,
        path: str | os.PathLike[str],
        episodes: Iterable[Mapping[str, Any]],
        *,
        driver: str = "own data",
        dt: float = 1 / FRAMES_PER_SECOND,
        seeds: Iterable[int] | None = None,
        env: EnvConfig | None = None,
    ) -> Demonstrations:
        """Write own data as a dataset that loads and trains like a recorded one.

        The folder appears when the last episode is written: all of it or nothing.

        Args:
            path: The new folder.
            episodes: One mapping per episode of N steps: `observations` uint8 (N or N + 1, 96, 96, 3), or frames of
                `env`; `actions` int (N,) from 0 to 4, or float (N, 3) steer, gas, brake from (-1, 0, 0) to (1, 1, 1);
                optionally `rewards` (N,), zeros by default; `dt` (N,), seconds since the previous observation.
            driver: The name of the driver in tables.
            dt: Seconds between observations where an episode has no `dt`.
            seeds: One per episode, at least 0; by default 0, 1, 2, ... Episodes with one seed stay on one side of a
                split, so give episodes on the same track the same seed.
            env: The environment in which drivers that learn from the data are validated; one with the control of the
                actions by default.

        Returns:
            The dataset.

        Raises:
            FileExistsError: If `path` exists.
            DatasetError: If an episode has another key, shape, dtype or range, or there is none.
            WriteError: If it cannot be written.
        """
        path, spec = Path(path), (env or EnvConfig()).spec
        cls._require_vacant(path)
        numbers = count() if seeds is None else iter(seeds)
        building = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            dataset = None
            for index, episode in enumerate(episodes):
                arrays, summary, control = own_episode(index, episode, next(numbers, None), dt, spec)
                if dataset is None:
                    dataset = cls.create(building, Meta(env or EnvConfig(control), driver, "", None, 0))
                if control != dataset.meta.env.control:
                    raise DatasetError(
                        f"episode {index} has {control} actions, expected {dataset.meta.env.control} ones, as in `env` "
                        "or the first episode; write one dataset for each control."
                    )
                dataset.append(write_episode(building, index, arrays, summary))
            if dataset is None:
                raise DatasetError("there is no episode in `episodes`; pass at least one.")
            with writing(path):
                if path.exists():  # vacant
                    shutil.rmtree(path)
                os.replace(building, path)
                sync_folder(path.parent)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        dataset.path = path
        return dataset

    @classmethod
    def from_minari(cls, path: str | os.PathLike[str], dataset: Any, **options: Any) -> Demonstrations:
        """Write a dataset of Minari (https://minari.farama.org) as demonstrations.

        Args:
            path: The new folder.
            dataset: A `minari.MinariDataset`, or the id of one, which Minari loads and if need be downloads.
            **options: As in `from_episodes`.

        Returns:
            The dataset.

        Raises:
            ModuleNotFoundError: If an id is given and Minari is not installed.
            DatasetError: If its episodes are not CarRacing's, see `from_episodes`.
        """
        return cls.from_episodes(path, minari_episodes(dataset), **options)

    @property
    def rows(self) -> list[Row]:
        """One dict with the keys `ROW` per finished episode, by index."""
        return [self._rows[index] for index in sorted(self._rows)]

    @property
    def seeds(self) -> list[int]:
        """The track seed of each finished episode, by index."""
        return [row["seed"] for row in self.rows]

    def __len__(self) -> int:
        return len(self._rows)

    # Reading

    def load(self, seeds: Sequence[int] | None = None) -> Frames:
        """Decode episodes into memory, 27 KiB per frame.

        Args:
            seeds: Track seeds of the episodes; all by default.

        Returns:
            The episodes, end to end.

        Raises:
            DatasetError: If a seed was not recorded, an episode is damaged, or there is none.
        """
        rows = self.rows if seeds is None else self._rows_of(seeds)
        if not rows:
            raise DatasetError(f"dataset {self.path} holds no finished episode; go on recording it with --resume.")
        return load_frames(self.path, rows, self.meta.env)

    def split(self, validation_fraction: float) -> tuple[list[int], list[int]]:
        """Split the tracks into some for training and some for validation, none in both.

        The split is the same for every run, whatever its seed: no run is measured on a track that another learned from.

        Args:
            validation_fraction: Fraction of the tracks, in [0, 1); any fraction above 0 gives at least one track.

        Returns:
            Track seeds for training and for validation, each sorted.

        Raises:
            ValueError: If the fraction is out of range, or above 0 with fewer than two tracks.
        """
        tracks = sorted(set(self.seeds))
        if not 0 <= validation_fraction < 1:
            raise ValueError(
                f"validation_fraction must lie in [0, 1), got {validation_fraction}; 0 keeps all for training."
            )
        if validation_fraction == 0:
            return tracks, []
        if len(tracks) < 2:
            raise ValueError(
                f"validation_fraction {validation_fraction} needs at least two tracks, {self.path} has {len(tracks)}; "
                "record more or pass 0."
            )
        count = min(max(round(validation_fraction * len(tracks)), 1), len(tracks) - 1)
        shuffled = [tracks[i] for i in np.random.default_rng(0).permutation(len(tracks))]
        return sorted(shuffled[count:]), sorted(shuffled[:count])

    def fingerprint(self) -> str:
        """Return the SHA-256 of the rows of all episodes; it does not depend on the place of the folder."""
        return hashlib.sha256((self.path / "episodes.jsonl").read_bytes()).hexdigest()

    def info(self) -> dict[str, Any]:
        """Return a description in plain values, ready for JSON; `describe` turns it into text with units.

        Returns:
            `seconds`: duration of all episodes.  `labels`, `actions`: fraction of frames with each discrete action, or
            the mean of steer, gas and brake.  `off_label_fraction`: fraction of frames whose executed action is not the
            label.  `bytes`: size of the episode files.  Own data has no seconds, completion, laps finished, off-road
            events and crashes.
        """
        return dataset_info(self.path, self.meta, self.rows)

    def verify(
        self, *, replay: bool = False, workers: int = 1, on_episode: Callable[[Row], None] = lambda row: None
    ) -> list[str]:
        """Check every episode, see `check_episode`.

        Args:
            replay: Simulate every episode again as well (slow).
            workers: Processes.
            on_episode: Called with each row once its episode is checked.

        Returns:
            One line per problem; empty for a sound dataset.

        Raises:
            DatasetError: If own data is to be replayed.
        """
        if replay and not self.meta.simulated:
            raise DatasetError(f"{self.path} holds own data, which cannot be simulated again; verify without a replay.")
        problems = []
        if self._cut_off:
            problems.append(f"{self.path / 'episodes.jsonl'}: the last row is cut off; go on recording with --resume")
        known = {self.path / row["file"] for row in self.rows}
        problems += [
            f"{path}: no row for this episode; go on recording with --resume"
            for path in sorted((self.path / "episodes").glob("*.h5"))
            if path not in known
        ]
        check = partial(check_episode, self.path, self.meta.env, replay)
        for row, found in zip(self.rows, map_in_processes(check, self.rows, workers), strict=True):
            problems += found
            on_episode(row)
        return problems

    # Writing

    def require_meta(self, meta: Meta) -> None:
        """Raise DatasetError, naming the keys, unless the dataset was recorded with `meta`."""
        saved, requested = flatten(asdict(self.meta)), flatten(asdict(meta))
        differences = "; ".join(
            f"{key}: dataset has {saved.get(key)!r}, got {requested.get(key)!r}"
            for key in sorted(saved.keys() | requested.keys())
            if saved.get(key) != requested.get(key)
        )
        if differences:
            raise DatasetError(
                f"dataset {self.path} was recorded with other settings ({differences}); "
                "keep it, or record into another folder."
            )

    def append(self, row: Row) -> None:
        """Add the row of an episode whose file is in place; it is on disk when the call returns.

        Raises:
            WriteError: If it cannot be written.
        """
        path = self.path / "episodes.jsonl"
        with writing(path), path.open("ab") as file:
            file.write((json.dumps(row) + "\n").encode())
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
        for row, seed in zip((self._rows.get(i) for i in range(len(seeds))), seeds, strict=True):
            if row and row["seed"] != seed:
                raise DatasetError(
                    f"cannot resume {self.path}: its episode {row['index']} is on track {row['seed']}, "
                    f"got {seed}; pass the same tracks (more may follow them), or record into another folder."
                )
        with writing(self.path):
            (self.path / "episodes").mkdir(exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path / "episodes"):
                pass
        before, rowed = self.rows, set(self._rows)
        self._rows = {row["index"]: row for row in before if self._is_intact(row)}
        for index, seed in enumerate(seeds):
            if index not in rowed and (row := self._orphan(index, seed)):
                self._rows[index] = row
        with writing(self.path):
            changed = [self.path / row["file"] for row in before if row["index"] not in self._rows]
            for leftover in (*changed, *self.path.glob("*.tmp"), *self.path.glob("episodes/*.tmp")):
                leftover.unlink(missing_ok=True)
            if self._cut_off or self.rows != before:
                lines = "".join(json.dumps(row) + "\n" for row in self.rows)
                write_atomically(self.path / "episodes.jsonl", lines.encode())
        self._cut_off = False

    def _is_intact(self, row: Row) -> bool:
        path = self.path / row["file"]
        return path.is_file() and file_sha256(path) == row["sha256"]

    def _orphan(self, index: int, seed: int) -> Row | None:
        path = self.path / episode_file(index)
        try:
            _, summary = read_episode(path, self.meta.env.control, frame_shape=self.meta.env.spec.frame_shape)
        except DatasetError:
            return None
        return episode_row(index, summary, file_sha256(path)) if summary["seed"] == seed else None

    def _rows_of(self, seeds: Sequence[int]) -> list[Row]:
        wanted = set(seeds)
        missing = wanted - set(self.seeds)
        if missing:
            raise DatasetError(
                f"dataset {self.path} has no episode on tracks {sorted(missing)[:5]}; pass seeds out of its `seeds`."
            )
        return [row for row in self.rows if row["seed"] in wanted]
