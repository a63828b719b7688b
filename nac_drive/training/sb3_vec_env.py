"""Adapter: gymnasium's vector environments for stable-baselines3."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList
from stable_baselines3.common.vec_env import VecEnv

from nac_drive.envs import ProcessVectorEnv
from nac_drive.envs.batch import CarRacingVectorEnv


class SB3VecEnv(VecEnv):
    """The vector environment of `make_vec_env` as stable-baselines3's VecEnv: `PPO("CnnPolicy", SB3VecEnv(envs))`.

    It behaves like DummyVecEnv and SubprocVecEnv of the same environments: an episode that ends is followed by the next
    one in the same step, and its last frame is `infos[i]["terminal_observation"]`.

    Options of resets are not passed on, a method is called on all environments or none, and `env_is_wrapped` is always
    False. VecMonitor around it gives PPO the returns that it logs.

    Args:
        envs: The environments.
    """

    def __init__(self, envs: SyncVectorEnv | ProcessVectorEnv | CarRacingVectorEnv):
        self.envs = envs
        self._env = DictInfoToList(envs)
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)
        self.metadata = {**envs.metadata, **self.metadata}  # a recorder of videos reads the frame rate

    def reset(self) -> np.ndarray:
        """Reset all environments; their infos are `reset_infos`."""
        observations, self.reset_infos = self._reset(seed=self._seeds)
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        """Take the actions of the next step."""
        self._actions = actions

    def step_wait(self):
        """Step all environments, and reset ended ones."""
        observations, rewards, terminations, truncations, list_of_infos = self._env.step(self._actions)
        infos: Any = list_of_infos
        for info, terminated, truncated in zip(infos, terminations, truncations, strict=True):
            info["TimeLimit.truncated"] = bool(truncated and not terminated)
        ended = terminations | truncations
        if ended.any():
            last, (observations, reset_infos) = observations, self._reset(options={"reset_mask": ended})
            for index in np.flatnonzero(ended):
                infos[index]["terminal_observation"] = last[index]
                self.reset_infos[index] = reset_infos[index]
        return observations, rewards, ended, infos

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        """An attribute of all environments, or of those at `indices`."""
        values = self.envs.get_attr(attr_name)
        return [values[index] for index in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None) -> None:
        """Set an attribute of all environments, or at `indices`."""
        values = [value] * self.num_envs if indices is None else list(self.envs.get_attr(attr_name))
        for index in self._get_indices(indices):
            values[index] = value
        self.envs.set_attr(attr_name, values)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Call a method of all environments.

        Raises:
            ValueError: `indices` are given.
        """
        if indices is not None:
            raise ValueError(f"indices must be None, got {indices!r}: {method_name} is called on all environments.")
        return list(self.envs.call(method_name, *args, **kwargs))

    def env_is_wrapped(self, wrapper_class: Any, indices: int | Iterable[int] | None = None) -> list[bool]:
        """Always False, one per environment."""
        return [False for _ in self._get_indices(indices)]

    def get_images(self) -> list[Any]:
        """The rendered frames of all environments."""
        return self.env_method("render")

    def _reset(self, **arguments: Any) -> tuple[np.ndarray, Any]:
        return self._env.reset(**arguments)
