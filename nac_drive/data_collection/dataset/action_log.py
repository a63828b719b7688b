"""A dataset as an action log, without frames.

It is hundreds to thousands of times smaller.

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
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from nac_drive.arguments import path_of
from nac_drive.data_collection.dataset.episode_arrays import EpisodeArrays
from nac_drive.data_collection.dataset.episode_file import action_range
from nac_drive.data_collection.dataset.limits import DatasetError, require_size
from nac_drive.data_collection.dataset.meta import Meta, parse_meta
from nac_drive.data_collection.dataset.rows import OPTIONAL, SUMMARY, EpisodeSummary, Sha256
from nac_drive.storage.read import BYTES_PER_VALUE, LARGEST_DOCUMENT, one_line, require_few_values

ACTION_LOG_SCHEMA = "nac-drive action log 1"
LARGEST_RATIO = 20
"""Largest ratio of the size of its arrays to the size of its file, above 64 MiB; 6 to 8 are usual."""
_LARGEST_DOCUMENT_RATIO = 10
"""Largest size of the JSON over the size of the file, above 4 MiB; less than 1 is usual."""
_HEADERS = 3 * 128
"""Bytes of the headers of the three arrays."""


class _Hashes(msgspec.Struct, forbid_unknown_fields=True):
    """See `EpisodeActions.sha256`."""

    frames: Sha256
    columns: Sha256
    last_frame: Sha256


class _Episode(EpisodeSummary, kw_only=True):
    """An episode of an action log, without its actions."""

    sha256: _Hashes


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON of an action log."""

    schema: str
    dataset: msgspec.Raw
    episodes: list[_Episode]


@dataclass(frozen=True)
class EpisodeActions:
    """The actions of one episode, and hashes of its replay.

    The episode has N frames. A replay must reproduce the hashes.
    """

    summary: dict[str, Any]
    """Values of `SUMMARY`, and of `OPTIONAL` where there are some."""
    sha256: dict[str, str]
    """SHA-256 of `frames` (the N frames), of `columns` (all other arrays), and of `last_frame` if it was stored."""
    label: NDArray[Any]
    """(N,) integers or float32 (N, 3)."""
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

    def differences(self, recorded: EpisodeActions, *, same_view: bool = True) -> list[str]:
        """Return each difference from the recorded episode, briefly.

        There is none if they are equal bit for bit.

        Frames are compared where both show the `same_view`.
        """
        names = [name for name in (*SUMMARY, *OPTIONAL) if self.summary.get(name) != recorded.summary.get(name)]
        differences = [
            f"{name} is {self.summary.get(name)}, recorded is {recorded.summary.get(name)}" for name in names
        ]
        compared = ("frames", "last_frame", "columns") if same_view else ("columns",)
        return differences + [
            f"{name} differ" for name in compared if self.sha256.get(name) != recorded.sha256.get(name)
        ]


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
        lowest, highest = action_range(env)
        if not self.episodes:
            raise ValueError("there is no episode in it")
        if not self.meta.simulated:
            raise ValueError("its episodes are own data, which was not simulated here")
        for index, episode in enumerate(self.episodes):
            seed, length = episode.summary["seed"], episode.summary["length"]
            if not isinstance(seed, int) or seed < 0:
                raise ValueError(f"episode {index} is on track {seed!r}, expected an integer of at least 0")
            short = length < env.max_steps and env.perturb is None  # perturbed, a decision may last several frames
            if length > env.max_steps or (short and not episode.summary["terminated"]):
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
    """Return the content of an action log's file. The same action log gives the same bytes.

    Raises:
        DatasetError: If it could not be read again, see `LARGEST_RATIO`: its actions hardly differ.
    """
    action, label = (
        _narrow(np.concatenate(side))
        for side in zip(*((episode.action, episode.label) for episode in log.episodes), strict=True)
    )
    episodes = [{**episode.summary, "sha256": episode.sha256} for episode in log.episodes]
    document = json.dumps({"schema": ACTION_LOG_SCHEMA, "dataset": log.document, "episodes": episodes})
    label = _bits(action) ^ _bits(label)
    file = io.BytesIO()
    np.savez_compressed(file, action_log=np.bytes_(document.encode()), action=action, label=label)
    content = file.getvalue()
    require_size(len(document) + action.nbytes + label.nbytes + _HEADERS, len(content), LARGEST_RATIO)
    return content


def read_action_log(path: str | os.PathLike[str]) -> ActionLog:
    """Read an action log.

    Args:
        path: Its file.

    Returns:
        The action log.

    Raises:
        DatasetError: If the file is missing, damaged or something else.
    """
    path = path_of("path", path)
    try:
        if path.is_file():
            path.open("rb").close()  # is_zipfile hides why a file cannot be read
        if not path.is_file() or not zipfile.is_zipfile(path):
            raise ValueError("it is no npz archive, or cut short" if path.exists() else "there is no such file")
        return _decode(*_arrays(path))
    except Exception as error:  # the type that a damaged archive raises depends on the byte that is damaged
        raise DatasetError(
            f"no action log at {path}: {one_line(error)}; pass a file of `nac-drive dataset action-log`, or fetch it "
            "again."
        ) from error


def _arrays(path: Path) -> list[NDArray[Any]]:
    """Return an archive's document, actions and labels.

    Their sizes are checked before they are read.
    """
    with zipfile.ZipFile(path) as archive:
        members = {member.filename: member for member in archive.infolist()}
        if "recipe.npy" in members:
            raise ValueError("an older version of nac-drive wrote it")
        expected = ("action_log.npy", "action.npy", "label.npy")
        if len(archive.infolist()) != 3 or members.keys() != set(expected):
            raise ValueError(f"it holds {', '.join(sorted(members))[:100]!r}, expected {', '.join(expected)}")
        require_size(sum(member.file_size for member in members.values()), path.stat().st_size, LARGEST_RATIO)
        largest = max(LARGEST_DOCUMENT, _LARGEST_DOCUMENT_RATIO * path.stat().st_size)
        if members[expected[0]].file_size > largest:
            raise ValueError(f"its {expected[0]} would unpack to more than {largest:,} bytes")
        return [_array(archive, members[name]) for name in expected]


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """Return an array whose header agrees with the archive.

    The archive's directory has the size.
    """
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{member.filename} is not packed by deflate")
    with archive.open(member) as file:
        if npy.read_magic(file) != (1, 0):
            raise ValueError(f"{member.filename} has another version of its format than 1.0")
        shape, by_columns, dtype = npy.read_array_header_1_0(file)
        left = member.file_size - file.tell()
        if dtype.hasobject or by_columns or prod(shape) * dtype.itemsize != left:
            raise ValueError(f"{member.filename} is {dtype} {shape}, which {left} bytes do not hold")
        return np.frombuffer(file.read(left), dtype).reshape(shape)


def _decode(content: NDArray[Any], action: NDArray[Any], label: NDArray[Any]) -> ActionLog:
    document = msgspec.json.decode(content.item(), type=_Document)
    meta = bytes(document.dataset)
    require_few_values(meta, LARGEST_DOCUMENT // BYTES_PER_VALUE, "its dataset", "a meta.json", "fetch it again")
    dataset = msgspec.json.decode(meta, type=dict[str, Any])
    if document.schema != ACTION_LOG_SCHEMA:
        raise ValueError(f"its schema is {document.schema[:100]!r}, expected {ACTION_LOG_SCHEMA!r}")
    rows = document.episodes
    ends = np.cumsum([row.length for row in rows], dtype=np.int64)
    env = parse_meta(dataset).env
    discrete = env.control == "discrete"
    shape = (int(ends[-1]) if rows else 0, *(() if discrete else (len(env.spec.parts),)))
    kinds = (np.uint8, np.uint8) if discrete else (np.float32, np.uint32)
    for name, values, dtype in zip(("action", "label"), (action, label), kinds, strict=True):
        if (values.shape, values.dtype) != (shape, dtype):
            raise ValueError(
                f"{name} is {values.dtype} {values.shape}, expected {np.dtype(dtype)} {shape} for its episodes"
            )
    label = (label ^ _bits(action)).view(action.dtype)
    sides = (np.split(values, ends[:-1]) for values in (label, action))
    episodes = []
    for row, *pair in zip(rows, *sides, strict=True):
        summary = msgspec.to_builtins(row)
        sha256 = summary.pop("sha256")
        episodes.append(EpisodeActions(summary, sha256, *pair))
    return ActionLog(dataset, episodes)


def _narrow(actions: NDArray[Any]) -> NDArray[Any]:
    return actions.astype(np.float32 if actions.dtype.kind == "f" else np.uint8)


def _bits(actions: NDArray[Any]) -> NDArray[Any]:
    return actions.view(np.uint8 if actions.dtype == np.uint8 else np.uint32)
