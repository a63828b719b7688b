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

EPISODE_SCHEMA = "nac-drive episode 2"
"""N + 1 frames: the last one is the observation after the last action."""
N_FRAMES_SCHEMA = "nac-drive episode 1"
"""N frames, without the observation after the last action: files of version 0.1, and own data that has none."""

CHUNK_FRAMES = 16
GZIP_LEVEL = 4
"""Level 6 saves a tenth of the bytes at two thirds of the speed."""

TELEMETRY = ("speed", "lateral_offset", "heading_error", "completion", "wheels_off_road")
"""Telemetry of each observation; units as in `CarRacing`'s docstring. All of them are stored, or none (own data)."""
SUMMARY = ("seed", "return", "length", "terminated", "completion", "lap_finished", "off_road_events", "crashes")
"""Attributes of the file, and columns of the dataset's episode rows."""

ROUND = "round"
"""Attribute and column of the episodes of a DAgger run only: the round in which they were collected."""

ROW = ("index", *SUMMARY, "file", "sha256")
"""Keys of a row of episodes.jsonl. `return` is the sum of the native rewards; `file` is relative to the dataset."""


class DatasetError(ValueError):
    """Something is wrong with a dataset. The message is one line: where, the cause, and the fix."""


@dataclass(frozen=True)
class EpisodeArrays:
    """The arrays of an episode of N steps; row i is observation i and the decision made on it."""

    frames: NDArray[np.uint8]
    """(N, 96, 96, 3): the observations that the driver acted on."""
    label: NDArray[Any]
    """int64 (N,) or float32 (N, 3): the expert's action."""
    action: NDArray[Any]
    """The executed action, like `label`."""
    reward: NDArray[np.float64]
    """(N,): the native reward of the executed action."""
    dt: NDArray[np.float64]
    """(N,): seconds since the previous observation, 0 at the first."""
    zooming: NDArray[np.bool_]
    """(N,): whether gymnasium's opening animation is on."""
    telemetry: dict[str, NDArray[np.float64]]
    """One (N,) array per name of `TELEMETRY`; empty for own data."""
    last_frame: NDArray[np.uint8] | None = None
    """(96, 96, 3): the observation after the last action; None where it was not stored."""

    @classmethod
    def from_steps(cls, steps: Sequence[Step], last_frame: NDArray[np.uint8] | None) -> EpisodeArrays:
        """Return the arrays of one rollout.

        Args:
            steps: Its N steps. The label is the expert's action if an expert was queried, else the intended action.
            last_frame: Its `Episode.last_observation`.
        """
        return cls(
            frames=np.stack([step.observation for step in steps]),
            label=_actions([step.intended if step.expert_action is None else step.expert_action for step in steps]),
            action=_actions([step.action for step in steps]),
            reward=np.array([step.reward for step in steps], dtype=np.float64),
            dt=np.array([step.dt for step in steps], dtype=np.float64),
            zooming=np.array([step.info["zooming"] for step in steps], dtype=np.bool_),
            telemetry={name: np.array([step.info[name] for step in steps], dtype=np.float64) for name in TELEMETRY},
            last_frame=last_frame,
        )

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return every array except frames, by its name in the file.

        The order, in which action logs hash them, is the same before and after a file, which forgets it.
        """
        names = [name for name in TELEMETRY if name in self.telemetry]
        names += sorted(self.telemetry.keys() - set(names))
        telemetry = {f"telemetry/{name}": self.telemetry[name] for name in names}
        return {
            "label": self.label, "action": self.action, "reward": self.reward, "dt": self.dt,
            "zooming": self.zooming, **telemetry,
        }  # fmt: skip


def summarize(episode: Episode) -> dict[str, Any]:
    """Return the values of `SUMMARY` for a finished episode."""
    return {
        "seed": episode.seed,
        "return": episode.episode_return,
        "length": episode.length,
        "terminated": episode.terminated,
        **{name: episode.outcome[name] for name in ("completion", "lap_finished", "off_road_events", "crashes")},
    }


def encode_episode(arrays: EpisodeArrays, summary: dict[str, Any]) -> bytes:
    """Return the content of an episode file. The same episode gives the same bytes.

    Args:
        arrays: The arrays of the episode; without a last frame the content has `N_FRAMES_SCHEMA`.
        summary: The values of `SUMMARY`, and of `ROUND` in a DAgger run.
    """
    last = arrays.last_frame
    frames = arrays.frames if last is None else np.concatenate([arrays.frames, last[None]])
    with h5py.File("episode", "w", driver="core", backing_store=False) as file:
        file.attrs["schema"] = N_FRAMES_SCHEMA if last is None else EPISODE_SCHEMA
        for name in (*SUMMARY, *({ROUND} & summary.keys())):
            file.attrs[name] = summary[name]
        chunk = (min(CHUNK_FRAMES, len(frames)), *frames.shape[1:])
        file.create_dataset("frames", data=frames, chunks=chunk, compression="gzip", compression_opts=GZIP_LEVEL)
        for name, values in arrays.columns().items():
            file.create_dataset(name, data=values, chunks=values.shape, compression="gzip")
        file.flush()
        return file.id.get_file_image()


def read_episode(
    path: Path,
    control: str,
    *,
    frames: NDArray[np.uint8] | None = None,
    frame_shape: tuple[int, int, int] = FRAME_SHAPE,
) -> tuple[EpisodeArrays, dict[str, Any]]:
    """Read an episode file, with either schema.

    Args:
        path: The file.
        control: Control of the dataset's EnvConfig; it decides the shape of an action.
        frames: (N, H, W, 3), filled and used in the result if given.
        frame_shape: Height, width and channels of a frame.

    Returns:
        The arrays and the summary.

    Raises:
        DatasetError: Unless the file is whole, its arrays have the same length and its numbers are finite.
    """
    try:
        with h5py.File(path, "r") as file:
            schema = file.attrs.get("schema")
            if schema not in (EPISODE_SCHEMA, N_FRAMES_SCHEMA):
                raise DatasetError(f"its schema is {schema!r}, expected {EPISODE_SCHEMA!r}")
            names = (*SUMMARY, *({ROUND} & file.attrs.keys()))
            summary: dict[str, Any] = {name: np.asarray(file.attrs[name]).item() for name in names}
            group: Any = file.get("telemetry", ())
            columns = {name: _values(file, f"telemetry/{name}") for name in group}
            label, action = _values(file, "label"), _values(file, "action")
            reward, dt, zooming = (_values(file, name) for name in ("reward", "dt", "zooming"))
            stored, chunks = _stored_chunks(file, frame_shape)
        count = stored - (schema == EPISODE_SCHEMA)
        if frames is None:
            frames = np.empty((max(count, 0), *frame_shape), dtype=np.uint8)
        elif len(frames) != count:
            raise DatasetError(f"it has {count} frames, expected {len(frames)}")
        last = np.empty((stored - len(frames), *frame_shape), dtype=np.uint8)
        _decompress(chunks, frames, last)
        arrays = EpisodeArrays(
            frames, label, action, reward, dt, zooming, columns, last[0] if schema == EPISODE_SCHEMA else None
        )
        _require_sound(arrays, summary["length"], control)
    except Exception as error:  # the type that h5py raises on a damaged file depends on the byte that is damaged
        raise unreadable(path, error) from error
    return arrays, summary


def read_actions(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return label and executed action of every frame, without the frames.

    Raises:
        DatasetError: If the file is damaged.
    """
    try:
        with h5py.File(path, "r") as file:
            return _values(file, "label"), _values(file, "action")
    except Exception as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> DatasetError:
    """Return a one-line error for an episode file that cannot be read."""
    message = str(error) or repr(error)
    cause = "the file is missing" if isinstance(error, FileNotFoundError) else message.splitlines()[0]
    return DatasetError(f"episode {path} cannot be read: {cause}; record it again with --resume.")


def write_episode(path: Path, index: int, arrays: EpisodeArrays, summary: dict[str, Any]) -> dict[str, Any]:
    """Write episode `index` of the dataset at `path`; return the row to append.

    Raises:
        WriteError: If it cannot be written.
    """
    content = encode_episode(arrays, summary)
    with writing(path / episode_file(index)):
        write_atomically(path / episode_file(index), content)
    return episode_row(index, summary, hashlib.sha256(content).hexdigest())


def episode_file(index: int) -> str:
    """Return the path of episode `index` inside its dataset folder."""
    return f"episodes/{index:06d}.h5"


def episode_row(index: int, summary: dict[str, Any], sha256: str) -> dict[str, Any]:
    """Return the row of episodes.jsonl for an episode file; its keys are `ROW`."""
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


def _stored_chunks(file: h5py.File, frame_shape: tuple[int, int, int]) -> tuple[int, list[bytes]]:
    """Return the number of frames and their compressed chunks. HDF5 decodes under one lock; zlib lets threads run."""
    dataset = _dataset(file, "frames")
    stored, chunks = (dataset.dtype, dataset.shape[1:], dataset.compression), dataset.chunks
    if stored != (np.uint8, frame_shape, "gzip") or chunks is None:
        raise DatasetError(f"frames are stored as {stored}, expected uint8 {frame_shape} gzip")
    starts = range(0, len(dataset), chunks[0])
    return len(dataset), [dataset.id.read_direct_chunk((start, 0, 0, 0))[1] for start in starts]


def _decompress(chunks: list[bytes], frames: NDArray[np.uint8], last: NDArray[np.uint8]) -> None:
    """Fill `frames` (N, H, W, 3) and, after them, `last` (0 or 1, H, W, 3) from chunks."""
    start, total = 0, len(frames) + len(last)
    for chunk in chunks:
        block = np.frombuffer(zlib.decompress(chunk), dtype=np.uint8).reshape(-1, *frames.shape[1:])
        block = block[: total - start]  # the last chunk is stored at full length
        head = min(len(block), len(frames) - start)
        frames[start : start + head] = block[:head]
        last[: len(block) - head] = block[head:]
        start += len(block)
    if start != total:
        raise DatasetError(f"{start} of {total} frames are stored")


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
