"""Demonstrations on disk: a folder of episodes that is whole after every crash, and its decoded form in memory.

DATASET/meta.json  episodes.jsonl (one row per finished episode)  episodes/000123.h5
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nac_drive.data_collection.dart import NoiseConfig
from nac_drive.data_collection.dataset.episode_file import (
    ROW,
    DatasetError,
    episode_file,
    episode_row,
    read_actions,
    read_episode,
)
from nac_drive.data_collection.dataset.frames import Frames, load_frames
from nac_drive.data_collection.dataset.verify import check_episode, file_sha256
from nac_drive.data_collection.files import flatten, sync_folder, write_atomically, writing
from nac_drive.data_collection.processes import map_in_processes
from nac_drive.data_collection.versions import installed_versions
from nac_drive.envs import FRAMES_PER_SECOND, EnvConfig

Row = dict[str, Any]

SCHEMA = "nac-drive demonstrations 1"
ACTION_NAMES = {"discrete": ("nothing", "right", "left", "gas", "brake"), "continuous": ("steer", "gas", "brake")}


@dataclass(frozen=True)
class Meta:
    """Where demonstrations come from. Two recordings may share a folder only if this is equal."""

    env: EnvConfig
    """What the driver saw and did."""
    driver: str
    """Who gives the labels: `expert`, `controller` or the name of a driver's folder."""
    driver_sha256: str
    """Of the driver's weights and config."""
    noise: NoiseConfig | None
    """Noise in the executed actions (of a DAgger run: in those of round 0)."""
    seed: int
    """Seed of that noise, and of the turns of a DAgger run."""


class Demonstrations:
    """A dataset folder. Made by `create` or `open`; filled by `nac_drive.data_collection.collect.record`."""

    def __init__(self, path: Path, meta: Meta, rows: Sequence[dict[str, Any]], cut_off: bool):
        self.path = path
        self.meta = meta
        self._rows = {row["index"]: row for row in rows}
        self._cut_off = cut_off

    @classmethod
    def create(cls, path: Path, meta: Meta) -> Demonstrations:
        """A new dataset without episodes.

        Raises FileExistsError unless `path` is `vacant`, and WriteError when it cannot be written.
        """
        with writing(path):
            if not cls.vacant(path):
                raise FileExistsError(f"{path} already exists; choose another folder, or add to it with --resume.")
            (path / "episodes").mkdir(parents=True, exist_ok=True)
            write_atomically(path / "episodes.jsonl", b"")
            document = {"schema": SCHEMA, **asdict(meta), "versions": installed_versions()}
            write_atomically(path / "meta.json", (json.dumps(document, indent=2) + "\n").encode())
            sync_folder(path.parent)
        return cls(path, meta, [], cut_off=False)

    @staticmethod
    def vacant(path: Path) -> bool:
        """Whether `create` would take `path`: it holds nothing but what a creation killed half-way left behind."""
        return not path.exists() or (
            path.is_dir()
            and not any(
                file.is_file() and file.suffix != ".tmp" and (file.stat().st_size or file.name != "episodes.jsonl")
                for file in path.rglob("*")
            )
        )

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Demonstrations:
        """An existing dataset. Raises DatasetError when `path` is missing, something else or damaged.

        A last row that was cut off by a crash is left out; episodes themselves are checked when they are read.
        """
        path = Path(path)
        if not path.is_dir():
            raise DatasetError(f"no dataset at {path}: there is no such folder; pass the folder of a recording.")
        for name in ("meta.json", "episodes.jsonl"):
            if not (path / name).is_file():
                raise DatasetError(f"{path} is not a dataset: {name} is missing; pass the folder of a recording.")
        rows, cut_off = _read_rows(path / "episodes.jsonl")
        return cls(path, _read_meta(path / "meta.json"), rows, cut_off)

    @property
    def rows(self) -> list[dict[str, Any]]:
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
        """Decode the episodes on the tracks `seeds` (all of them without) into memory, 27 KiB a frame.

        Raises DatasetError for a seed that was not recorded, a damaged episode, or when there is none.
        """
        rows = self.rows if seeds is None else self._rows_of(seeds)
        if not rows:
            raise DatasetError(f"dataset {self.path} holds no finished episode; go on recording it with --resume.")
        return load_frames(self.path, rows, self.meta.env.control)

    def split(self, validation_fraction: float) -> tuple[list[int], list[int]]:
        """Track seeds for training and for validation, each sorted: never one track on both sides.

        The same for every training, whatever its seed: what one has learned from, no other is measured on.
        validation_fraction: of the tracks, in [0, 1); any share above 0 gives at least one track.
        Raises ValueError for another share, or one above 0 when there are fewer than two tracks.
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
        """SHA-256 of the rows of all episodes, wherever the folder lies."""
        return hashlib.sha256((self.path / "episodes.jsonl").read_bytes()).hexdigest()

    def info(self) -> dict[str, Any]:
        """What is in it, for display.

        seconds: of driving.  labels, actions: share of each of the discrete actions, or the mean of steer, gas and brake.
        disturbed: share of frames whose executed action is not the label.  bytes: of the episode files.
        """
        rows = self.rows
        info: dict[str, Any] = {
            "path": str(self.path), "episodes": len(rows), "control": self.meta.env.control,
            "mask_bar": self.meta.env.mask_bar, "driver": self.meta.driver,
            "noise": asdict(self.meta.noise) if self.meta.noise else None,
        }  # fmt: skip
        if not rows:
            return info
        frames = sum(row["length"] for row in rows)
        pairs = [read_actions(self.path / row["file"]) for row in rows]
        labels, actions = (np.concatenate(side) for side in zip(*pairs, strict=True))
        size = sum((self.path / row["file"]).stat().st_size for row in rows)
        return info | {
            "frames": frames,
            "seconds": frames / FRAMES_PER_SECOND,
            "mean_return": float(np.mean([row["return"] for row in rows])),
            "min_return": min(row["return"] for row in rows),
            "mean_completion": float(np.mean([row["completion"] for row in rows])),
            "laps_finished": sum(row["lap_finished"] for row in rows),
            "off_road_events": sum(row["off_road_events"] for row in rows),
            "crashes": sum(row["crashes"] for row in rows),
            "labels": _action_summary(labels, self.meta.env.control),
            "actions": _action_summary(actions, self.meta.env.control),
            "disturbed": float((labels != actions).reshape(frames, -1).any(axis=1).mean()),
            "bytes": size,
            "bytes_per_frame": size / frames,
        }

    def verify(
        self, *, replay: bool = False, workers: int = 1, on_episode: Callable[[Row], None] = lambda row: None
    ) -> list[str]:
        """Every problem in one line each; empty when the dataset is sound. See `check_episode`.

        replay: simulate every episode again (slow).  workers: processes.
        """
        problems = []
        if self._cut_off:
            problems.append(f"{self.path / 'episodes.jsonl'}: the last row is cut off; go on recording with --resume")
        known = {self.path / row["file"] for row in self.rows}
        problems += [
            f"{path}: no row tells of this episode; go on recording with --resume"
            for path in sorted((self.path / "episodes").glob("*.h5"))
            if path not in known
        ]
        check = partial(check_episode, self.path, self.meta.env, replay)
        for row, found in zip(self.rows, map_in_processes(check, self.rows, workers), strict=True):
            problems += found
            on_episode(row)
        return problems

    def require_env(self, env: EnvConfig) -> None:
        """Raises DatasetError, naming the keys, unless the dataset was recorded in `env`."""
        self._require(asdict(self.meta.env), asdict(env), "use that environment or another dataset")

    # Writing

    def require_meta(self, meta: Meta) -> None:
        """Raises DatasetError, naming the keys, unless the dataset was recorded with `meta`."""
        self._require(asdict(self.meta), asdict(meta), "keep it, or record into another folder")

    def append(self, row: dict[str, Any]) -> None:
        """Add the row of an episode whose file is in place. On disk when the call returns. WriteError if it cannot."""
        path = self.path / "episodes.jsonl"
        with writing(path), path.open("ab") as file:
            file.write((json.dumps(row) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        self._rows[row["index"]] = row

    def recover(self, seeds: Sequence[int]) -> None:
        """Make a dataset that was interrupted ready to go on; `seeds[i]` is the track of episode i.

        Removes unfinished files and episodes whose file has changed or is missing, and adopts whole episodes that the
        crash left without a row. Raises, before it touches anything, DatasetError when `seeds` differs from what is
        recorded and WriteError when nothing can be written.
        """
        for row, seed in zip((self._rows.get(i) for i in range(len(seeds))), seeds, strict=True):
            if row and row["seed"] != seed:
                raise DatasetError(
                    f"cannot resume {self.path}: its episode {row['index']} is on track {row['seed']}, "
                    f"asked for {seed}; pass the same tracks (more may follow them), or record into another folder."
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

    def _is_intact(self, row: dict[str, Any]) -> bool:
        path = self.path / row["file"]
        return path.is_file() and file_sha256(path) == row["sha256"]

    def _orphan(self, index: int, seed: int) -> dict[str, Any] | None:
        path = self.path / episode_file(index)
        try:
            _, summary = read_episode(path, self.meta.env.control)
        except DatasetError:
            return None
        return episode_row(index, summary, file_sha256(path)) if summary["seed"] == seed else None

    def _rows_of(self, seeds: Sequence[int]) -> list[dict[str, Any]]:
        wanted = set(seeds)
        missing = wanted - set(self.seeds)
        if missing:
            raise DatasetError(
                f"dataset {self.path} has no episode on tracks {sorted(missing)[:5]}; pass seeds out of its `seeds`."
            )
        return [row for row in self.rows if row["seed"] in wanted]

    def _require(self, saved: dict[str, Any], asked: dict[str, Any], fix: str) -> None:
        saved, asked = flatten(saved), flatten(asked)
        told = "; ".join(
            f"{key}: dataset has {saved.get(key)!r}, asked for {asked.get(key)!r}"
            for key in sorted(saved.keys() | asked.keys())
            if saved.get(key) != asked.get(key)
        )
        if told:
            raise DatasetError(f"dataset {self.path} was recorded otherwise ({told}); {fix}.")


def parse_meta(document: Any) -> Meta:
    """Of the content of a meta.json. Raises ValueError, KeyError, TypeError or AttributeError for any other content."""
    if document.get("schema") != SCHEMA:
        raise ValueError(f"its schema is {document.get('schema')!r}, expected {SCHEMA!r}")
    noise = document["noise"]
    return Meta(
        EnvConfig(**document["env"]), document["driver"], document["driver_sha256"],
        NoiseConfig(**noise) if noise else None, document["seed"],
    )  # fmt: skip


def _read_meta(path: Path) -> Meta:
    try:
        return parse_meta(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatasetError(f"{path} is not a dataset's meta.json: {error}; pass the folder of a recording.") from error


def _read_rows(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """All whole rows, and whether the last one is cut off."""
    *lines, rest = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            missing = [key for key in ROW if key not in row]
        except (ValueError, TypeError):
            missing = ["JSON"]
        if missing:
            raise DatasetError(
                f"{path}, line {number} is not an episode (no {missing[0]}); delete the line and record with --resume."
            )
        rows.append(row)
    return rows, rest != b""


def _action_summary(actions: NDArray[Any], control: str) -> dict[str, float]:
    names = ACTION_NAMES[control]
    if control == "discrete":
        values = np.bincount(actions, minlength=len(names)) / len(actions)
    else:
        values = actions.mean(axis=0)
    return {name: float(value) for name, value in zip(names, values, strict=True)}
