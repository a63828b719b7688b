"""One H.264 video per episode, for the eye.

Every browser plays it. It is lossy.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from nac_drive.data_collection.dataset.episode_arrays import EpisodeArrays
from nac_drive.data_collection.interchange.recording import ExportSource

SCALE = 4
"""Pixels of the video per pixel of a frame: H.264 halves the resolution of colours, which blurs single pixels."""
_OPTIONS = {"crf": "18", "preset": "veryfast"}
"""The frames come back at 42 dB (docs/interchange.md); at SCALE 1 they would at 32 dB."""
_TICKS = 10_000
"""Ticks in a second of the video, so that each frame is shown when it came."""


def write_mp4(folder: Path, recording: ExportSource) -> None:
    """Write `episode-000012-track-345.mp4` for every episode. The frame after the last action is the last image.

    Every frame is shown at its time in the episode. The last image follows after 1 / rate seconds.

    Args:
        folder: An empty folder.
        recording: The episodes.
    """
    rate = recording.frames_per_second()
    for arrays, row in recording:
        _write_video(folder / f"episode-{row['index']:06d}-track-{row['seed']}.mp4", arrays, rate)


def _images(arrays: EpisodeArrays) -> Iterator[np.ndarray]:
    """Yield the frames, (4 H, 4 W, 3) uint8."""
    for frame in [*arrays.frames] if arrays.last_frame is None else [*arrays.frames, arrays.last_frame]:
        yield frame.repeat(SCALE, axis=0).repeat(SCALE, axis=1)


def _ticks(arrays: EpisodeArrays, rate: int) -> NDArray[np.int64]:
    """Return the tick at which each image is shown, increasing."""
    seconds = arrays.dt.cumsum()
    if arrays.last_frame is not None:
        seconds = np.append(seconds, seconds[-1] + 1 / rate)
    order = np.arange(len(seconds))
    return np.maximum.accumulate(np.rint(_TICKS * seconds).astype(np.int64) - order) + order


def _write_video(path: Path, arrays: EpisodeArrays, rate: int) -> None:
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=rate, options=_OPTIONS)
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = Fraction(1, _TICKS)
        for image, tick in zip(_images(arrays), _ticks(arrays, rate).tolist(), strict=True):
            if not stream.codec_context.is_open:
                stream.height, stream.width = image.shape[:2]
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = tick, Fraction(1, _TICKS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
