"""A dataset as an action log: the executed actions without the frames, hundreds to thousands of times smaller.

CarRacing replays bit for bit from the seed of a track and the executed actions. An action log is one npz file, no pickle:

    action_log  JSON: its schema, the dataset's meta.json, and per episode the summary, the round if any, and two SHA-256
    action      executed actions of all N frames, episode after episode: uint8 (N,) of discrete actions, or float32 (N, 3)
    label       bits of the label XOR bits of the action, uint8 (N,) or uint32 (N, 3): zero wherever the two agree
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nac_drive.data_collection.dataset.demonstrations import Meta, parse_meta
from nac_drive.data_collection.dataset.episode_file import ROUND, SUMMARY, DatasetError, EpisodeArrays

ACTION_LOG_SCHEMA = "nac-drive action log 1"
_OLD_SCHEMA = "nac-drive recipe 1"
"""Of version 0.1, with other names for the same."""

_LIMITS = {"discrete": (0, 4), "continuous": ((-1, 0, 0), (1, 1, 1))}


@dataclass(frozen=True)
class EpisodeActions:
    """One episode of N frames.

    summary: values of `SUMMARY`, and `ROUND` in a DAgger run.  sha256: of `frames`, and of all other `columns`.
    label, action: int64 (N,) or float32 (N, 3), as in `EpisodeArrays`.
    """

    summary: dict[str, Any]
    sha256: dict[str, str]
    label: NDArray[Any]
    action: NDArray[Any]

    @classmethod
    def of(cls, arrays: EpisodeArrays, summary: dict[str, Any]) -> EpisodeActions:
        """The episode of an episode."""
        columns = hashlib.sha256()
        for name, values in arrays.columns().items():
            columns.update(name.encode() + values.tobytes())
        frames = hashlib.sha256(arrays.frames.data).hexdigest()
        return cls(summary, {"frames": frames, "columns": columns.hexdigest()}, arrays.label, arrays.action)

    def differences(self, recorded: EpisodeActions) -> list[str]:
        """What is not as in the recorded episode, a few words each; empty when all is, bit for bit."""
        names = [name for name in (*SUMMARY, ROUND) if self.summary.get(name) != recorded.summary.get(name)]
        told = [f"{name} is {self.summary.get(name)}, recorded is {recorded.summary.get(name)}" for name in names]
        return told + [f"{name} differ" for name in self.sha256 if self.sha256[name] != recorded.sha256.get(name)]


@dataclass(frozen=True)
class ActionLog:
    """All that it takes to drive a dataset again.

    document: the dataset's meta.json.  episodes: its episodes, by index.
    Raises ValueError when they cannot have been driven.
    """

    document: dict[str, Any]
    episodes: Sequence[EpisodeActions]

    def __post_init__(self) -> None:
        env = self.meta.env
        lowest, highest = _LIMITS[env.control]
        if not self.episodes:
            raise ValueError("there is no episode in it")
        for index, episode in enumerate(self.episodes):
            seed, length = episode.summary["seed"], episode.summary["length"]
            if not isinstance(seed, int) or seed < 0:
                raise ValueError(f"episode {index} is on track {seed!r}, expected a whole number from 0 on")
            if length > env.max_steps or (length < env.max_steps and not episode.summary["terminated"]):
                raise ValueError(f"episode {index} has {length} frames of {env.max_steps}, but nothing ended it there")
            for name, values in (("action", episode.action), ("label", episode.label)):
                if len(values) != length:
                    raise ValueError(f"episode {index} has {length} frames, but {len(values)} values of {name}")
                if not ((values >= lowest) & (values <= highest)).all():  # so is NaN
                    raise ValueError(f"episode {index} has a value of {name} outside of {lowest} to {highest}")

    @property
    def meta(self) -> Meta:
        """Of the dataset."""
        return parse_meta(self.document)


def encode_action_log(log: ActionLog) -> bytes:
    """The content of an action log's file. The same action log gives the same bytes."""
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


def read_action_log(path: Path) -> ActionLog:
    """The action log in a file. Raises DatasetError for a file that is missing, damaged or something else."""
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is no npz archive, or cut short" if path.exists() else "there is no such file")
        with np.load(path, allow_pickle=False) as file:
            return _decode(
                json.loads(file["action_log" if "action_log" in file else "recipe"].item()),
                file["action"],
                file["label"],
            )
    except Exception as error:  # what a damaged archive raises depends on the byte that is damaged
        told = (str(error) or repr(error)).splitlines()[0]
        raise DatasetError(
            f"no action log at {path}: {told}; pass a file of `nac-drive dataset action-log`, or fetch it again."
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
