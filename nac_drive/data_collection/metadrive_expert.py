"""MetaDrive's own drivers as experts."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from nac_drive.envs import METADRIVE, MetaDrive


class MetaDriveExpert:
    """A policy that asks one of MetaDrive's drivers.

    It reads the simulator, not frames.

    Args:
        name: A name in `EnvSpec.experts`, such as `metadrive-idm`.
        environment: The environment that it drives in.
    """

    control = "continuous"

    def __init__(self, name: str, environment: str = METADRIVE) -> None:
        self.name = name
        self.env_config = {"control": self.control, "environment": environment}

    def begin(self, env: gym.Env) -> MetaDrive:
        simulator = env.unwrapped
        if not isinstance(simulator, MetaDrive):
            raise ValueError(f"driver {self.name!r} asks MetaDrive's simulator, got {simulator!r}; pass another one.")
        return simulator

    def act(self, observation: np.ndarray, state: MetaDrive, dt: float) -> tuple[Any, MetaDrive]:
        return state.advice(self.name), state
