"""Plain numbers that MetaDrive's process reports."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class RoadMap:
    """The ground of a map, in metres."""

    surface: np.ndarray
    """(N, 4, 2) quadrilaterals of asphalt."""
    lines: np.ndarray
    """(M, 4, 2) quadrilaterals of paint, each a piece of a line."""
    yellow: np.ndarray
    """(M,) bool: the pieces that part the two directions."""
    route: np.ndarray
    """(K, 2) middle of the way from the start to the destination."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The car and the traffic after a step."""

    x: float
    """Middle of the car, metres."""
    y: float
    heading: float
    """Radians, left positive, 0 along x."""
    speed: float
    """Metres per second."""
    offset: float
    """Metres from the middle of the lane, right positive."""
    lane_width: float
    """Metres."""
    lane_heading: float
    """Heading of the lane at the car, radians."""
    completion: float
    """Fraction of the route."""
    off_road: bool
    """The car has left its lanes, or touches a line that may not be crossed."""
    crash: str | None
    """The kind of thing that the car touches."""
    arrived: bool
    """The car has reached its destination."""
    ended: bool
    """A rule of MetaDrive ends the episode."""
    reward: float
    turn: float | None
    """Change of heading over the branch that the route takes, radians, left positive; None away from junctions."""
    traffic: np.ndarray
    """(N, 7) the other cars: x, y, heading, length, width, height, and a number that stays with the car."""
