"""One demonstrated episode on disk: an HDF5 file, lossless, written whole or not at all."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from nac_drive.data_collection.files import write_atomically, writing
from nac_drive.envs import FRAME_SHAPE, Episode, Step

EPISODE_SCHEMA = "nac-drive episode 1"
CHUNK_FRAMES = 16
GZIP_LEVEL = 4
"""Level 6 saves a tenth of the bytes at two thirds of the speed."""

TELEMETRY = ("speed", "lateral_offset", "heading_error", "completion", "wheels_off_road")
"""Of each observation; units as in `CarRacing`'s docstring."""
SUMMARY = ("seed", "return", "length", "terminated", "completion", "lap_finished", "off_road_events", "crashes")
"""Attributes of the file, and columns of the dataset's episode rows."""

ROUND = "round"
"""Attribute and column of the episodes of a DAgger run only: the round that they were driven in."""

ROW = ("index", *SUMMARY, "file", "sha256")
"""Keys of a row of episodes.jsonl. `return` is the sum of the native rewards; `file` is relative to the dataset."""


class DatasetError(ValueError):
    """Something is wrong with a dataset. One line: where, what, and the fix."""


@dataclass(frozen=True)
class EpisodeArrays:
    """What happened in N frames; row i is the observation i and the decision made on it.

    frames: (N, 96, 96, 3) uint8.  label: what the expert would do, int64 (N,) or float32 (N, 3).
    action: what was executed, like label.  reward: (N,) float64, native, for executing it.
    dt: (N,) float64, seconds since the previous observation, 0 at the first.  zooming: (N,) bool, gymnasium's opening
    animation.  telemetry: one (N,) float64 per name of `TELEMETRY`.
    """

    frames: NDArray[np.uint8]
    label: NDArray[Any]
    action: NDArray[Any]
    reward: NDArray[np.float64]
    dt: NDArray[np.float64]
    zooming: NDArray[np.bool_]
    telemetry: dict[str, NDArray[np.float64]]

    @classmethod
    def from_steps(cls, steps: Sequence[Step]) -> EpisodeArrays:
        """Of the steps of one rollout. The label is the expert_action where an expert was asked, else the intended action."""
        return cls(
            frames=np.stack([step.observation for step in steps]),
            label=_actions([step.intended if step.expert_action is None else step.expert_action for step in steps]),
            action=_actions([step.action for step in steps]),
            reward=np.array([step.reward for step in steps], dtype=np.float64),
            dt=np.array([step.dt for step in steps], dtype=np.float64),
            zooming=np.array([step.info["zooming"] for step in steps], dtype=np.bool_),
            telemetry={name: np.array([step.info[name] for step in steps], dtype=np.float64) for name in TELEMETRY},
        )

    def columns(self) -> dict[str, NDArray[Any]]:
        """Every array but the frames, by its name in the file."""
        telemetry = {f"telemetry/{name}": values for name, values in self.telemetry.items()}
        return {
            "label": self.label, "action": self.action, "reward": self.reward, "dt": self.dt,
            "zooming": self.zooming, **telemetry,
        }  # fmt: skip


def summarize(episode: Episode) -> dict[str, Any]:
    """The values of `SUMMARY` for a finished episode."""
    return {
        "seed": episode.seed,
        "return": episode.episode_return,
        "length": episode.length,
        "terminated": episode.terminated,
        **{name: episode.outcome[name] for name in ("completion", "lap_finished", "off_road_events", "crashes")},
    }


def encode_episode(arrays: EpisodeArrays, summary: dict[str, Any]) -> bytes:
    """The content of an episode file. The same episode gives the same bytes."""
    with h5py.File("episode", "w", driver="core", backing_store=False) as file:
        file.attrs["schema"] = EPISODE_SCHEMA
        for name in (*SUMMARY, *({ROUND} & summary.keys())):
            file.attrs[name] = summary[name]
        chunk = (min(CHUNK_FRAMES, len(arrays.frames)), *FRAME_SHAPE)
        file.create_dataset("frames", data=arrays.frames, chunks=chunk, compression="gzip", compression_opts=GZIP_LEVEL)
        for name, values in arrays.columns().items():
            file.create_dataset(name, data=values, chunks=values.shape, compression="gzip")
        file.flush()
        return file.id.get_file_image()


def read_episode(
    path: Path, control: str, *, frames: NDArray[np.uint8] | None = None
) -> tuple[EpisodeArrays, dict[str, Any]]:
    """The arrays and the summary in an episode file.

    control: of the dataset's EnvConfig; decides the shape of an action.  frames: (N, 96, 96, 3), filled and used in the
    result if given.
    Raises DatasetError unless the file is whole, its arrays have the same length and its numbers are finite.
    """
    try:
        with h5py.File(path, "r") as file:
            if file.attrs.get("schema") != EPISODE_SCHEMA:
                raise DatasetError(f"its schema is {file.attrs.get('schema')!r}, expected {EPISODE_SCHEMA!r}")
            names = (*SUMMARY, *({ROUND} & file.attrs.keys()))
            summary: dict[str, Any] = {name: np.asarray(file.attrs[name]).item() for name in names}
            columns = {name: _values(file, f"telemetry/{name}") for name in TELEMETRY}
            label, action = _values(file, "label"), _values(file, "action")
            reward, dt, zooming = (_values(file, name) for name in ("reward", "dt", "zooming"))
            shape, chunks = _stored_chunks(file)
        if frames is None:
            frames = np.empty(shape, dtype=np.uint8)
        elif frames.shape != shape:
            raise DatasetError(f"frames have shape {shape}, expected {frames.shape}")
        _decompress(chunks, frames)
        arrays = EpisodeArrays(frames, label, action, reward, dt, zooming, columns)
        _require_sound(arrays, summary["length"], control)
    except Exception as error:  # what h5py raises on a damaged file depends on the byte that is damaged
        raise unreadable(path, error) from error
    return arrays, summary


def read_actions(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Label and executed action of every frame, without the frames. Raises DatasetError for a damaged file."""
    try:
        with h5py.File(path, "r") as file:
            return _values(file, "label"), _values(file, "action")
    except Exception as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> DatasetError:
    """One line for whatever went wrong with an episode file."""
    told = str(error) or repr(error)
    cause = "the file is missing" if isinstance(error, FileNotFoundError) else told.splitlines()[0]
    return DatasetError(f"episode {path} cannot be read: {cause}; record it again with --resume.")


def write_episode(path: Path, index: int, arrays: EpisodeArrays, summary: dict[str, Any]) -> dict[str, Any]:
    """Write episode `index` of the dataset at `path`; returns the row to `append`. WriteError if it cannot."""
    content = encode_episode(arrays, summary)
    with writing(path / episode_file(index)):
        write_atomically(path / episode_file(index), content)
    return episode_row(index, summary, hashlib.sha256(content).hexdigest())


def episode_file(index: int) -> str:
    """Where episode `index` lies in its dataset folder."""
    return f"episodes/{index:06d}.h5"


def episode_row(index: int, summary: dict[str, Any], sha256: str) -> dict[str, Any]:
    """The row of episodes.jsonl that tells of an episode file; its keys are `ROW`."""
    return {"index": index, **summary, "file": episode_file(index), "sha256": sha256}


def _actions(actions: Sequence[Any]) -> NDArray[Any]:
    stacked = np.stack(actions)
    return stacked.astype(np.int64 if stacked.dtype.kind in "iu" else np.float32)


def _dataset(file: h5py.File, name: str) -> h5py.Dataset:
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        raise DatasetError(f"{name} is not an array")
    return dataset


def _values(file: h5py.File, name: str) -> NDArray[Any]:
    return _dataset(file, name)[()]


def _stored_chunks(file: h5py.File) -> tuple[tuple[int, ...], list[bytes]]:
    """The shape of the frames and their compressed chunks. HDF5 decodes under one lock; zlib lets threads run."""
    dataset = _dataset(file, "frames")
    found, chunks = (dataset.dtype, dataset.shape[1:], dataset.compression), dataset.chunks
    if found != (np.uint8, FRAME_SHAPE, "gzip") or chunks is None:
        raise DatasetError(f"frames are stored as {found}, expected uint8 {FRAME_SHAPE} gzip")
    starts = range(0, len(dataset), chunks[0])
    return dataset.shape, [dataset.id.read_direct_chunk((start, 0, 0, 0))[1] for start in starts]


def _decompress(chunks: list[bytes], frames: NDArray[np.uint8]) -> None:
    start = 0
    for chunk in chunks:
        block = np.frombuffer(zlib.decompress(chunk), dtype=np.uint8).reshape(-1, *FRAME_SHAPE)
        used = min(len(block), len(frames) - start)  # the last chunk is stored at full length
        frames[start : start + used] = block[:used]
        start += used
    if start != len(frames):
        raise DatasetError(f"{start} of {len(frames)} frames are stored")


def _require_sound(arrays: EpisodeArrays, length: int, control: str) -> None:
    action_shape, action_dtype = ((length,), np.int64) if control == "discrete" else ((length, 3), np.float32)
    if len(arrays.frames) != length:
        raise DatasetError(f"it has {len(arrays.frames)} frames, its length says {length}")
    for name, values in arrays.columns().items():
        expected = action_shape if name in ("label", "action") else (length,)
        if values.shape != expected:
            raise DatasetError(f"{name} has shape {values.shape}, expected {expected}")
        if name in ("label", "action") and values.dtype != action_dtype:
            raise DatasetError(f"{name} is {values.dtype}, expected {np.dtype(action_dtype)} for {control} control")
        if not np.isfinite(values).all():
            raise DatasetError(f"{name} has numbers that are not finite")
