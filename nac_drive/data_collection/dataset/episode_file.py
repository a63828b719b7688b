"""One demonstrated episode in an HDF5 file.

It is lossless, written whole or not at all, and checked when it is read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from stat import S_ISREG
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from nac_drive.data_collection.dataset.episode_arrays import TELEMETRY, EpisodeArrays
from nac_drive.data_collection.dataset.hdf5 import StoredArray, attributes, member, require_members
from nac_drive.data_collection.dataset.limits import (
    LARGEST_NUMBER,
    LONGEST_DT,
    DatasetError,
    require_size,
    unreadable,
)
from nac_drive.data_collection.dataset.meta import META, read_meta
from nac_drive.data_collection.dataset.rows import (
    OPTIONAL,
    SUMMARY,
    DatasetRow,
    checked_summary,
    episode_file,
    episode_row,
)
from nac_drive.envs import EnvConfig
from nac_drive.storage.read import FRACTION
from nac_drive.storage.write import write_atomically, writing

EPISODE_SCHEMA = "nac-drive episode 2"
"""N + 1 frames: the last one is the observation after the last action."""
N_FRAMES_SCHEMA = "nac-drive episode 1"
"""N frames, without the observation after the last action: own data that has none."""

CHUNK_FRAMES = 16
MOST_CHUNK_FRAMES = 256
"""Frames of the largest chunk that is read."""
GZIP_LEVEL = 4
"""Level 6 saves a tenth of the bytes at two thirds of the speed."""
LARGEST_RATIO = 100
"""Largest ratio of the size of an episode's arrays to the size of its file, above 64 MiB; 12 to 15 are usual."""

_TELEMETRY = "telemetry/"

_COLUMNS: dict[str, str | None] = {"label": None, "action": None, "reward": "<f8", "dt": "<f8", "zooming": "?"}
"""Arrays of one row per step and their types; the type of an action depends on the control."""
_RANGES = {
    "dt": (0, LONGEST_DT),
    f"{_TELEMETRY}completion": (FRACTION.ge, FRACTION.le),
    f"{_TELEMETRY}wheels_off_road": (0, LARGEST_NUMBER),
}
"""Lowest and highest value of a column; other numbers are finite."""


def _bytes_of(parts: int) -> int:
    """Return the most bytes of a step without its frame.

    An action has so many parts.
    """
    return 2 * max(12, 4 * parts) + 8 + 8 + 1 + 8 * len(TELEMETRY)


def encode_episode(arrays: EpisodeArrays, summary: dict[str, Any]) -> bytes:
    """Return the content of an episode file. The same episode gives the same bytes.

    Args:
        arrays: The arrays of the episode; without a last frame the content has `N_FRAMES_SCHEMA`.
        summary: The values of `SUMMARY`, and of `OPTIONAL` where there are some.

    Raises:
        DatasetError: If it could not be read again, see `LARGEST_RATIO`: its frames hardly differ.
    """
    last = arrays.last_frame
    frames = arrays.frames if last is None else np.concatenate([arrays.frames, last[None]])
    with h5py.File("episode", "w", driver="core", backing_store=False) as file:
        file.attrs["schema"] = N_FRAMES_SCHEMA if last is None else EPISODE_SCHEMA
        for name in (name for name in (*SUMMARY, *OPTIONAL) if name in summary):
            file.attrs[name] = summary[name]
        chunk = (min(CHUNK_FRAMES, len(frames)), *frames.shape[1:])
        file.create_dataset("frames", data=frames, chunks=chunk, compression="gzip", compression_opts=GZIP_LEVEL)
        for name, values in arrays.columns().items():
            file.create_dataset(name, data=values, chunks=values.shape, compression="gzip")
        file.flush()
        content = file.id.get_file_image()
    require_size(frames.nbytes + len(arrays.label) * _bytes_of(arrays.label[0].size), len(content), LARGEST_RATIO)
    return content


@dataclass(frozen=True)
class EpisodeReader:
    """An open episode file, see `opened`.

    All that it says about itself is checked. Values are checked when they are read.

    It is of use only while the file is open.
    """

    summary: dict[str, Any]
    """Values of `SUMMARY`, and of `OPTIONAL` where there are some."""
    frames: StoredArray
    """(N, 96, 96, 3) uint8, or N + 1 frames: then the last one is the observation after the last action."""
    columns: dict[str, StoredArray]
    """The arrays of one row per step, by their names in `EpisodeArrays.columns`."""
    env: EnvConfig
    """The environment of the dataset."""

    def column(self, name: str) -> NDArray[Any]:
        """Read an array of one row per step.

        Args:
            name: One of `columns`.

        Raises:
            DatasetError: If a value is out of range.
        """
        values = self.columns[name].read()
        _require_values(name, values, self.env)
        return values


@contextmanager
def opened(path: Path, env: EnvConfig) -> Iterator[EpisodeReader]:
    """Open an episode file for a `with` block.

    Nothing is read but the summary.

    Args:
        path: The file.
        env: The dataset's EnvConfig.

    Raises:
        DatasetError: If it is no episode file, if an array has another type or size than the summary and `env` say, or
            if it would unpack to more than `LARGEST_RATIO` allows; also instead of an error in the block.
    """
    with _named(path):
        size = _status(path).st_size
        with h5py.File(path, "r") as file:
            yield _reader(file, size, env)


@contextmanager
def opened_row(folder: Path, row: DatasetRow, env: EnvConfig) -> Iterator[EpisodeReader]:
    """Open the episode of a row, see `opened`, after `require_recorded`.

    Args:
        folder: The dataset folder.
        row: The row of the episode.
        env: The dataset's EnvConfig.

    Raises:
        DatasetError: As both do, or if the episode has another length than its row.
    """
    require_recorded(folder, row, env)
    with opened(folder / row["file"], env) as episode:
        if episode.summary["length"] != row["length"]:
            raise DatasetError(f"it has {episode.summary['length']} frames, its row says {row['length']}")
        yield episode


def require_recorded(folder: Path, row: DatasetRow, env: EnvConfig) -> None:
    """Check that a row's file is the recorded one.

    It must be large enough for its frames. Nothing of it is unpacked.

    A file is hashed once in a process, and again when its size or one of its times has changed.

    Raises:
        DatasetError: If it is not.
    """
    path = folder / row["file"]
    with _named(path):
        status = _status(path)
        require_size(row["length"] * prod(env.spec.frame_shape), status.st_size, LARGEST_RATIO)
        if _sha256_of(path.absolute(), status.st_size, status.st_mtime_ns, status.st_ctime_ns) != row["sha256"]:
            raise DatasetError("its content has changed since it was recorded (SHA-256 differs from the row's)")


@lru_cache(maxsize=100_000)
def _sha256_of(path: Path, *version: int) -> str:
    return file_sha256(path)


def episode_sha256(path: Path) -> str:
    """Return the SHA-256 of an episode file.

    Raises:
        DatasetError: If it is no plain file, or cannot be read.
    """
    with _named(path):
        _status(path)
        return file_sha256(path)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_episode(
    path: Path, env: EnvConfig, *, frames: NDArray[np.uint8] | None = None
) -> tuple[EpisodeArrays, dict[str, Any]]:
    """Read an episode file, with either schema.

    Args:
        path: The file.
        env: The dataset's EnvConfig.
        frames: (N, H, W, 3), filled and used in the result if given.

    Returns:
        The arrays and the summary.

    Raises:
        DatasetError: As `opened` does; and unless the file is whole and its numbers are in range.
    """
    with opened(path, env) as episode:
        length, stored = episode.summary["length"], episode.frames
        if frames is None:
            frames = np.empty((length, *stored.shape[1:]), dtype=np.uint8)
        elif len(frames) != length:
            raise DatasetError(f"it has {length} frames, expected {len(frames)}")
        last = np.empty((stored.shape[0] - length, *stored.shape[1:]), dtype=np.uint8)
        columns = {name: episode.column(name) for name in episode.columns}
        for number, packed in enumerate([stored.packed(i) for i in range(len(stored))]):
            start, rows = number * stored.rows, stored.unpack(number, packed)
            head = min(len(rows), length - start)
            frames[start : start + head] = rows[:head]
            last[: len(rows) - head] = rows[head:]
    steps = {name: columns.pop(name) for name in _COLUMNS}
    telemetry = {name.removeprefix(_TELEMETRY): values for name, values in columns.items()}
    arrays = EpisodeArrays(frames=frames, **steps, telemetry=telemetry, last_frame=last[0] if len(last) else None)
    return arrays, episode.summary


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn errors into a DatasetError of one line.

    It names the file.
    """
    try:
        yield
    except Exception as error:  # the type that h5py raises on a damaged file depends on the byte that is damaged
        raise unreadable(f"episode {path}", error, _repair(path)) from error


def _repair(path: Path) -> str:
    """Return the advice for an episode file of its dataset."""
    try:
        return read_meta(path.parent.parent / META)[0].repair
    except DatasetError:  # the dataset is not finished
        return "write the dataset again"


def _status(path: Path) -> os.stat_result:
    """Return size and times of a plain file."""
    status = path.lstat()
    if not S_ISREG(status.st_mode):
        raise DatasetError("it is no plain file")
    return status


def _reader(file: h5py.File, size: int, env: EnvConfig) -> EpisodeReader:
    """Check all that a file of `size` bytes says about itself."""
    values = attributes(file, ("schema", *SUMMARY, *OPTIONAL))
    schema = values.pop("schema", None)
    if schema not in (EPISODE_SCHEMA, N_FRAMES_SCHEMA):
        raise DatasetError(f"its schema is {str(schema)[:100]!r}, expected {EPISODE_SCHEMA!r}")
    summary = checked_summary(values)
    length, shape = summary["length"], env.spec.frame_shape
    stored = length + (schema == EPISODE_SCHEMA)
    require_size(stored * prod(shape) + length * _bytes_of(len(env.spec.parts)), size, LARGEST_RATIO)
    group_name = _TELEMETRY.rstrip("/")
    require_members(file, ("frames", *_COLUMNS, group_name))
    columns: dict[str, StoredArray] = {}
    for name, dtype in _COLUMNS.items():
        kind = (dtype, ()) if dtype else ("<i8", ()) if env.control == "discrete" else ("<f4", (len(env.spec.parts),))
        columns[name] = StoredArray(file, name, kind[0], (length, *kind[1]), length, size)
    if group_name in file:
        group = member(file, group_name, h5py.Group)
        require_members(group, TELEMETRY)
        for name in TELEMETRY:
            columns[_TELEMETRY + name] = StoredArray(group, name, "<f8", (length,), length, size)
    frames = StoredArray(file, "frames", np.uint8, (stored, *shape), MOST_CHUNK_FRAMES, size)
    return EpisodeReader(summary, frames, columns, env)


def _require_values(name: str, values: NDArray[Any], env: EnvConfig) -> None:
    """Raise DatasetError unless every value of a column is in its range."""
    low: Any = -LARGEST_NUMBER
    high: Any = LARGEST_NUMBER
    if name == "zooming":
        low, high, values = 0, 1, values.view(np.uint8)
    elif name in ("label", "action"):
        low, high = action_range(env)
    elif name in _RANGES:
        low, high = _RANGES[name]
    if not ((values >= low) & (values <= high)).all():  # so is NaN
        raise DatasetError(f"{name} has a value outside of {low} to {high}")


def action_range(env: EnvConfig) -> tuple[Any, Any]:
    """Return the lowest and the highest action.

    They are integers, or numbers such as (steer, gas, brake) in continuous control.
    """
    if env.control == "discrete":
        return 0, env.spec.num_actions - 1
    low, high = zip(*env.spec.part_ranges, strict=True)
    return low, high


@dataclass(frozen=True)
class EncodedEpisode:
    """An episode that is ready to be written. The process that made it need not see the dataset's folder."""

    row: DatasetRow
    """Its row of episodes.jsonl."""
    content: bytes
    """The content of its file."""

    @classmethod
    def encode(cls, index: int, arrays: EpisodeArrays, summary: dict[str, Any]) -> EncodedEpisode:
        """Return the file and the row of episode `index`."""
        content = encode_episode(arrays, summary)
        return cls(episode_row(index, summary, hashlib.sha256(content).hexdigest()), content)

    @classmethod
    def read(cls, folder: Path, row: DatasetRow, env: EnvConfig, index: int) -> EncodedEpisode:
        """Read an episode of a dataset as episode `index`.

        Raises:
            DatasetError: If it is damaged, see `require_recorded`.
        """
        require_recorded(folder, row, env)
        summary = {key: value for key, value in row.items() if key not in ("index", "file", "sha256")}
        return cls(episode_row(index, summary, row["sha256"]), (folder / row["file"]).read_bytes())

    def write(self, path: Path) -> DatasetRow:
        """Write the file into the dataset at `path`. Return the row to append.

        Raises:
            WriteError: If it cannot be written.
        """
        file = path / episode_file(self.row["index"])
        with writing(file):
            write_atomically(file, self.content)
        return self.row
