"""Wrappers of observations."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium as gym
import numpy as np

BAR_TOP = 84
"""First row of the status bar in a 96x96 frame: gymnasium paints the lowest 5/40 of the frame black."""


class MaskBar(gym.ObservationWrapper):
    """Environment whose observations have a black status bar.

    Speed, wheel speeds, steering angle, gyroscope and score are hidden. The green indicator follows the previous
    steering action with correlation 0.97, a shortcut that a cloned driver takes.
    """

    def __init__(self, env: gym.Env, bar_top: int = BAR_TOP):
        super().__init__(env)
        self._bar_top = bar_top

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return without_bar(observation, self._bar_top)


def without_bar(frame: np.ndarray, bar_top: int) -> np.ndarray:
    """Return a copy of a frame, black from row `bar_top`."""
    masked = frame.copy()
    masked[bar_top:] = 0
    return masked


def look(env: gym.Env) -> np.ndarray:
    """Draw the present frame through all observation wrappers.

    Args:
        env: A `CarRacing` under any wrappers.

    Returns:
        The observation, (96, 96, 3) uint8 if no wrapper changes its shape.
    """
    if not isinstance(env, gym.Wrapper):
        return env.look()  # type: ignore[attr-defined]
    observation = look(env.env)
    return env.observation(observation) if isinstance(env, gym.ObservationWrapper) else observation


def wrappers_of(env: gym.Env) -> Iterator[gym.Wrapper]:
    """Yield all wrappers of a simulator, the outermost first."""
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
