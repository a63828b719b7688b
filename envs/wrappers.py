"""Wrappers around the observation."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

BAR_TOP = 84
"""First row of the status bar in a 96x96 frame: gymnasium paints the lowest 5/40 of the picture black."""


class MaskBar(gym.ObservationWrapper):
    """Paints the status bar black: speed, wheel speeds, steering angle, gyroscope and score are hidden.

    The green bar follows the previous steering action with correlation 0.97, a shortcut that a cloned driver takes.
    """

    def observation(self, observation: np.ndarray) -> np.ndarray:
        masked = observation.copy()
        masked[BAR_TOP:] = 0
        return masked


def look(env: gym.Env) -> np.ndarray:
    """The present frame of a `CarRacing`, drawn now, through all wrappers of observations around it."""
    if not isinstance(env, gym.Wrapper):
        return env.look()  # type: ignore[attr-defined]
    observation = look(env.env)
    return env.observation(observation) if isinstance(env, gym.ObservationWrapper) else observation
