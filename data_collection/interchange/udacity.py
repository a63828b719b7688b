"""Recordings of the Udacity simulator as demonstrations: driving_log.csv, and the images of three cameras beside it."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PureWindowsPath
from typing import Any

import cv2
import numpy as np

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.rows import Row
from nac_drive.envs import UDACITY, EnvConfig, udacity_frame

STEERING_OFFSET = 0.2
"""Steering added to the label of the left camera and taken from that of the right one: it leads back to the middle."""
EPISODE_FRAMES = 500
"""A recording is cut into episodes of so many frames, so that some can be kept out of training."""
_CAMERAS = {"center": 0.0, "left": 1.0, "right": -1.0}
"""Camera -> multiple of the offset, in the order of the columns."""
_BREAK = 1.0
"""Seconds without an image after which another episode begins."""
_COLUMNS = (*_CAMERAS, "steering", "throttle", "brake", "speed")
_TIME = re.compile(r"(\d{4}(?:_\d\d){5})_(\d{3})\.\w+$")


@dataclass(frozen=True)
class _Line:
    """One line of the log."""

    number: int
    images: tuple[str, ...]
    action: tuple[float, float, float]
    seconds: float
    """Time of the image, from its name."""


def import_udacity(
    log: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    steering_offset: float = STEERING_OFFSET,
    episode_frames: int = EPISODE_FRAMES,
    on_episode: Callable[[Row], None] = lambda row: None,
) -> Demonstrations:
    """Write a recording of the Udacity simulator as a dataset, which `train` learns steering from.

    Every part of the recording becomes three episodes, one for each camera, as three cars would have driven side by
    side; they stay together when a dataset is split. Images are cropped to the road and shrunk to 66 x 120 pixels
    (NAC paper, D.3.3). Time steps come from the names of the images.

    Args:
        log: driving_log.csv, with or without a header: the images of three cameras, steering in [-1, 1], throttle and
            brake in [0, 1], speed. Images are looked for in the folder IMG beside it, wherever they were recorded.
        path: The new dataset folder.
        steering_offset: Added to the steering of the left camera, subtracted from that of the right one; 0 leaves both
            cameras out.
        episode_frames: Frames of an episode.
        on_episode: Called with each row once its episode is written.

    Returns:
        The dataset.

    Raises:
        DatasetError: If a line of the log, or an image, cannot be read.
        FileExistsError: If `path` exists.
        FileNotFoundError: If there is no such log.
        ValueError: If an option is out of its range.
    """
    log = Path(log)
    if not 0 <= steering_offset <= 1:
        raise ValueError(f"steering_offset must lie in [0, 1], got {steering_offset}; {STEERING_OFFSET} is usual.")
    if episode_frames < 2:
        raise ValueError(f"episode_frames must be at least 2, got {episode_frames}; {EPISODE_FRAMES} are usual.")
    episodes = list(_episodes(list(_lines(log)), episode_frames))
    if not episodes:
        raise DatasetError(f"{log} has no two images in a row.")
    cameras = list(_CAMERAS)[: 3 if steering_offset else 1]
    return Demonstrations.from_episodes(
        path,
        (_read(log, lines, camera, steering_offset) for lines in episodes for camera in cameras),
        driver="udacity",
        seeds=(number for number in range(len(episodes)) for _ in cameras),
        env=EnvConfig("continuous", environment=UDACITY),
        on_episode=on_episode,
    )


def _lines(log: Path) -> Iterator[_Line]:
    with log.open(newline="", encoding="utf-8") as file:
        for number, fields in enumerate(csv.reader(file), 1):
            if not fields or fields[0].strip() == _COLUMNS[0]:
                continue
            try:
                *images, steering, throttle, brake, _ = (field.strip() for field in fields)
                if len(images) != len(_CAMERAS):
                    raise ValueError(f"it has {len(fields)} columns, expected {len(_COLUMNS)}: {', '.join(_COLUMNS)}")
                action = float(steering), max(float(throttle), 0.0), max(float(brake), 0.0)
                yield _Line(number, tuple(images), action, _seconds(images[0]))
            except ValueError as error:
                raise DatasetError(f"line {number} of {log} cannot be read: {error}.") from None


def _seconds(image: str) -> float:
    match = _TIME.search(image)
    if not match:
        raise ValueError(f"the image {image!r} has no time in its name, such as center_2016_12_01_13_30_48_287.jpg")
    return datetime.strptime(match[1], "%Y_%m_%d_%H_%M_%S").timestamp() + int(match[2]) / 1000


def _episodes(lines: list[_Line], frames: int) -> Iterator[list[_Line]]:
    """Yield stretches of at most `frames` lines without a break, and at least two."""
    part: list[_Line] = []
    for line in lines:
        if part and (len(part) == frames or not 0 < line.seconds - part[-1].seconds <= _BREAK):
            if len(part) > 1:
                yield part
            part = []
        part.append(line)
    if len(part) > 1:
        yield part


def _read(log: Path, lines: list[_Line], camera: str, offset: float) -> dict[str, Any]:
    column = list(_CAMERAS).index(camera)
    actions = np.array([line.action for line in lines], dtype=np.float32)
    actions[:, 0] = np.clip(actions[:, 0] + offset * _CAMERAS[camera], -1, 1)
    return {
        "observations": np.stack([_image(log, line, column) for line in lines]),
        "actions": actions,
        "dt": np.diff([line.seconds for line in lines], prepend=lines[0].seconds),
    }


def _image(log: Path, line: _Line, column: int) -> np.ndarray:
    name = PureWindowsPath(line.images[column]).name  # understands both kinds of slashes
    image = cv2.imread(str(log.parent / "IMG" / name))
    if image is None:
        raise DatasetError(
            f"line {line.number} of {log} names {name}, which is no image in {log.parent / 'IMG'}; copy the images "
            "there."
        )
    try:
        return udacity_frame(cv2.cvtColor(image, cv2.COLOR_BGR2RGB))
    except ValueError as error:
        raise DatasetError(f"line {line.number} of {log}, {name}: {error}") from None
