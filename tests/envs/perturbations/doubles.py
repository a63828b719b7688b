"""Test doubles and episodes for the tests of perturbations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from nac_drive.envs import PERTURBATIONS, Step, rollout
from nac_drive.envs.perturbations.frames import FrameLoss
from tests.problems import ToyEnv

HIGHEST = [f"{name}:{len(levels)}" for name, levels in PERTURBATIONS.items()]
ALL = "+".join(HIGHEST)


class Clock(ToyEnv):
    """Eight frames, 1/50 s apart, except for one that is late; it takes any action."""

    DT = (0.0, 0.02, 0.02, 0.06, 0.02, 0.02, 0.02, 0.02, 0.02)

    def __init__(self, action_space: gym.Space = ToyEnv.action_space, crash: int | None = None):
        super().__init__(length=8)
        self.action_space, self.crash = action_space, crash

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, info | {"crash": "off" if self.frame == self.crash else None}


@dataclass(frozen=True)
class Scripted(FrameLoss):
    """Frames 2, 3, 6 and 8 are lost."""

    def lost(self, rng: np.random.Generator) -> Iterator[bool]:
        return (frame in (2, 3, 6, 8) for frame in itertools.count())


class Counter:
    """Action i of an episode is i modulo 5."""

    def begin(self, env: gym.Env) -> int:
        return 1

    def act(self, observation: np.ndarray, state: int, dt: float) -> tuple[int, int]:
        return state % 5, state + 1


class Random:
    """Random actions."""

    def begin(self, env: gym.Env) -> np.random.Generator:
        return np.random.default_rng(0)

    def act(self, observation: np.ndarray, state: np.random.Generator, dt: float) -> tuple[Any, np.random.Generator]:
        return np.int64(state.choice(5, p=[0.1, 0.2, 0.15, 0.5, 0.05])), state


def timeline(env: gym.Env) -> list[tuple]:
    """Per decision: observation, dt, action, reward, terminated and frame_lost."""
    steps: list[Step] = []
    rollout(env, Counter(), 0, subscribers=[steps.append])
    return [
        (
            int(step.observation.max()), step.info["dt"], step.action, step.reward, step.terminated,
            step.info.get("frame_lost"),
        )
        for step in steps
    ]  # fmt: skip


def controls(values: list) -> np.ndarray:
    return np.array(values, np.float32)


def drive(env: gym.Env, seed: int = 0, driver: Any = None) -> list[Step]:
    steps: list[Step] = []
    rollout(env, driver or Random(), seed, subscribers=[steps.append])
    return steps


def observations(steps: list[Step]) -> np.ndarray:
    return np.stack([step.observation for step in steps])
