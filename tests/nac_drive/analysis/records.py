"""Small drivers, and episodes of theirs that are recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from nac_drive.analysis.recording import Recording, record
from nac_drive.envs import EnvConfig, Policy, Step, make_env, perturb
from nac_drive.policies import Driver, DriverConfig

CONFIG = EnvConfig("continuous", max_steps=24)
TRACK, WINDOW = 900_001, 4


def network(core: str, control: Any = "continuous") -> Driver:
    torch.manual_seed(0)
    settings = {"num_heads": 2, "window": WINDOW} if core.startswith("nac") else {}
    return Driver(DriverConfig(core, settings, d_model=16, dense=8, control=control)).eval()


def recorded(driver: Policy, control: Any = "continuous", perturbation: str = "") -> tuple[Recording, list[Step]]:
    env, steps = perturb(make_env(EnvConfig(control, max_steps=24)), perturbation), []
    return record(env, driver, TRACK, name="x", perturbation=perturbation, view="seat", on_step=steps.append), steps


class Replayed:
    """A driver that takes given actions."""

    def __init__(self, actions: list[np.ndarray]) -> None:
        self._actions = iter(actions)

    def begin(self, env: Any) -> None:
        """Nothing to remember."""

    def act(self, observation: np.ndarray, state: None, dt: float) -> tuple[np.ndarray, None]:
        return next(self._actions), None
