"""An independent writer of donkeycar's tubs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

INPUTS = ["cam/image_array", "user/angle", "user/throttle", "user/mode"]
TYPES = ["image_array", "float", "float", "str"]


class TubWriter:
    """Writes all files after each record, as donkeycar does."""

    def __init__(self, path: Path, max_len: int = 1000, inputs: list[str] = INPUTS, types: list[str] = TYPES) -> None:
        self.path, self.max_len = path, max_len
        self.heads: list[Any] = [inputs, types, {}, {"created_at": 1.7e9}]
        self.paths: list[str] = []
        self.deleted: set[int] = set()
        self.index, self.lengths, self.now = 0, [0], 1_700_000_000_000
        (path / "images").mkdir(parents=True)
        self._catalog()

    def write(
        self, frame: np.ndarray, values: dict[str, Any] | None = None, *, session: str = "26-11-23_0", after: int = 50
    ) -> None:
        """Write a record `after` milliseconds."""
        if self.index and self.index % self.max_len == 0:
            self._catalog()
        image = f"{self.index}_cam_image_array_.jpg"
        Image.fromarray(frame).save(self.path / "images" / image)
        self.now += after
        record = {
            "cam/image_array": image, "user/angle": 0.0, "user/throttle": 0.0, "user/mode": "user",
            **(values or {}), "_timestamp_ms": self.now, "_index": self.index, "_session_id": session,
        }  # fmt: skip
        line = json.dumps(record, allow_nan=False, sort_keys=True) + "\n"
        with (self.path / self.paths[-1]).open("a", newline="\n") as file:
            file.write(line)
        self.lengths.append(len(line))
        self.index += 1
        self._save()

    def delete(self, indexes: Iterable[int]) -> None:
        """Mark records as deleted."""
        self.deleted |= set(indexes)
        self._save()

    def _catalog(self) -> None:
        self.paths.append(f"catalog_{len(self.paths)}.catalog")
        (self.path / self.paths[-1]).touch()
        self.lengths = []
        self._save()

    def _save(self) -> None:
        manifest = {
            "path": f"{self.paths[-1]}_manifest", "created_at": 1.7e9, "start_index": self.index - len(self.lengths),
            "line_lengths": self.lengths,
        }  # fmt: skip
        (self.path / f"{self.paths[-1]}_manifest").write_text(json.dumps(manifest, sort_keys=True) + "\n")
        last = {
            "paths": self.paths, "current_index": self.index, "max_len": self.max_len,
            "deleted_indexes": sorted(self.deleted),
        }  # fmt: skip
        lines = [*self.heads, last]
        (self.path / "manifest.json").write_text("".join(json.dumps(line) + "\n" for line in lines))


def road_frame(angle: float, shape: tuple[int, ...] = (120, 160, 3)) -> np.ndarray:
    """Return an image with a line where the angle points."""
    frame = np.full(shape, 60, np.uint8)
    column = round((0.5 + 0.4 * angle) * shape[1])
    frame[shape[0] // 3 :, max(column - 4, 0) : column + 4] = 220
    return frame


def write_tub(path: Path, frames: int = 120, sessions: int = 3, **options: Any) -> TubWriter:
    """Write a tub with sessions at 20 frames a second."""
    writer = TubWriter(path, **options)
    for number in range(frames):
        session, angle = number * sessions // frames, 0.6 * float(np.sin(number / 7))
        first = number == 0 or session != (number - 1) * sessions // frames
        values = {"user/angle": angle, "user/throttle": 0.3 if number % 10 else -0.2}
        writer.write(road_frame(angle), values, session=f"26-11-23_{session}", after=60_000 if first else 50)
    return writer
