"""The state of the car, as input of PPO's value network.

`car_state` is the plain form, of one environment. `car_states` computes the same numbers of a whole batch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nac_drive.envs.readings import TILES_UNDER_CAR

_TILES_AHEAD = np.array([1, 2, 3, 4, 6, 8, 10, 13, 16, 20, 24, 28])
"""Tiles of the centre line, counted from the nearest one, whose places are part of the state."""
_FAR, _FAST = 25.0, 50.0
"""Units and units per second that count as 1."""
CAR_STATE_SIZE = 15 + 2 * len(_TILES_AHEAD)


def car_state(env: Any, info: dict[str, Any]) -> np.ndarray:
    """Return the car's state and the road ahead of it.

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


def car_states(roads: np.ndarray, cars: np.ndarray) -> np.ndarray:
    """Return `car_state` of every environment of a batch.

    Args:
        roads: (E,) structured array of `ROAD`, as in `World`.
        cars: (E,) structured array of `CAR`, all in an episode.

    Returns:
        (E, CAR_STATE_SIZE) float32.
    """
    hull, wheel = cars["body"][:, 0], cars["wheel"]
    tiles, nearest = roads["tiles"].astype(np.int64), cars["index"].astype(np.int64)
    sin, cos = np.sin(hull["angle"], dtype=np.float64), np.cos(hull["angle"], dtype=np.float64)
    velocity_x, velocity_y = hull["vx"].astype(np.float64), hull["vy"].astype(np.float64)
    ahead = (nearest[:, None] + _TILES_AHEAD) % tiles[:, None]  # (E, 12)
    to_line = roads["line"][np.arange(len(cars))[:, None], ahead, 2:4] - cars["position"][:, None]  # (E, 12, 2)
    to_x, to_y, sin_, cos_ = to_line[..., 0], to_line[..., 1], sin[:, None], cos[:, None]
    missed = tiles_missed(roads, cars)
    states = np.empty((len(cars), CAR_STATE_SIZE), np.float32)
    states[:, 0] = cars["lateral_offset"]
    states[:, 1] = np.sin(cars["heading_error"])
    states[:, 2] = np.cos(cars["heading_error"])
    states[:, 3] = (velocity_x * cos + velocity_y * sin) / _FAST
    states[:, 4] = (velocity_y * cos - velocity_x * sin) / _FAST
    states[:, 5] = hull["spin"].astype(np.float64) / 5
    states[:, 6] = (cars["body"]["angle"][:, 1] - hull["angle"]).astype(np.float64) / 0.4  # subtracted as in Box2D
    states[:, 7] = wheel["omega"][:, 0] / 100
    states[:, 8] = wheel["omega"][:, 2] / 100
    states[:, 9] = wheel["gas"][:, 2]
    states[:, 10] = cars["wheels_off_road"] / 4
    states[:, 11] = cars["visited_count"] / tiles
    states[:, 12] = nearest / tiles
    states[:, 13] = missed > 0
    states[:, 14] = missed / 10
    states[:, 15:27] = (to_x * cos_ + to_y * sin_) / _FAR
    states[:, 27:] = (to_y * cos_ - to_x * sin_) / _FAR
    return states


def tiles_missed(roads: np.ndarray, cars: np.ndarray) -> np.ndarray:
    """Return the number of missed tiles (E,), see `Readings.tiles_missed`."""
    passed = np.clip(cars["lap"]["furthest"] - TILES_UNDER_CAR, 0, roads["tiles"])
    visited = cars["visited"].astype(bool)  # (E, MAX_TILES)
    return passed - np.count_nonzero(visited & (np.arange(visited.shape[1]) < passed[:, None]), axis=1)
