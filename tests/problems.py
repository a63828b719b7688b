"""Problems with exact answers, and doubles that check themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from nac_drive.envs import TRACK_HALF_WIDTH, Track


def circle(radius: float = 100.0, tiles: int = 720) -> Track:
    """Driven counter-clockwise around the origin: at the polar angle t the car's angle is t, outside is right."""
    t = np.arange(tiles) * 2 * np.pi / tiles
    return Track(radius * np.stack([np.cos(t), np.sin(t)], axis=1), t)


def square(side: int = 40) -> Track:
    """Driven counter-clockwise from (0, 0), a tile per unit: east (angle -90 degrees), north, west, south."""
    along, points, angles = np.arange(side), [], []
    for i, (start, step) in enumerate(
        [((0, 0), (1, 0)), ((side, 0), (0, 1)), ((side, side), (-1, 0)), ((0, side), (0, -1))]
    ):
        points.append(np.array(start) + along[:, None] * np.array(step))
        angles.append(np.full(side, (i - 1) * np.pi / 2))
    return Track(np.concatenate(points), np.concatenate(angles))


def units(lateral: float) -> float:
    """A lateral offset in simulator units."""
    return lateral * TRACK_HALF_WIDTH


class ToyEnv(gym.Env):
    """Four frames of 2x2 pixels that show their own number. `state` is what the camera saw before any wrapper."""

    observation_space = gym.spaces.Box(0, 255, (2, 2, 3), np.uint8)
    action_space = gym.spaces.Discrete(5)
    DT = (0.0, 0.02, 0.06, 0.02, 0.02)
    """The third observation comes late: two frames were dropped."""

    def __init__(self, length: int = 4, terminates: bool = True):
        self.length, self.terminates = length, terminates
        self.resets: list[int | None] = []
        self.actions: list[Any] = []

    def _info(self) -> dict[str, Any]:
        return {"dt": self.DT[self.frame], "frame": self.frame}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self.resets.append(seed)
        self.actions.clear()
        self.frame = 0
        self.state = np.zeros((2, 2, 3), np.uint8)
        return self.state, self._info()

    def step(self, action):
        assert self.frame < self.length, "stepped on after the end"
        self.actions.append(action)
        self.frame += 1
        self.state = np.full((2, 2, 3), self.frame, np.uint8)
        done = self.frame == self.length
        return self.state, 10.0**self.frame, done and self.terminates, done and not self.terminates, self._info()


class Darkened(gym.ObservationWrapper):
    """Hides everything from the driver."""

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return np.zeros_like(observation)


class CheckingDriver:
    """Answers frame i of episode e with `answer + i`. Fails when begun, ordered or timed in any other way."""

    def __init__(self, answer: int, sees: list[int] | None = None):
        self.answer, self.sees = answer, sees
        self.begun = 0

    def begin(self, env: gym.Env) -> tuple[int, int]:
        assert env.unwrapped.frame == 0, "begun after the first step"  # type: ignore[attr-defined]
        self.begun += 1
        return self.begun, 0

    def act(self, observation: np.ndarray, state: tuple[int, int], dt: float) -> tuple[int, tuple[int, int]]:
        episode, frame = state
        assert episode == self.begun, "a state of another episode"
        assert dt == ToyEnv.DT[frame], "the time since the previous observation is wrong"
        if self.sees is not None:
            assert int(observation.max()) == self.sees[frame], "the wrong frame"
        return self.answer + frame, (episode, frame + 1)


class CheckingBatchPolicy(CheckingDriver):
    """A `BatchPolicy` of any number of episodes at a time. `batches` and `alone` keep what was queried together."""

    def __init__(self, answer: int) -> None:
        super().__init__(answer)
        self.batches: list[list[int]] = []
        self.alone: list[int] = []

    def act(self, observation: np.ndarray, state: tuple[int, int], dt: float) -> tuple[int, tuple[int, int]]:
        self.alone.append(state[0])
        return self._answer(observation, state, dt)

    def act_batch(
        self, observations: Sequence[np.ndarray], states: Sequence[tuple[int, int]], dts: Sequence[float]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        self.batches.append([episode for episode, _ in states])
        actions, after = zip(*map(self._answer, observations, states, dts), strict=True)
        return list(actions), list(after)

    def _answer(self, observation: np.ndarray, state: tuple[int, int], dt: float) -> tuple[int, tuple[int, int]]:
        episode, frame = state
        assert int(observation.max()) == frame, "the frame of another episode"
        assert dt == ToyEnv.DT[frame], "the time since the previous observation is wrong"
        return self.answer + frame, (episode, frame + 1)
