"""The environment that PPO learns in. Free of torch, which worker processes that step environments do not load."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import RecordEpisodeStatistics

from nac_drive.envs import SPLITS, Augmentation, EnvConfig, make_env
from nac_drive.envs.telemetry import OFF_ROAD_WHEELS
from nac_drive.training.ppo_config import PPOConfig


class TrainingEnv(gym.Wrapper):
    """Draws a training track and an augmentation at every reset, subtracts penalties and scales the reward.

    Args:
        env: An environment that reports `crash` and `wheels_off_road` in `info`.
        config: Seed, penalties, scale and augmentations.
        rank: Number of the environment in the run, so that each has random numbers of its own.
    """

    def __init__(self, env: gym.Env, config: PPOConfig, rank: int):
        super().__init__(env)
        self._config, self._rank = config, rank
        self._augmentation = Augmentation(config.augment)
        self.start_at(0)

    def start_at(self, timesteps: int) -> None:
        """Draw tracks and augmentations from now on from (seed, rank, timesteps)."""
        self._rng = np.random.default_rng((self._config.seed, 1, self._rank, timesteps))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Reset on a random training track; `seed` does not count."""
        observation, info = self.env.reset(seed=int(self._rng.choice(SPLITS["train"])), options=options)
        self._effect = self._augmentation.draw(self._rng, observation.shape[:2]).effect
        return self._effect(observation), info

    def step(self, action):
        """Step with the reward of training, and the augmentation of the episode on the observation."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        penalty = self._config.crash_penalty if info["crash"] else 0.0
        if info["wheels_off_road"] >= OFF_ROAD_WHEELS:
            penalty += self._config.off_road_penalty
        reward = (float(reward) - penalty) * self._config.reward_scale
        return self._effect(observation), reward, terminated, truncated, info


def training_env(env_config: EnvConfig, config: PPOConfig, rank: int) -> gym.Env:
    """Make environment number `rank` of a run."""
    return TrainingEnv(RecordEpisodeStatistics(make_env(env_config, crash="terminate")), config, rank)
