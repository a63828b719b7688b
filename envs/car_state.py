"""The state of the car in the simulator: the input of a value network that is used in training alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_TILES_AHEAD = np.array([1, 2, 3, 4, 6, 8, 10, 13, 16, 20, 24, 28])
"""Tiles of the centre line, counted from the nearest one, whose places are part of the state."""
_FAR, _FAST = 25.0, 50.0
"""Units and units per second that count as 1."""
CAR_STATE_SIZE = 15 + 2 * len(_TILES_AHEAD)


def car_state(env: Any, info: dict[str, Any]) -> np.ndarray:
    """Return the state of the car, and of the road ahead as seen from it.

    Args:
        env: A `CarRacing` in an episode.
        info: Its latest `info`.

    Returns:
        (CAR_STATE_SIZE,) float32, each number of the order of 1: place on the road, velocity and yaw rate, wheel angle
        and wheel speeds, wheels off the road, fractions of the tiles visited and of the lap driven, whether a tile was
        missed, and how many; then x and y of the road's centre. A missed tile costs the time to the end of the episode,
        a step that a network would not find in the fractions.
    """
    hull, line = env.car.hull, env.centre_line
    x, y = hull.position
    sin, cos = math.sin(hull.angle), math.cos(hull.angle)
    velocity_x, velocity_y = hull.linearVelocity
    wheels = env.car.wheels
    ahead = line.points.take(env.pose.index + _TILES_AHEAD, axis=0, mode="wrap") - (x, y)
    right, forward = ahead @ (cos, sin), ahead @ (-sin, cos)
    missed = env.tiles_missed()
    numbers = (
        info["lateral_offset"],
        math.sin(info["heading_error"]),
        math.cos(info["heading_error"]),
        (velocity_x * cos + velocity_y * sin) / _FAST,
        (velocity_y * cos - velocity_x * sin) / _FAST,
        hull.angularVelocity / 5,
        wheels[0].joint.angle / 0.4,
        wheels[0].omega / 100,
        wheels[2].omega / 100,
        wheels[2].gas,
        info["wheels_off_road"] / 4,
        info["completion"],
        env.pose.index / len(line),
        float(missed > 0),
        missed / 10,
    )
    return np.concatenate((numbers, right / _FAR, forward / _FAR)).astype(np.float32)
