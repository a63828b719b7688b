"""Wrappers around the observation."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from envs.telemetry import FRAMES_PER_SECOND

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


class ActionRepeat(gym.Wrapper):
    """Takes every action for `frames` frames and shows the last one; the others are not drawn.

    Goes around what `make_env` returns. Rewards are summed. The episode ends in the frame in which it ends without this
    wrapper. `info` is that of the last frame, with dt the time of all of them and crash the first one among them.
    """

    def __init__(self, env: gym.Env, frames: int):
        if frames < 1:
            raise ValueError(f"frames must be at least 1, got {frames}.")
        super().__init__(env)
        self.frames = frames

    def step(self, action: Any):
        car_racing: Any = self.unwrapped
        observe, car_racing.observe = car_racing.observe, False
        rewards, crash, frame = 0.0, None, 0
        try:
            for frame in range(1, self.frames + 1):  # noqa: B007
                observation, reward, terminated, truncated, info = self.env.step(action)
                rewards += float(reward)
                crash = crash or info["crash"]
                if terminated or truncated:
                    break
        finally:
            car_racing.observe = observe
        if observe:
            observation = _look(self.env)
        info = {**info, "dt": frame / FRAMES_PER_SECOND, "crash": crash}
        return observation, rewards, terminated, truncated, info


def _look(env: Any) -> np.ndarray:
    """The frame as it is now, through all wrappers of observations."""
    if env is env.unwrapped:
        return env.look()
    observation = _look(env.env)
    return env.observation(observation) if isinstance(env, gym.ObservationWrapper) else observation
