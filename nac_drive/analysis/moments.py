"""Moments of recorded episodes at which somebody looks first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from nac_drive.analysis.recording import RECORDED, Recording
from nac_drive.envs.telemetry import OFF_ROAD_OPENS_AFTER, OFF_ROAD_WHEELS, TRACK_HALF_WIDTH

_NEAR = 2 * TRACK_HALF_WIDTH
"""Distance up to which two cars are at the same place of the track, in simulator units."""


_NEVER = np.zeros(1)
"""A series that the environment does not report."""


@dataclass(frozen=True)
class NamedMoment:
    """A time of an episode and what happens then."""

    name: str
    seconds: float


def moments(recordings: Sequence[Recording]) -> list[NamedMoment]:
    """Return the moments that a page offers.

    The page opens at the first one. First crashes come first, then the first times off the road, then the largest
    difference of steering between two drivers at the same place. Without any of them, the sharpest steering of each
    driver is there, if it is known what steers. The start is last.
    Of a recorded episode, the largest difference to the recorded steering comes after crashes.

    Args:
        recordings: Episodes of one track.
    """
    crashes = [
        NamedMoment(_of(recording, "first crash", recordings), _first(recording, recording.series["crash"] > 0))
        for recording in recordings
        if recording.series.get("crash", _NEVER).any()
    ]
    off_road = [
        NamedMoment(_of(recording, "off the road", recordings), _first(recording, frames))
        for recording in recordings
        if (frames := _off_road(recording)).any()
    ]
    found = [*crashes, *off_road]
    for recording in recordings:
        if f"{RECORDED}steer" in recording.series:
            gap = abs(recording.series["steer"] - recording.series[f"{RECORDED}steer"])
            name = _of(recording, "largest difference from the recording", recordings)
            found.append(NamedMoment(name, _first(recording, gap == gap.max())))
    steered = all("steer" in recording.series for recording in recordings)
    if len(recordings) > 1 and steered:
        size, seconds = max(_disagreement(*pair) for pair in combinations(recordings, 2))
        found += [NamedMoment("largest steering difference", seconds)] * (size > 0)
    if not found and steered:
        steps = [abs(recording.series["steer"]).argmax() for recording in recordings]
        found = [
            NamedMoment(_of(recording, "sharpest steering", recordings), float(recording.series["time"][step]))
            for recording, step in zip(recordings, steps, strict=True)
        ]
    return [*found, NamedMoment("start", 0.0)]


def _of(recording: Recording, event: str, recordings: Sequence[Recording]) -> str:
    return event if len(recordings) == 1 else f"{recording.driver}: {event}"


def _first(recording: Recording, frames: np.ndarray) -> float:
    return float(recording.series["time"][frames.argmax()])


def _off_road(recording: Recording) -> np.ndarray:
    """Return the decisions (T,) that end enough frames off the road."""
    off = recording.series.get("wheels_off_road", _NEVER) >= OFF_ROAD_WHEELS
    counts = np.convolve(off, np.ones(OFF_ROAD_OPENS_AFTER))[: len(off)]
    return counts >= OFF_ROAD_OPENS_AFTER


def _disagreement(one: Recording, other: Recording) -> tuple[float, float]:
    """Return the largest difference of steering, and its time.

    Both drivers are at the same place, and the time is the first driver's.
    """
    steer = one.series["steer"]
    if len(one.road) and len(one.position):
        nearest = np.empty(len(steer), np.int64)
        met = np.empty(len(steer), bool)
        for step, position in enumerate(one.position):  # all distances at once would be T x S
            away = np.linalg.norm(other.position - position, axis=1)
            nearest[step] = away.argmin()
            met[step] = away[nearest[step]] < _NEAR
    else:  # no places are known: the same decision
        nearest = np.minimum(np.arange(len(steer)), len(other.series["steer"]) - 1)
        met = np.arange(len(steer)) < len(other.series["steer"])
    difference = np.where(met, abs(steer - other.series["steer"][nearest]), 0.0)
    step = int(difference.argmax())
    return float(difference[step]), float(one.series["time"][step])
