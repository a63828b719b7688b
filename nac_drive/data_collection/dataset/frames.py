"""Demonstrations as arrays: frames in memory, or in their files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from nac_drive.data_collection.dataset.episode_file import opened_row, read_episode, require_recorded
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.meta import Meta
from nac_drive.data_collection.dataset.rows import DatasetRow, labelled_frames
from nac_drive.data_collection.dataset.sources import seeds_of
from nac_drive.data_collection.dataset.stored_frames import StoredFrames, frame_chunks
from nac_drive.envs import EnvConfig

Images = TypeVar("Images", NDArray[np.uint8], StoredFrames)
"""Frames in memory, or in their files."""
_AS_STORED = ("label", "action", "zooming")
"""Columns that keep their type in memory; all others become float32."""


@dataclass(frozen=True)
class Frames(Generic[Images]):
    """E episodes end to end: N frames. Row i is observation i and the decision made on it."""

    frames: Images
    """(N, 96, 96, 3) uint8; a slice of them is an array."""
    labels: NDArray[Any]
    """int64 (N,) or float32 (N, 3): the expert's actions."""
    actions: NDArray[Any]
    """The executed actions, like `labels`."""
    rewards: NDArray[np.float32]
    """(N,)."""
    dt: NDArray[np.float32]
    """(N,): seconds since the previous observation, 0 at the start of an episode."""
    zooming: NDArray[np.bool_]
    """(N,): whether gymnasium's opening animation is on."""
    telemetry: dict[str, NDArray[np.float32]]
    """One (N,) array per name of `TELEMETRY`; empty for own data, and for frames in their files."""
    offsets: NDArray[np.int64]
    """(E + 1,): episode e is the rows offsets[e] to offsets[e + 1]."""
    seeds: NDArray[np.int64]
    """(E,): track seeds."""
    hashes: tuple[str, ...] = ()
    """(E,): SHA-256 of each episode file; empty for frames of no dataset."""
    labelled: NDArray[np.bool_] | None = None
    """(N,): whether the label is the expert's; None where all are. In episodes that a person corrected it is elsewhere
    the driver's own action, from which nothing is learned."""

    def __len__(self) -> int:
        return len(self.labels)


def rows_on(path: Path, meta: Meta, rows: Sequence[DatasetRow], seeds: str | Sequence[int] | None) -> list[DatasetRow]:
    """Return the rows of the episodes on tracks.

    Args:
        path: The dataset folder, for errors.
        meta: The dataset's settings.
        rows: The rows of its episodes.
        seeds: The tracks, see `seeds_of`; None means all episodes.

    Returns:
        At least one row.

    Raises:
        DatasetError: If a track was not recorded, or there is no episode.
        ValueError: If `seeds` are neither named tracks nor numbers.
    """
    if seeds is not None and (isinstance(seeds, str) or not isinstance(seeds, Iterable)):
        seeds = seeds_of(seeds)
    if seeds is not None and not len(seeds):
        raise DatasetError(f"seeds must name at least one track of {path}, got none; leave it out for all.")
    recorded = {row["seed"] for row in rows}
    wanted = recorded if seeds is None else set(seeds)
    if missing := wanted - recorded:
        raise DatasetError(
            f"dataset {path} has no episode on tracks {sorted(missing)[:5]}; pass seeds out of its `seeds`."
        )
    if not rows:
        raise DatasetError(f"dataset {path} holds no finished episode; {meta.repair}.")
    return [row for row in rows if row["seed"] in wanted]


def load_frames(path: Path, rows: Sequence[DatasetRow], env: EnvConfig) -> Frames[NDArray[np.uint8]]:
    """Decode episodes into memory.

    Args:
        path: The dataset folder.
        rows: Rows of its episodes.jsonl, at least one.
        env: The dataset's EnvConfig.

    Returns:
        The episodes, without the frames after their last actions.

    Raises:
        DatasetError: If an episode is damaged.
    """
    offsets = _offsets(path, rows, env)
    frames = np.empty((offsets[-1], *env.spec.frame_shape), dtype=np.uint8)

    def decode(episode: int) -> dict[str, NDArray[Any]]:
        target = frames[offsets[episode] : offsets[episode + 1]]
        return read_episode(path / rows[episode]["file"], env, frames=target)[0].columns()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return _end_to_end(frames, rows, offsets, pool.map(decode, range(len(rows))))


def stream_frames(path: Path, rows: Sequence[DatasetRow], env: EnvConfig) -> Frames[StoredFrames]:
    """Read episodes without their frames.

    Frames are decoded where they are read; they take some 30 bytes of memory each.

    Args:
        path: The dataset folder.
        rows: Rows of its episodes.jsonl, at least one.
        env: The dataset's EnvConfig.

    Returns:
        The episodes, without the frames after their last actions and without telemetry.

    Raises:
        DatasetError: If an episode is damaged; frames are checked when they are decoded.
    """
    offsets, files = _offsets(path, rows, env), []

    def columns(row: DatasetRow) -> dict[str, NDArray[Any]]:
        with opened_row(path, row, env) as episode:
            files.append(frame_chunks(path / row["file"], episode.frames))
            return {name: episode.column(name) for name in episode.columns if not name.startswith("telemetry/")}

    return _end_to_end(StoredFrames(files, offsets, env.spec.frame_shape), rows, offsets, map(columns, rows))


def _offsets(path: Path, rows: Sequence[DatasetRow], env: EnvConfig) -> NDArray[np.int64]:
    """Return (E + 1,) the first row of each episode.

    `require_recorded` was called for all: none has memory yet.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(lambda row: require_recorded(path, row, env), rows):
            pass
    return np.cumsum([0, *(row["length"] for row in rows)], dtype=np.int64)


def _end_to_end(
    frames: Images, rows: Sequence[DatasetRow], offsets: NDArray[np.int64], episodes: Iterable[dict[str, NDArray[Any]]]
) -> Frames[Images]:
    """Return the columns of the episodes as one.

    Each is copied into its place when it comes.
    """
    columns: dict[str, NDArray[Any]] = {}
    for first, end, found in zip(offsets[:-1], offsets[1:], episodes, strict=True):
        if not columns:
            columns = {
                name: np.empty((offsets[-1], *values.shape[1:]), values.dtype if name in _AS_STORED else np.float32)
                for name, values in found.items()
            }
        columns = {name: values for name, values in columns.items() if name in found}
        for name, values in columns.items():
            values[first:end] = found[name]
    return Frames(
        frames=frames,
        labels=columns.pop("label"),
        actions=columns.pop("action"),
        rewards=columns.pop("reward"),
        dt=columns.pop("dt"),
        zooming=columns.pop("zooming"),
        telemetry={name.removeprefix("telemetry/"): values for name, values in columns.items()},
        offsets=offsets,
        seeds=np.array([row["seed"] for row in rows], dtype=np.int64),
        hashes=tuple(row["sha256"] for row in rows),
        labelled=_labelled(rows),
    )


def _labelled(rows: Sequence[DatasetRow]) -> NDArray[np.bool_] | None:
    masks = [labelled_frames(row) for row in rows]
    if all(mask is None for mask in masks):
        return None
    return np.concatenate(
        [np.ones(row["length"], np.bool_) if mask is None else mask for row, mask in zip(rows, masks, strict=True)]
    )
