"""A tub of donkeycar (version 2), with JPEG images.

Donkeycar's own program reads it and trains on it; `import_tub` reads it back with every label.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nac_drive.data_collection.dataset.episode_arrays import EpisodeArrays
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.rows import ROUND, DatasetRow, known_end, known_seed, labelled_frames, reported
from nac_drive.data_collection.interchange.recording import ExportSource
from nac_drive.data_collection.interchange.tub_file import EXPORTED, IMAGES, INPUTS, MANIFEST, PILOT, TYPES, USER
from nac_drive.envs import EnvSpec
from nac_drive.envs.pulses import COMMANDS

QUALITY = 95
"""Quality of the images (JPEG, all colours kept). Donkeycar's own have 75, with half the colours."""
CATALOG_RECORDS = 1000
"""Records of a catalog, as in donkeycar."""
_PARTS = ("steer", "gas", "brake")
_GAP = 10_000
"""Milliseconds between two episodes."""


def write_tub(folder: Path, recording: ExportSource) -> None:
    """Write a tub. An episode is a session.

    `user/angle` is the label's steering, `user/throttle` is gas minus brake. In frames without a label, `user/mode` is
    `local` and the numbers are the pilot's too. Inputs `nac_drive/...` hold labels, actions, rewards and times exactly.

    Args:
        folder: An empty folder.
        recording: The episodes.

    Raises:
        DatasetError: If it is not known how an action steers and drives.
    """
    env, created = recording.meta.env, time.time()
    commands = _Commands.of(env.environment, env.spec, env.control)
    (folder / IMAGES).mkdir()
    day = time.strftime("%y-%m-%d", time.localtime(created))
    catalogs = _Catalogs(folder, created)
    sessions: dict[str, dict[str, Any]] = {}
    milliseconds = round(1000 * created)
    for arrays, row in recording:
        session = f"{day}_{len(sessions)}"
        sessions[session] = _known(row, recording.meta.simulated)
        times = milliseconds + np.rint(1000 * arrays.dt.cumsum()).astype(np.int64)
        for record, frame, moment in zip(_records(arrays, row, commands), arrays.frames, times.tolist(), strict=True):
            image = f"{catalogs.total}_cam_image_array_.jpg"
            Image.fromarray(frame).save(folder / IMAGES / image, quality=QUALITY, subsampling=0)
            catalogs.add({
                **record, "cam/image_array": image, "_index": catalogs.total, "_session_id": session,
                "_timestamp_ms": moment,
            })  # fmt: skip
        milliseconds = int(times[-1]) + _GAP
    catalogs.close()
    types = dict(TYPES)
    types |= {f"{EXPORTED}/{name}": "int" if env.control == "discrete" else "vector" for name in ("label", "action")}
    types |= {f"{EXPORTED}/{name}": "float" for name in ("reward", "dt")} | {f"{EXPORTED}/zooming": "boolean"}
    document = {"meta": recording.document, "episodes": sessions}
    names = list(sessions)
    ids = {"all_full_ids": names, "last_id": len(names) - 1, "last_full_id": names[-1]}
    lines: list[Any] = [
        list(types), list(types.values()), {EXPORTED: document}, {"created_at": created, "sessions": ids},
        {
            "paths": catalogs.names, "current_index": catalogs.total, "max_len": CATALOG_RECORDS,
            "deleted_indexes": [],
        },
    ]  # fmt: skip
    (folder / MANIFEST).write_text("".join(json.dumps(line) + "\n" for line in lines))


class _Commands:
    """The angle and the throttle of an action."""

    def __init__(self, table: tuple[tuple[float, float], ...] | None) -> None:
        self._table = table

    @classmethod
    def of(cls, name: str, spec: EnvSpec, control: str) -> _Commands:
        """Return the commands of the actions of an environment.

        Raises:
            DatasetError: If they are not known.
        """
        if control != "discrete" and spec.parts == _PARTS:
            return cls(None)
        if control == "discrete" and spec.action_names == EnvSpec(None).action_names:
            return cls(tuple((steer, gas - brake) for steer, gas, brake in COMMANDS))
        raise DatasetError(
            f"environment {name!r} has actions of which angle and throttle are not known, and a tub needs them; "
            "export it to minari or lerobot."
        )

    def __call__(self, action: Any) -> tuple[float, float]:
        if self._table is not None:
            return self._table[int(action)]
        steer, gas, brake = map(float, action)
        return steer, gas - brake


class _Catalogs:
    """Catalogs of `CATALOG_RECORDS` records.

    Each has a manifest with the lengths of its lines.
    """

    def __init__(self, folder: Path, created: float) -> None:
        self._folder, self._created = folder, created
        self._lines: list[bytes] = []
        self.names: list[str] = []
        self.total = 0

    def add(self, record: dict[str, Any]) -> None:
        """Add a record."""
        if len(self._lines) == CATALOG_RECORDS:
            self.close()
        self._lines.append((json.dumps(record, allow_nan=False, sort_keys=True) + "\n").encode())
        self.total += 1

    def close(self) -> None:
        """Write the records that wait."""
        name = f"catalog_{len(self.names)}"
        (self._folder / f"{name}.catalog").write_bytes(b"".join(self._lines))
        manifest = {
            "created_at": self._created, "line_lengths": list(map(len, self._lines)),
            "path": f"{name}.catalog_manifest", "start_index": self.total - len(self._lines),
        }  # fmt: skip
        (self._folder / f"{name}.catalog_manifest").write_text(json.dumps(manifest, sort_keys=True) + "\n")
        self.names.append(f"{name}.catalog")
        self._lines = []


def _known(row: DatasetRow, simulated: bool) -> dict[str, Any]:
    """Return the facts that are known of an episode.

    They are track, seed, end, round and reported values.
    """
    end, seed = known_end(row, simulated), known_seed(row, simulated)
    return {
        "track": row["seed"], **({} if seed is None else {"seed": seed}),
        **({} if end is None else {"terminated": end[0], "truncated": end[1]}),
        **({ROUND: row[ROUND]} if ROUND in row else {}), **reported(row, simulated),
    }  # fmt: skip


def _records(arrays: EpisodeArrays, row: DatasetRow, commands: _Commands) -> Iterator[dict[str, Any]]:
    """Yield the record of each frame, without image and time."""
    labelled = labelled_frames(row)
    for number, (label, action) in enumerate(zip(arrays.label, arrays.action, strict=True)):
        values: dict[str, Any] = dict(zip(INPUTS[1:3], commands(label), strict=True))
        by_user = labelled is None or bool(labelled[number])
        if not by_user:
            values |= dict(zip(PILOT, commands(action), strict=True))
        yield {
            **values, "user/mode": USER if by_user else "local", f"{EXPORTED}/label": label.tolist(),
            f"{EXPORTED}/action": action.tolist(), f"{EXPORTED}/reward": float(arrays.reward[number]),
            f"{EXPORTED}/dt": float(arrays.dt[number]), f"{EXPORTED}/zooming": bool(arrays.zooming[number]),
        }  # fmt: skip
