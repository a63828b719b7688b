"""Recorded episodes as a file for the rerun viewer (https://rerun.io)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from nac_drive.analysis.recording import Recording
from nac_drive.parallel.optional import optional_module
from nac_drive.storage.write import temporary_path, writing

TIME = "time"
"""The timeline: seconds of the episode."""


def save_rerun(path: str | os.PathLike[str], recordings: Sequence[Recording]) -> Path:
    """Write episodes for the rerun viewer, on one timeline.

    Under the name of each driver there are its frame and saliency maps, every series, the road and the place of the
    car, and tensors of the neurons and the attention. A tensor has one range of values for the whole episode, so that
    its colours can be compared from frame to frame.

    Args:
        path: The new file, `.rrd`; an existing one is replaced.
        recordings: The episodes.

    Returns:
        The file.

    Raises:
        ValueError: If rerun is not installed.
        WriteError: If the file cannot be written.
    """
    rr = optional_module("rerun", "rerun")
    path = Path(path)
    temporary = temporary_path(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)  # perhaps a link
        temporary.touch(exist_ok=False)
        stream = rr.RecordingStream("nac-drive")
        stream.save(temporary)
        for recording in recordings:
            seconds = recording.series["time"].astype(np.float64)
            time = rr.TimeColumn(TIME, duration=seconds)
            for name, columns in _columns(rr, recording):
                stream.send_columns(_place(rr, recording, *name), indexes=[time], columns=columns, strict=True)
            for name, values, bounds in _tensors(recording):
                for second, each in zip(seconds, np.ascontiguousarray(values, np.float32), strict=True):
                    stream.set_time(TIME, duration=float(second))
                    stream.log(_place(rr, recording, *name), rr.Tensor(each, value_range=bounds), strict=True)
            if len(recording.road):
                road = rr.LineStrips2D([_downwards(recording.road)])
                stream.log(_place(rr, recording, "track", "road"), road, static=True, strict=True)
        stream.flush()
        stream.disconnect()
        os.replace(temporary, path)
    return path


def _place(rr: Any, recording: Recording, *names: str) -> str:
    """The path of something in the viewer's tree."""
    return rr.new_entity_path([recording.driver, *names])


def _columns(rr: Any, recording: Recording) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (names, columns of T rows) of images, series, car."""
    yield ("frame",), _images(rr, recording.frames)
    if recording.other_frames is not None:
        yield (f"frame from {recording.other_view}",), _images(rr, recording.other_frames)
    for name, maps in recording.saliency.items():
        yield ("saliency", name), _images(rr, maps)
    for name, values in recording.series.items():
        yield ("series", name), rr.Scalars.columns(scalars=values.astype(np.float64))
    if len(recording.position):
        yield ("track", "car"), rr.Points2D.columns(positions=_downwards(recording.position))


def _tensors(recording: Recording) -> Iterator[tuple[tuple[str, ...], np.ndarray, tuple[float, float]]]:
    """Yield (names, tensors (T, ...), range) of neurons and attention."""
    for name, values in recording.activity.items():
        yield ("neurons", name), values[:, None, :], (float(values.min()), float(values.max()))
    if recording.attention is not None:
        yield ("attention",), recording.attention, (0.0, 1.0)


def _images(rr: Any, images: np.ndarray) -> Any:
    """Return images (T, H, W[, 3]) in RGB as PNG columns."""
    ordered = images[..., ::-1] if images.ndim == 4 else images
    blobs = [cv2.imencode(".png", image)[1].tobytes() for image in ordered]
    return rr.EncodedImage.columns(blob=blobs, media_type=["image/png"] * len(blobs))


def _downwards(points: np.ndarray) -> np.ndarray:
    """Flip the second axis of points (N, 2) for the viewer."""
    return points * np.array([1.0, -1.0])
