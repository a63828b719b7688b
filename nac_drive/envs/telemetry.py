"""Telemetry of the car from the track, never from pixels.

Definitions follow docs/metrics.md. `Track` locates a point relative to the centre line. `EventDetector` turns a stream
of wheel counts and heading errors into off-road events and crashes. `LapDetector` detects the end of a lap. None of
them depends on gymnasium or Box2D.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

FRAMES_PER_SECOND = 50
TRACK_HALF_WIDTH = 40 / 6.0
"""Half the width of the road, in simulator units (gymnasium: TRACK_WIDTH / SCALE)."""

OFF_ROAD_WHEELS = 3
OFF_ROAD_OPENS_AFTER = 5
OFF_ROAD_CLOSES_AFTER = 10
CRASH_OFF_ROAD_FRAMES = 50
CRASH_HEADING_FRAMES = 25
CRASH_HEADING = math.pi / 2
_SPLIT = 2.0**27 + 1
"""Splits a float64 into two halves (Dekker)."""
LAP_FRACTION = 0.95
"""A lap must have touched more than this fraction of the tiles: gymnasium's `lap_complete_percent`."""


@dataclass(frozen=True)
class Pose:
    """Position and direction relative to the centre line."""

    index: int
    """The nearest tile."""
    lateral: float
    """Signed distance over the half-width: positive to the right of the direction of travel, +-1 at the road's edge."""
    heading: float
    """Radians in (-pi, pi], positive to the left."""


class Track:
    """Closed centre line of one episode.

    Args:
        points: (N, 2) positions in simulator units, in driving order.
        angles: (N,) hull angles that point along the road, in radians (gymnasium's beta: angle 0 drives towards +y).
    """

    def __init__(self, points: ArrayLike, angles: ArrayLike):
        self.points = np.asarray(points, dtype=np.float64)  # (N, 2)
        self._x, self._y = np.ascontiguousarray(self.points.T)  # (N,) each
        self.angles = np.asarray(angles, dtype=np.float64)  # (N,)
        self.segments = np.roll(self.points, -1, axis=0) - self.points  # (N, 2), tile i -> i + 1
        lengths_squared = np.maximum((self.segments**2).sum(axis=1), 1e-12)  # (N,)
        self._rows: list[tuple[float, ...]] = np.column_stack((self.segments, lengths_squared)).tolist()
        self._turned: list[float] = self.angles.tolist()

    def __len__(self) -> int:
        return len(self.points)

    def locate(self, position: Iterable[float], angle: float) -> Pose:
        """Project a car on the centre line.

        Args:
            position: x and y in simulator units.
            angle: Angle of the hull in radians.

        Returns:
            The pose relative to the centre line.
        """
        x, y = map(float, position)
        away_x, away_y = self._x - x, self._y - y  # (N,)
        nearest = int((away_x * away_x + away_y * away_y).argmin())
        best = math.inf
        lateral, along = 0.0, 0.0
        segment = nearest
        for i in ((nearest - 1) % len(self), nearest):
            offset_x, offset_y = -float(away_x[i]), -float(away_y[i])
            segment_x, segment_y, length_squared = self._rows[i]
            projection = _fused(offset_y, segment_y, offset_x * segment_x)
            fraction = min(max(projection / length_squared, 0.0), 1.0)
            x, y = offset_x - fraction * segment_x, offset_y - fraction * segment_y
            distance = math.hypot(x, y)
            if distance < best:
                best, segment, along = distance, i, fraction
                lateral = -math.copysign(distance, segment_x * y - segment_y * x)
        start = self._turned[segment]
        turn = wrap_angle(self._turned[(segment + 1) % len(self)] - start)
        heading = wrap_angle(angle - (start + along * turn))
        return Pose(nearest, lateral / TRACK_HALF_WIDTH, heading)


def _fused(a: float, b: float, c: float) -> float:
    """Return a b + c, rounded once, on every processor.

    A dot product of BLAS rounds once or twice, as its kernel for the processor does, and the last bit of the lateral
    offset decides whether an action log is found again. The error of a b is Dekker's (Numerische Mathematik 18, 1971).
    """
    product = a * b
    big_a, big_b = a * _SPLIT, b * _SPLIT
    high_a, high_b = big_a - (big_a - a), big_b - (big_b - b)
    low_a, low_b = a - high_a, b - high_b
    error = low_a * low_b - (product - high_a * high_b - low_a * high_b - high_a * low_b)
    return math.fsum((product, error, c))


def wrap_angle(angle: float) -> float:
    """Return `angle`, in radians, wrapped into (-pi, pi]."""
    return float(math.pi - (math.pi - angle) % (2 * math.pi))


class EventDetector:
    """Detector of off-road events and crashes in a stream.

    An off-road event opens after 5 consecutive frames in which at least 3 wheels touch no tile. It closes after 10
    consecutive frames on the road. A crash is a position outside the playfield, 50 consecutive frames with at least 3
    wheels off the road, or 25 consecutive frames with a heading error above 90 degrees. A crash counts once: the
    detector is armed again when the car is back on the road and points along it.
    """

    def __init__(self) -> None:
        self.off_road = False
        self.off_road_events = 0
        self.crashes = 0
        self.rearm()

    def rearm(self) -> None:
        """Forget the current excursion, as after an intervention. The counts stay."""
        self.off_road = False
        self._armed = True
        self._frames_off = 0
        self._frames_on = 0
        self._frames_turned = 0

    def update(self, wheels_off_road: int, heading_error: float, outside: bool) -> str | None:
        """Take one frame.

        Args:
            wheels_off_road: Number of wheels that touch no tile, 0 to 4.
            heading_error: Radians, see `Pose.heading`.
            outside: True if the car is outside the playfield.

        Returns:
            The kind of crash that this frame completes: 'outside', 'off_road', 'heading' or None.
        """
        off = wheels_off_road >= OFF_ROAD_WHEELS
        self._frames_off = self._frames_off + 1 if off else 0
        self._frames_on = 0 if off else self._frames_on + 1
        self._frames_turned = self._frames_turned + 1 if abs(heading_error) > CRASH_HEADING else 0

        if not self.off_road and self._frames_off >= OFF_ROAD_OPENS_AFTER:
            self.off_road = True
            self.off_road_events += 1
        elif self.off_road and self._frames_on >= OFF_ROAD_CLOSES_AFTER:
            self.off_road = False

        crash = None
        if outside:
            crash = "outside"
        elif self._frames_off >= CRASH_OFF_ROAD_FRAMES:
            crash = "off_road"
        elif self._frames_turned >= CRASH_HEADING_FRAMES:
            crash = "heading"
        if crash is None:
            self._armed = self._armed or not (self.off_road or self._frames_turned)
            return None
        if not self._armed:
            return None
        self._armed = False
        self.crashes += 1
        return crash


class LapDetector:
    """Progress along the track, and detector of a finished lap.

    A lap is finished with the last tile, or when the car passes the start with more than 95 % of the tiles touched. The
    second rule is gymnasium's own. It hardly ever fires there, because gymnasium requires the first touch of tile 0,
    which happens at the reset.

    Args:
        tiles: Number of tiles of the track.
    """

    def __init__(self, tiles: int):
        self._tiles = tiles
        self._index = 0
        self._laps = 0
        self.furthest = 0
        """The furthest tile so far of those that were nearest; the count goes on over the start."""
        self.finished = False

    def update(self, index: int, visited: int) -> bool:
        """Take one frame.

        Args:
            index: The nearest tile.
            visited: Number of tiles touched so far.

        Returns:
            `finished`: True from the end of the lap on.
        """
        passes_start = self._index - index > self._tiles / 2
        self._laps += passes_start - (index - self._index > self._tiles / 2)  # backwards over the start
        self._index = index
        self.furthest = max(self.furthest, self._laps * self._tiles + index)
        enough = visited == self._tiles or (passes_start and visited > LAP_FRACTION * self._tiles)
        self.finished = self.finished or enough
        return self.finished
