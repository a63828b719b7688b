"""Small datasets, and changes that tests make to them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py

from nac_drive.data_collection.collect import collect
from nac_drive.data_collection.dart import NoiseConfig
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.envs import EnvConfig
from nac_drive.events import Event
from nac_drive.storage.lock import LOCK

ENV = EnvConfig(max_steps=60)
NOISE = NoiseConfig(probability=0.3, hold=4)
TRACKS = [11, 3, 7]


def collect_small(path: Path, **changed: Any) -> Demonstrations:
    """Three episodes of 60 frames by the controller under noise."""
    return collect(path, "controller", **{"env": ENV, "seeds": TRACKS, "noise": NOISE, **changed})


def tracks_of(events: Sequence[Event]) -> list[int]:
    """Return the tracks of the episodes that events report, in their order."""
    return [int(event.note.split()[1]) for event in events if event.note.startswith("track ")]


def contents(path: Path) -> dict[str, Any]:
    """Every file of a folder but the lock. The rows of episodes.jsonl in no order: workers finish in any."""
    files = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    return {
        name: sorted(data.split(b"\n")) if name == "episodes.jsonl" else data
        for name, data in files.items() if Path(name).name != LOCK
    }  # fmt: skip


def rewrite_row(path: Path, index: int, **values: Any) -> None:
    """Change an episode's row, as somebody would to hide a change of the file."""
    rows = [json.loads(line) for line in (path / "episodes.jsonl").read_text().splitlines()]
    for row in rows:
        if row["index"] == index:
            row.update(values)
    (path / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def tamper(path: Path, index: int, change: Callable[[h5py.File], Any]) -> None:
    """Change an episode's file and its SHA-256 in the row."""
    file = path / "episodes" / f"{index:06d}.h5"
    with h5py.File(file, "r+") as content:
        change(content)
    rewrite_row(path, index, sha256=hashlib.sha256(file.read_bytes()).hexdigest())
