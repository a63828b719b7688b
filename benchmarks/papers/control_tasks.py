"""Control tasks without images, and rollouts of an agent in several of them side by side."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from agents import Agent

from nac_drive.envs import CarRacing, wrap_angle

_NEAR, _FAR = 6, 16
"""Tiles ahead whose direction is part of the car's state; tiles are 3.5 units apart."""


class World(ABC):
    """One environment with observations and actions of the order of 1."""

    observations: ClassVar[int]
    low: ClassVar[tuple[float, ...]]
    """Least value of each action."""
    high: ClassVar[tuple[float, ...]]
    """Largest value of each action."""
    steps: ClassVar[int]
    """Steps of an episode at most."""
    solved: ClassVar[float]
    """Return from which gymnasium calls the task solved."""

    @abstractmethod
    def reset(self, seed: int) -> Sequence[float]:
        """Begin an episode and return its first observation."""

    @abstractmethod
    def step(self, action: np.ndarray) -> tuple[Sequence[float], float, bool]:
        """Return the next observation, the reward, and whether the episode has ended."""


class MountainCar(World):
    """gymnasium's MountainCarContinuous-v0: place, 0 at the bottom of the valley, and velocity."""

    observations, low, high, steps, solved = 2, (-1.0,), (1.0,), 999, 90.0

    def __init__(self) -> None:
        self._env: Any = gym.make("MountainCarContinuous-v0").unwrapped

    def reset(self, seed: int) -> Sequence[float]:
        return self._observe(self._env.reset(seed=seed)[0])

    def step(self, action: np.ndarray) -> tuple[Sequence[float], float, bool]:
        state, reward, terminated, _, _ = self._env.step(action)
        return self._observe(state), reward, terminated

    @staticmethod
    def _observe(state: np.ndarray) -> Sequence[float]:
        place, velocity = state.tolist()
        return (place + 0.5) / 0.3, velocity / 0.02


class Car(World):
    """CarRacing, undrawn: lateral offset, heading error, the turn of the road ahead (near, far), speed and yaw rate.

    Actions are steering, gas and brake. A crash ends the episode (docs/metrics.md).
    """

    observations, low, high, steps, solved = 6, (-1.0, 0.0, 0.0), (1.0, 1.0, 1.0), 1000, 900.0

    def __init__(self) -> None:
        self._env = CarRacing(control="continuous", crash="terminate")
        self._env.observe = False

    def reset(self, seed: int) -> Sequence[float]:
        return self._observe(self._env.reset(seed=seed)[1])

    def step(self, action: np.ndarray) -> tuple[Sequence[float], float, bool]:
        _, reward, terminated, _, info = self._env.step(action)
        return self._observe(info), reward, terminated

    def _observe(self, info: dict[str, Any]) -> Sequence[float]:
        angles, index = self._env.centre_line.angles, self._env.pose.index
        near, far = (
            wrap_angle(float(angles[(index + tiles) % len(angles)] - angles[index])) for tiles in (_NEAR, _FAR)
        )
        yaw_rate = self._env.car.hull.angularVelocity
        return info["lateral_offset"], info["heading_error"], near, far, info["speed"] / 50, yaw_rate / 5


TASKS: dict[str, type[World]] = {"mountain-car": MountainCar, "car": Car}


@cache
def _world(task: str, index: int) -> World:
    return TASKS[task]()


def rollouts(
    agent: Agent[Any],
    task: str,
    seeds: Sequence[int],
    steps: int,
    watch: Callable[[np.ndarray, Any], None] = lambda x, state: None,
) -> np.ndarray:
    """Return the return of one episode of every seed, (R,).

    Args:
        agent: The agent, with its parameters loaded.
        task: A name in TASKS.
        seeds: Seeds of the episodes, which run side by side.
        steps: Steps at most.
        watch: Called in every step with the observations (R, F) and the agent's new state, of the episodes that go on.
    """
    envs = [_world(task, index) for index in range(len(seeds))]
    kind = TASKS[task]
    low, high = np.array(kind.low), np.array(kind.high)
    x = np.array([env.reset(seed) for env, seed in zip(envs, seeds, strict=True)])
    state, going = agent.begin(len(seeds)), np.arange(len(seeds))
    returns = np.zeros(len(seeds))
    for _ in range(min(steps, kind.steps)):
        y, state = agent.step(x, state)
        watch(x, state)
        rows = []
        for row, (index, action) in enumerate(zip(going.tolist(), np.clip(y, low, high), strict=True)):
            x[row], reward, ended = envs[index].step(action)
            returns[index] += reward
            if not ended:
                rows.append(row)
        if len(rows) < len(going):
            kept = np.array(rows, dtype=int)
            x, going, state = x[kept], going[kept], agent.keep(state, kept)
            if not rows:
                break
    return returns
