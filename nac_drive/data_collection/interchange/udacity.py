"""Recordings of the Udacity simulator as demonstrations.

They are a driving_log.csv and the images of three cameras.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nac_drive.arguments import checks_shared_arguments, path_of
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.dataset.own_data import write_own_data
from nac_drive.data_collection.dataset.sources import one_or_several
from nac_drive.data_collection.interchange.stretches import stretches
from nac_drive.data_collection.interchange.udacity_log import (
    BREAK,
    CAMERAS,
    CENTER_ALONE,
    IMAGES,
    Log,
    LogLine,
    read_image,
    read_log,
)
from nac_drive.envs import LARGEST_SEED, UDACITY, EnvConfig, udacity_frame
from nac_drive.events import Progress, counting, message
from nac_drive.notebook import automatic
from nac_drive.plain import whole
from nac_drive.policies.ranges import check_number

STEERING_OFFSET = 0.2
"""Steering added to the label of the left camera and taken from the label of the right one: it leads back to the
middle."""
EPISODE_FRAMES = 500
"""A recording is cut into episodes of so many frames, so that some can be kept out of training."""
_OFFSETS = (0.0, 1.0, -1.0)
"""Multiple of the steering offset of each camera."""


@checks_shared_arguments
def import_udacity(
    log: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    path: str | os.PathLike[str],
    *,
    steering_offset: float = STEERING_OFFSET,
    episode_frames: int = EPISODE_FRAMES,
    first_track: int = 0,
    skip_missing: bool = False,
    progress: Progress = automatic,
) -> Demonstrations:
    """Write recordings of the Udacity simulator as a dataset.

    `train` learns steering from it.

    Every part of a recording becomes three episodes, one for each camera, as three cars would have driven side by
    side; they stay together when a dataset is split. Images are cropped to the road and shrunk to 66 x 120 pixels
    (NAC paper, D.3.3). Lines are sorted by the time in the names of their images, and time steps come from there. A
    line that comes twice is used once.

    Args:
        log: driving_log.csv, or several of them: the images of three cameras, steering and throttle in [-1, 1], brake
            in [0, 1], speed. Throttle below 0 is brake. A header gives the order of the columns; without one it is this
            order. Images are looked for in the folder IMG beside the log, wherever they were recorded.
        path: The new dataset folder.
        steering_offset: Added to the steering of the left camera, subtracted from the steering of the right one; 0
            leaves both cameras out.
        episode_frames: Frames of an episode.
        first_track: Number of the first part; datasets of different numbers can be merged.
        skip_missing: Leave lines out whose images are missing or damaged.
        progress: Called after every episode, and with a message per log that says how many of its lines are used.

    Returns:
        The dataset.

    Raises:
        DatasetError: If a line of a log, or an image, cannot be read.
        FileExistsError: If `path` exists.
        FileNotFoundError: If there is no such log.
        ValueError: If an argument is of another type or out of its range.
    """
    check_number("steering_offset", steering_offset, 0, 1)
    episode_frames = whole("episode_frames", episode_frames, 2)
    if not 0 <= whole("first_track", first_track) <= LARGEST_SEED - 10**9:
        raise ValueError(f"first_track must lie in 0 to {LARGEST_SEED - 10**9}, got {first_track}; 0 is usual.")
    paths = [Path(source) for source in one_or_several("log", log, (str, os.PathLike), "a driving_log.csv")]
    for number, source in enumerate(paths):
        if source.resolve() in {earlier.resolve() for earlier in paths[:number]}:
            raise ValueError(f"log: {source} comes twice; pass it once.")
    Demonstrations.require_vacant(path_of("path", path))
    cameras = len(CAMERAS) if steering_offset else 1
    parts: list[tuple[Path, list[LogLine]]] = []
    for source in paths:
        recording = read_log(source, cameras, skip_missing)
        stretches = list(_episodes(recording.lines, episode_frames))
        _require_episodes(recording, stretches)
        progress(message(str(source), recording.usage(sum(map(len, stretches)))))
        parts += [(source, lines) for lines in stretches]
    write_own_data(
        Path(path),
        (_read(source, lines, camera, steering_offset) for source, lines in parts for camera in range(cameras)),
        driver="udacity",
        dt=0.0,
        seeds=(first_track + number for number in range(len(parts)) for _ in range(cameras)),
        seeds_given=False,
        env=EnvConfig("continuous", environment=UDACITY),
        finished=counting(progress, f"import ({Path(path).name})", cameras * len(parts)),
    )
    return Demonstrations.open(path)


def _require_episodes(log: Log, stretches: list[list[LogLine]]) -> None:
    """Raise DatasetError if a log has no episode."""
    if stretches:
        return
    gaps = np.diff([line.seconds for line in log.lines])
    if not log.lines:
        fix = CENTER_ALONE if log.without_side else "copy the images there" if log.without_image else "record more"
        raise DatasetError(f"{log.path}: {log.usage(0)}: an episode needs two images; {fix}.")
    rule = f", which are at most {BREAK:g} s apart: the shortest gap is {gaps.min():g} s" if len(gaps) else ""
    raise DatasetError(
        f"{log.path}: {log.usage(0)}: it has no two images in a row{rule}; record at one frame a second or faster."
    )


def _episodes(lines: list[LogLine], frames: int) -> Iterator[list[LogLine]]:
    """Yield unbroken stretches of at least two lines."""
    parts = stretches(lines, lambda earlier, later: 0 < later.seconds - earlier.seconds <= BREAK, frames)
    return (part for part in parts if len(part) > 1)


def _read(log: Path, lines: list[LogLine], camera: int, offset: float) -> dict[str, Any]:
    """Return an episode of one camera as own data."""
    actions = np.array([line.action for line in lines], dtype=np.float32)
    actions[:, 0] = np.clip(actions[:, 0] + offset * _OFFSETS[camera], -1, 1)
    return {
        "observations": np.stack([_frame(log, line, camera) for line in lines]),
        "actions": actions,
        "dt": np.diff([line.seconds for line in lines], prepend=lines[0].seconds),
    }


def _frame(log: Path, line: LogLine, camera: int) -> np.ndarray:
    """Return the frame of a line, (66, 120, 3)."""
    name = line.images[camera]
    try:
        return udacity_frame(read_image(log.parent / IMAGES / name))
    except (ValueError, OSError) as error:
        raise DatasetError(
            f"line {line.number} of {log}: {name} in {log.parent / IMAGES} cannot be read: {str(error).rstrip('.')}; "
            "without the file, --skip-missing leaves its line out."
        ) from None
