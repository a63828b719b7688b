"""The environment that PPO learns in, one alone.

It is the plain form of `envs.BatchedEnvs`.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from nac_drive.envs import SPLITS, ActionRepeat, Augmentation, EnvConfig, make_env
from nac_drive.envs.perturbations.images import FrameSize
from nac_drive.envs.telemetry import OFF_ROAD_WHEELS
from nac_drive.training.ppo.config import REWARD_SCALE, PPOConfig

_FACTS = ("speed", "lateral_offset", "heading_error", "wheels_off_road", "completion")


class TrainingEnv(gym.Wrapper):
    """Environment with tracks, augmentation, penalties and early ends.

    A reset draws a training track and an augmentation. Rewards are scaled.

    An episode ends early after `patience` frames in which `completion` stays the same and below 1. In CarRacing it then
    pays for the time that was left as for the last frames: to miss a tile and drive on in vain costs as much as without
    the early end. Another environment has other rewards, so that the episode is cut there: the value network estimates
    the rest. The first episode after `start_at` is cut at a random frame, so that environments that begin together do
    not stay together.

    Args:
        env: An environment. It may report `crash`, `wheels_off_road` and `completion` in `info`, without which nothing
            is subtracted and no episode ends early; it may have a method `tiles_missed`. Where it truncates an episode
            before the time limit of `env_config`, which is the time that the value network sees, the episode is cut.
        config: Seed, penalties, scale, patience and augmentations.
        rank: Number of the environment in the run, so that each has random numbers of its own.
        env_config: Settings of `env`.
    """

    def __init__(self, env: gym.Env, config: PPOConfig, rank: int, env_config: EnvConfig):
        super().__init__(env)
        self._config, self._rank, self._max_steps = config, rank, env_config.max_steps
        self._describe = env_config.spec.privileged or _facts
        self._size = privileged_size(env_config) - 1
        self._name, self._rate = env_config.environment, env_config.spec.frames_per_second
        self._tiles_missed = getattr(env.unwrapped, "tiles_missed", lambda: 0)
        self._augmentation = Augmentation(config.rollout.augment)
        self._frame_size = FrameSize.of(env_config.spec.frame_shape, env_config.spec.bar_top)
        self.penalty_share = 1.0
        """Fraction of the penalties that is subtracted."""
        self.is_cut = False
        """Training ended the episode before the environment did, so that its return is not whole."""
        self.start_at(0)

    def start_at(self, timesteps: int) -> None:
        """Draw tracks and augmentations from now on from (seed, rank, timesteps)."""
        self._rng = np.random.default_rng((self._config.seed, 1, self._rank, timesteps))
        self._limit: int | None = first_limit(self._rng, self._max_steps)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Reset on a random training track; `seed` does not count."""
        self._track = training_track(self._rng)
        observation, info = self.env.reset(seed=self._track, options=options)
        self._effect = self._augmentation.draw(self._rng, self._frame_size).effect
        self._frames, self._idle, self._completion, self._missed = 0, 0, info.get("completion", 0.0), 0
        self.native_return = 0.0
        self._info = info
        return self._effect(observation), info

    def step(self, action):
        """Step with the reward and the augmentation of training."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        frames = round(info["dt"] * self._rate)
        self.native_return += float(reward)
        penalty = self._config.reward.crash_penalty if info.get("crash") else 0.0
        missed = max(self._tiles_missed(), self._missed)
        penalty += self._config.reward.missed_tile_penalty * (missed - self._missed)
        self._missed = missed
        if info.get("wheels_off_road", 0) >= OFF_ROAD_WHEELS:
            penalty += self._config.reward.off_road_penalty * frames
        completion = info.get("completion", 1.0)  # without it, no episode ends early
        self._idle = self._idle + frames if completion <= self._completion and completion < 1 else 0
        self._frames, self._completion, self._info = self._frames + frames, completion, info
        idle = 0 < self._config.rollout.patience <= self._idle
        if idle and self._name == EnvConfig.environment and not terminated:
            terminated = True
            reward = float(reward) * (1 + (self._max_steps - self._frames) / frames)  # of the time that is left
        terminated = terminated or (truncated and self._frames >= self._max_steps)  # the value network sees this time
        cut = idle or (self._limit is not None and self._frames >= self._limit)
        self.is_cut = cut and not (terminated or truncated)
        truncated = not terminated and (truncated or cut)
        if terminated or truncated:
            self._limit = None
        reward = (float(reward) - self.penalty_share * penalty) * REWARD_SCALE
        return self._effect(observation), reward, terminated, truncated, info

    def privileged(self) -> np.ndarray:
        """Return the simulator's state and the passed time, (K,).

        The state is `EnvSpec.privileged`. Time is a fraction.

        Raises:
            ValueError: The state is no `privileged_size` finite numbers.
        """
        state = self._describe(self.env.unwrapped, self._info)
        try:
            numbers = np.asarray(state, np.float32).ravel()
        except (TypeError, ValueError):
            raise ValueError(self._says(f"returned {type(state).__name__}, expected numbers; correct it")) from None
        if numbers.size != self._size:
            raise ValueError(
                self._says(
                    f"returned {numbers.size} numbers, privileged_size says {self._size}; state privileged_size="
                    f"{numbers.size} beside privileged"
                )
            )
        for number in np.flatnonzero(~np.isfinite(numbers)).tolist():
            what = f"returned {numbers[number]} as number {number} of {self._size}, expected finite numbers; correct it"
            raise ValueError(self._says(what))
        return np.append(numbers, np.float32(self._frames / self._max_steps))

    def _says(self, what: str) -> str:
        where = f"environment {self._name!r}, step {self._frames} of the episode with seed {self._track}"
        return f"{where}: privileged, which the value network sees, {what}."


def _facts(env: Any, info: dict[str, Any]) -> np.ndarray:
    return np.array([info.get(name, 0.0) for name in _FACTS], dtype=np.float32)


def training_track(rng: np.random.Generator) -> int:
    """Draw the seed of a training track."""
    return SPLITS["train"][int(rng.integers(len(SPLITS["train"])))]  # `choice` would list all of them


def first_limit(rng: np.random.Generator, max_steps: int) -> int:
    """Draw the frame that cuts an environment's first episode."""
    return int(rng.integers(max_steps // 4, max_steps + 1))


def training_env(env_config: EnvConfig, config: PPOConfig, rank: int) -> TrainingEnv:
    """Make environment number `rank` of a run."""
    env = ActionRepeat(make_env(env_config, crash="terminate"), config.rollout.action_repeat)
    return TrainingEnv(env, config, rank, env_config)


def privileged_size(env_config: EnvConfig) -> int:
    """Return the number of values of `TrainingEnv.privileged`."""
    return (env_config.spec.privileged_size or len(_FACTS)) + 1
