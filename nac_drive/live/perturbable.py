"""An environment whose perturbations may be changed between any two frames of an episode."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from nac_drive.envs import CarRacing, perturb
from nac_drive.envs.perturbations.registry import parse


class Perturbable(gym.Wrapper):
    """An environment under perturbations that `set_perturbations` changes, effective at the next frame.

    Perturbations that are set in the middle of an episode begin there as they do at a reset. A `blind` camera gives
    black frames.

    Args:
        env: An environment of `make_env` without perturbations.
        episode_frames: Frames of an episode, which the fractions of gaps refer to.
    """

    def __init__(self, env: gym.Env, episode_frames: int) -> None:
        super().__init__(env)
        self._ongoing = _Ongoing(env)
        self._chain: gym.Env = self._ongoing
        self._episode_frames = episode_frames
        self._spec = ""
        self._seed: int | None = None
        self.blind = False

    @property
    def spec(self) -> str:
        """The perturbations now, as `envs.perturb` takes them."""
        return self._spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self._seed = seed
        self._ongoing.start(seed, options)
        return self._begin()

    def set_perturbations(self, spec: str) -> None:
        """Change the perturbations.

        Args:
            spec: See `envs.perturb`.

        Raises:
            ValueError: For a specification that `envs.perturb` refuses; nothing has changed then.
        """
        parse(spec)
        self._spec = spec
        if self._ongoing.started:
            self._begin()

    def step(self, action):
        observation, reward, terminated, truncated, info = self._chain.step(action)
        return self._seen(observation), reward, terminated, truncated, info

    def _begin(self) -> tuple[np.ndarray, dict[str, Any]]:
        self._chain = perturb(self._ongoing, self._spec, episode_frames=self._episode_frames)
        observation, info = self._chain.reset(seed=self._seed)
        return self._seen(observation), info

    def _seen(self, observation: np.ndarray) -> np.ndarray:
        return np.zeros_like(observation) if self.blind else observation


class _Ongoing(gym.Wrapper):
    """An environment whose `reset` leaves the episode where it is; `start` begins one."""

    started = False

    def start(self, seed: int | None, options: dict[str, Any] | None) -> None:
        self._now = self.env.reset(seed=seed, options=options)
        self.started = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        simulator: Any = self.unwrapped
        if isinstance(simulator, CarRacing):
            simulator.grip = 1.0  # as it was before weak tyres
        return self._now

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._now = observation, info
        return observation, reward, terminated, truncated, info
