"""Base class of all perturbations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import gymnasium as gym

from nac_drive.envs.perturbations.stream import Stream


@dataclass(frozen=True)
class Perturbation(ABC):
    """Setting of one perturbation, which wraps environments.

    A new perturbation is a subclass and one line in `PERTURBATIONS`. Its docstring and its fields make its row in
    docs/perturbations.md. `info["dt"]` stays the time since the previous query of the driver.
    """

    needs_car_racing: ClassVar[bool] = False
    """It changes the car or the road of CarRacing, so that no other environment has it."""

    @abstractmethod
    def wrap(self, env: gym.Env, stream: Stream, episode_frames: int, bar_top: int | None) -> gym.Env:
        """Return `env` under this perturbation.

        Args:
            env: The environment, perhaps under other perturbations already.
            stream: Random numbers of this perturbation. The wrapper calls `stream.restart(seed)` at every reset.
            episode_frames: Length of an episode in simulator frames, for settings that are fractions of it.
            bar_top: First row of a status bar, which is no part of the world; None for none.

        Returns:
            A wrapper around `env`.
        """


def require_probability(value: float) -> None:
    """Check a probability.

    Raises:
        ValueError: If `value` does not lie in [0, 1].
    """
    if not 0 <= value <= 1:
        raise ValueError(f"a probability must lie in [0, 1], got {value}; 0.1 means every tenth frame.")
