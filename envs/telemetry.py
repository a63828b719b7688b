"""What the car is doing, read from the track itself: never from pixels.

Definitions follow docs/metrics.md. `Track` answers where a point lies on the centre line, `EventDetector` turns
a stream of wheel counts and heading errors into off-road events and crashes, `LapDetector` tells the end of a lap. All
are free of gymnasium and Box2D.
"""

from __future__ import annotations

import math
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
LAP_SHARE = 0.95
"""Share of the tiles that a lap must have touched more than: gymnasium's `lap_complete_percent`."""


@dataclass(frozen=True)
class Pose:
    """A place relative to the centre line.

    index: the nearest tile.  lateral: signed distance over the half-width, positive to the right of the direction of
    travel, +-1 at the edge of the road.  heading: radians in (-pi, pi], positive to the left.
    """

    index: int
    lateral: float
    heading: float


class Track:
    """The closed centre line of one episode.

    points: (N, 2) positions in simulator units, in driving order.  angles: (N,) hull angles that point along the road,
    in radians (gymnasium's beta: angle 0 drives towards +y).
    """

    def __init__(self, points: ArrayLike, angles: ArrayLike):
        self.points = np.asarray(points, dtype=np.float64)  # (N, 2)
        self.angles = np.asarray(angles, dtype=np.float64)  # (N,)
        self.segments = np.roll(self.points, -1, axis=0) - self.points  # (N, 2), tile i -> i + 1
        self.segment_lengths_squared = np.maximum((self.segments**2).sum(axis=1), 1e-12)

    def __len__(self) -> int:
        return len(self.points)

    def locate(self, position: ArrayLike, angle: float) -> Pose:
        """The pose of a car at `position` (x, y) with hull angle `angle`, by projection on the centre line."""
        position = np.asarray(position, dtype=np.float64)
        nearest = int(((self.points - position) ** 2).sum(axis=1).argmin())
        best = math.inf
        lateral, along = 0.0, 0.0
        segment = nearest
        for i in ((nearest - 1) % len(self), nearest):
            offset = position - self.points[i]
            share = float(np.clip(offset @ self.segments[i] / self.segment_lengths_squared[i], 0.0, 1.0))
            away = offset - share * self.segments[i]
            distance = math.hypot(away[0], away[1])
            if distance < best:
                best, segment, along = distance, i, share
                cross = self.segments[i][0] * away[1] - self.segments[i][1] * away[0]
                lateral = -math.copysign(distance, cross)
        turn = wrap_angle(self.angles[(segment + 1) % len(self)] - self.angles[segment])
        heading = wrap_angle(angle - (self.angles[segment] + along * turn))
        return Pose(nearest, lateral / TRACK_HALF_WIDTH, heading)


def wrap_angle(angle: float) -> float:
    """`angle` in radians, brought into (-pi, pi]."""
    return float(math.pi - (math.pi - angle) % (2 * math.pi))


class EventDetector:
    """Off-road events and crashes from a stream of frames.

    Off-road: at least 3 wheels touch no tile for 5 frames on end; closed again by 10 frames on the road.
    Crash: outside the playfield; 50 frames on end with 3 wheels or more off the road; or a heading error above 90
    degrees for 25 frames on end. A crash counts once: the detector is armed again when the car is back on the road
    and points along it.
    """

    def __init__(self) -> None:
        self.off_road = False
        self.off_road_events = 0
        self.crashes = 0
        self.rearm()

    def rearm(self) -> None:
        """Forget the current excursion, as after the car was set back on the road; the counts stay."""
        self.off_road = False
        self._armed = True
        self._frames_off = 0
        self._frames_on = 0
        self._frames_turned = 0

    def update(self, wheels_off_road: int, heading_error: float, outside: bool) -> str | None:
        """Take one frame; returns the kind of crash that it completes: 'outside', 'off_road', 'heading' or None."""
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
    """Whether a lap of a track of `tiles` tiles is finished.

    It is with the last tile, or when the car passes the start with more than 95 % of the tiles touched. The latter is
    gymnasium's own rule, which hardly ever fires there: it asks for the first touch of tile 0, which is the reset's.
    """

    def __init__(self, tiles: int):
        self._tiles = tiles
        self._index = 0
        self.finished = False

    def update(self, index: int, visited: int) -> bool:
        """Take one frame: the nearest tile and how many have been touched; returns `finished`."""
        passes_start = self._index - index > self._tiles / 2
        self._index = index
        enough = visited == self._tiles or (passes_start and visited > LAP_SHARE * self._tiles)
        self.finished = self.finished or enough
        return self.finished
