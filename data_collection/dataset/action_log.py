"""A dataset as an action log: the executed actions without the frames, hundreds to thousands of times smaller.

CarRacing replays bit for bit from the seed of a track and the executed actions. An action log is one npz file without
pickles:

    action_log  JSON: its schema, the dataset's meta.json, and per episode the summary, the round if any, and SHA-256s
    action      executed actions of all N frames, episode after episode: discrete uint8 (N,), or float32 (N, 3)
    label       bits of the label XOR bits of the action, uint8 (N,) or uint32 (N, 3): zero wherever the two agree
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nac_drive.data_collection.dataset.episode_file import ROUND, SUMMARY, DatasetError, EpisodeArrays
from nac_drive.data_collection.dataset.meta import Meta, parse_meta

ACTION_LOG_SCHEMA = "nac-drive action log 1"
_OLD_SCHEMA = "nac-drive recipe 1"
"""Schema of version 0.1: other names for the same content, and no hash of the frame after the last action."""


@dataclass(frozen=True)
class EpisodeActions:
    """The actions of one episode of N frames, and the hashes that a replay must reproduce."""

    summary: dict[str, Any]
    """Values of `SUMMARY`, and of `ROUND` in a DAgger run."""
    sha256: dict[str, str]
    """SHA-256 of `frames` (the N frames), of `columns` (all other arrays), and of `last_frame` if it was stored."""
    label: NDArray[Any]
    """int64 (N,) or float32 (N, 3), as in `EpisodeArrays`."""
    action: NDArray[Any]
    """Like `label`."""

    @classmethod
    def from_arrays(cls, arrays: EpisodeArrays, summary: dict[str, Any]) -> EpisodeActions:
        """Return the actions and hashes of an episode."""
        columns = hashlib.sha256()
        for name, values in arrays.columns().items():
            columns.update(name.encode() + values.tobytes())
        sha256 = {"frames": hashlib.sha256(arrays.frames.data).hexdigest(), "columns": columns.hexdigest()}
        if arrays.last_frame is not None:
            sha256["last_frame"] = hashlib.sha256(arrays.last_frame.tobytes()).hexdigest()
        return cls(summary, sha256, arrays.label, arrays.action)

    def differences(self, recorded: EpisodeActions) -> list[str]:
        """Return each difference from the recorded episode in a few words; empty if they are equal bit for bit.

        The frame after the last action is compared where both have one.
        """
        names = [name for name in (*SUMMARY, ROUND) if self.summary.get(name) != recorded.summary.get(name)]
        found = [f"{name} is {self.summary.get(name)}, recorded is {recorded.summary.get(name)}" for name in names]
        found += [f"{name} differ" for name in ("frames", "columns") if self.sha256[name] != recorded.sha256.get(name)]
        last, recorded_last = self.sha256.get("last_frame"), recorded.sha256.get("last_frame")
        return found + (["last_frame differs"] if last and recorded_last and last != recorded_last else [])


@dataclass(frozen=True)
class ActionLog:
    """Everything that is needed to simulate a dataset again.

    Raises:
        ValueError: If the episodes cannot have been simulated.
    """

    document: dict[str, Any]
    """The dataset's meta.json."""
    episodes: Sequence[EpisodeActions]
    """Its episodes, by index."""

    def __post_init__(self) -> None:
        env = self.meta.env
        lowest, highest = (0, env.spec.num_actions - 1) if env.control == "discrete" else ((-1, 0, 0), (1, 1, 1))
        if not self.episodes:
            raise ValueError("there is no episode in it")
        if not self.meta.simulated:
            raise ValueError("its episodes are own data, which was not simulated here")
        for index, episode in enumerate(self.episodes):
            seed, length = episode.summary["seed"], episode.summary["length"]
            if not isinstance(seed, int) or seed < 0:
                raise ValueError(f"episode {index} is on track {seed!r}, expected an integer of at least 0")
            if length > env.max_steps or (length < env.max_steps and not episode.summary["terminated"]):
                raise ValueError(f"episode {index} has {length} frames of {env.max_steps}, but nothing ended it there")
            for name, values in (("action", episode.action), ("label", episode.label)):
                if len(values) != length:
                    raise ValueError(f"episode {index} has {length} frames, but {len(values)} values of {name}")
                if not ((values >= lowest) & (values <= highest)).all():  # so is NaN
                    raise ValueError(f"episode {index} has a value of {name} outside of {lowest} to {highest}")

    @property
    def meta(self) -> Meta:
        """The dataset's settings."""
        return parse_meta(self.document)


def encode_action_log(log: ActionLog) -> bytes:
    """Return the content of an action log's file. The same action log gives the same bytes."""
    action, label = (
        _narrow(np.concatenate(side))
        for side in zip(*((episode.action, episode.label) for episode in log.episodes), strict=True)
    )
    episodes = [{**episode.summary, "sha256": episode.sha256} for episode in log.episodes]
    document = json.dumps({"schema": ACTION_LOG_SCHEMA, "dataset": log.document, "episodes": episodes})
    file = io.BytesIO()
    np.savez_compressed(
        file, action_log=np.bytes_(document.encode()), action=action, label=_bits(action) ^ _bits(label)
    )  # fmt: skip
    return file.getvalue()


def read_action_log(path: str | os.PathLike[str]) -> ActionLog:
    """Read an action log.

    Args:
        path: Its file; those of version 0.1 ("recipes") are read too.

    Returns:
        The action log.

    Raises:
        DatasetError: If the file is missing, damaged or something else.
    """
    path = Path(path)
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is no npz archive, or cut short" if path.exists() else "there is no such file")
        with np.load(path, allow_pickle=False) as file:
            return _decode(
                json.loads(file["recipe" if "recipe" in file else "action_log"].item()),
                file["action"],
                file["label"],
            )
    except Exception as error:  # the type that a damaged archive raises depends on the byte that is damaged
        cause = (str(error) or repr(error)).splitlines()[0]
        raise DatasetError(
            f"no action log at {path}: {cause}; pass a file of `nac-drive dataset action-log`, or fetch it again."
        ) from error


def _decode(document: dict[str, Any], action: NDArray[Any], label: NDArray[Any]) -> ActionLog:
    if document.get("schema") == _OLD_SCHEMA:
        document = {"schema": ACTION_LOG_SCHEMA, "dataset": document["dataset"], "episodes": document["laps"]}
    if document.get("schema") != ACTION_LOG_SCHEMA:
        raise ValueError(f"its schema is {document.get('schema')!r}, expected {ACTION_LOG_SCHEMA!r}")
    rows = document["episodes"]
    ends = np.cumsum([row["length"] for row in rows])
    discrete = parse_meta(document["dataset"]).env.control == "discrete"
    like = np.empty((ends[-1] if rows else 0, *(() if discrete else (3,))), np.uint8 if discrete else np.float32)
    for name, values, expected in (("action", action, like), ("label", label, _bits(like))):
        if (values.shape, values.dtype) != (expected.shape, expected.dtype):
            raise ValueError(
                f"{name} is {values.dtype} {values.shape}, expected {expected.dtype} {expected.shape} for its episodes"
            )
    label = (label ^ _bits(action)).view(action.dtype)
    wide = np.int64 if discrete else np.float32
    sides = (np.split(values.astype(wide), ends[:-1]) for values in (label, action))
    episodes = []
    for row, *pair in zip(rows, *sides, strict=True):
        sha256 = dict(row.pop("sha256"))
        episodes.append(EpisodeActions(row, sha256, *pair))
    return ActionLog(document["dataset"], episodes)


def _narrow(actions: NDArray[Any]) -> NDArray[Any]:
    return actions.astype(np.uint8 if actions.dtype.kind == "i" else np.float32)


def _bits(actions: NDArray[Any]) -> NDArray[Any]:
    return actions.view(np.uint8 if actions.dtype == np.uint8 else np.uint32)
