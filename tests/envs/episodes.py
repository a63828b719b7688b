"""Environments and action sequences that the tests of envs share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from nac_drive.envs import FRAME_SHAPE

CONTROLS = ("discrete", "continuous")
FULL_GAS = {"discrete": np.int64(3), "continuous": np.array([0, 1, 0], np.float32)}


def random_actions(control: str, frames: int, seed: int) -> list[Any]:
    """Each held for some frames, with much gas: the car leaves the road."""
    rng = np.random.default_rng(seed)
    actions: list[Any] = []
    while len(actions) < frames:
        if control == "discrete":
            action = rng.choice(5, p=[0.1, 0.2, 0.15, 0.5, 0.05])
        else:
            action = np.array([rng.uniform(-1, 1), rng.uniform(0.5, 1), rng.choice([0, 0, 0, 0.2])], np.float32)
        actions += [action] * int(rng.integers(1, 15))
    return actions[:frames]


def play(env: gym.Env, actions: Sequence[Any], seed: int | None) -> Iterator[tuple[Any, ...]]:
    """Observation, reward, terminated, truncated, info of every frame. The reset's first."""
    observation, info = env.reset(seed=seed)
    yield observation, 0.0, False, False, info
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        yield observation, reward, terminated, truncated, info
        if terminated or truncated:
            return


def blind(env: gym.Env) -> gym.Env:
    """Our environment, which draws no observations from now on."""
    env.unwrapped.observe = False  # type: ignore[attr-defined]
    return env


def native(control: str, *, draw: bool = True, **settings: Any) -> gym.Env:
    """gymnasium's own environment. With `draw` off its observations are black, and `render` works."""
    settings["disable_env_checker"] = not draw  # it warns of observations that share an array
    env = gym.make("CarRacing-v3", continuous=control == "continuous", **settings)
    if not draw:
        simulator: Any = env.unwrapped
        render, black = simulator._render, np.zeros(FRAME_SHAPE, np.uint8)
        simulator._render = lambda mode: black if mode == "state_pixels" else render(mode)
    return env
