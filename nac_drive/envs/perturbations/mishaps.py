"""Mishaps: the car is turned, thrown or spun, and recovers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from nac_drive.envs.car_racing import CarRacing
from nac_drive.envs.perturbations.base import Perturbation
from nac_drive.envs.perturbations.stream import Stream
from nac_drive.plain import whole

KINDS = ("turned", "beside", "spin")
FIRST_FRAME, LAST_FRAME = 100, 500
"""Frames between which mishaps happen: after the zoom-in, and before a fast lap ends."""
LEAST_FRAMES = 50
"""Frames between the parts of an episode that have one mishap each."""
MOST = 4
TURNED, TURNED_SPEED = 0.4, 50.0
"""Radians around the opposite direction, and the largest speed in units/s."""
BESIDE, BESIDE_SPEED = (8.0, 18.0), 40.0
"""Distances from the centre line in units, the road's half-width being 6.67, and the largest speed."""
SPIN = (8.0, 20.0)
"""Turning rates in rad/s."""


class Mishap(NamedTuple):
    """One mishap."""

    frame: int
    """The observation before which it happens."""
    kind: str
    side: int
    """1 or -1."""
    angle: float
    """In [-1, 1]; of the largest angle."""
    amount: float
    """In [0, 1]: how far from the road, or how fast it turns."""
    speed: float
    """In [0, 1]; of the largest speed."""


def draw_mishaps(rng: np.random.Generator) -> list[Mishap]:
    """Draw the mishaps of an episode in random order.

    Level 1 has the first one.
    """
    length, mishaps = (LAST_FRAME - FIRST_FRAME) // MOST, []
    for part in rng.permutation(MOST).tolist():
        frame = FIRST_FRAME + part * length + int(rng.integers(length - LEAST_FRAMES))
        kind, side = KINDS[rng.integers(len(KINDS))], int(rng.integers(2)) * 2 - 1
        mishaps.append(Mishap(frame, kind, side, rng.uniform(-1, 1), rng.random(), rng.random()))
    return mishaps


@dataclass(frozen=True)
class Mishaps(Perturbation):
    """The car comes to grief `times` in an episode, and the driver has to recover.

    Equally likely it is turned on the road to face backwards, thrown onto the grass in any direction, or set spinning.
    Times, places and speeds are drawn once; they do not depend on the driver, except where it is at that time.
    `info["mishaps"]` counts them. Score, tiles and time stay.
    """

    needs_car_racing = True

    times: int

    def __post_init__(self) -> None:
        if not 1 <= whole("times", self.times) <= MOST:
            raise ValueError(f"times must lie in [1, {MOST}], got {self.times}; recovering takes two seconds.")

    def wrap(self, env: gym.Env, stream: Stream, episode_frames: int, bar_top: int | None) -> gym.Env:
        return MishapsHappen(env, self, stream)


class MishapsHappen(gym.Wrapper):
    """Environment under `Mishaps`.

    Raises:
        ValueError: If `env` is not a CarRacing.
    """

    def __init__(self, env: gym.Env, mishaps: Mishaps, stream: Stream):
        if not isinstance(env.unwrapped, CarRacing):
            raise ValueError(f"mishaps need CarRacing's car, got {env.unwrapped}; leave mishaps out.")
        super().__init__(env)
        self._mishaps, self._stream = mishaps, stream
        self._frame, self._count, self._waiting = 0, 0, {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        mishaps = draw_mishaps(self._stream.restart(seed))[: self._mishaps.times]
        self._frame, self._count, self._waiting = 0, 0, {mishap.frame: mishap for mishap in mishaps}
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, {**info, "mishaps": 0}

    def step(self, action):
        self._frame += 1
        if mishap := self._waiting.get(self._frame):
            self._happen(mishap)  # before the frame is stepped and drawn, so that all wrappers see what comes of it
            self._count += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, "mishaps": self._count}

    def _happen(self, mishap: Mishap) -> None:
        simulator: Any = self.unwrapped
        hull = simulator.car.hull
        if mishap.kind == "spin":
            low, high = SPIN
            spin = mishap.side * (low + mishap.amount * (high - low))
            simulator.place(hull.angle, *hull.position, velocity=tuple(hull.linearVelocity), spin=spin)
            return
        line, place = simulator.centre_line, simulator.pose.index
        (x, y), road = line.points[place], line.angles[place]
        if mishap.kind == "turned":
            angle, speed = road + math.pi + TURNED * mishap.angle, TURNED_SPEED * mishap.speed
        else:
            low, high = BESIDE
            offset = mishap.side * (low + mishap.amount * (high - low))
            x, y = x + offset * math.cos(road), y + offset * math.sin(road)
            angle, speed = road + math.pi * mishap.angle, BESIDE_SPEED * mishap.speed
        simulator.place(angle, x, y, velocity=(-speed * math.sin(angle), speed * math.cos(angle)))
