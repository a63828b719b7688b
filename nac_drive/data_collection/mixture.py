"""DAgger's mixture policy: expert and learner take turns.

Each episode is driven by both.

Ross, Gordon and Bagnell, AISTATS 2011, arXiv 1011.0686, Algorithm 3.1. The learner visits the states that its own
actions lead to; the expert is queried at every frame and gives the label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from nac_drive.envs import Policy
from nac_drive.plain import plain_fields, whole


@dataclass(frozen=True)
class MixtureConfig:
    """Settings of the mixture policy."""

    beta: float = 0.2
    """Probability that the expert, not the learner, drives through a switch interval, in [0, 1]."""
    switch_interval: int = 25
    """Frames in a switch interval, in which one of the two drives."""

    def __post_init__(self) -> None:
        plain_fields(self)
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta must lie in [0, 1], got {self.beta}; 0.2 is usual.")
        if whole("switch_interval", self.switch_interval) < 1:
            raise ValueError(f"switch_interval must be at least 1 frame, got {self.switch_interval}; 25 are 0.5 s.")

    def learner_frames(self, frames: int, seed: int | Sequence[int]) -> NDArray[np.bool_]:
        """Return which frames the learner drives.

        Args:
            frames: Length of the episode, N.
            seed: Same seed, same draw; a longer episode begins like a shorter one.

        Returns:
            (N,) bool, True where the learner's action is executed.
        """
        intervals = -(-frames // self.switch_interval)
        drawn = np.random.default_rng(seed).random(intervals) < 1 - self.beta
        return np.repeat(drawn, self.switch_interval)[:frames]


class MixturePolicy:
    """The expert of one episode, and the driver's choice.

    It is between the expert's action and the learner's.

    `rollout(env, learner, track, expert=mixture, execute=mixture.execute)`: the learner is queried at every frame and
    carries its state through all of them, also where the expert drives; so is the expert, whose action is the label
    (`Step.expert_action`).

    Args:
        expert: The driver that gives the labels.
        learner_frames: (N,) bool, True where the learner's action is executed.
    """

    def __init__(self, expert: Policy, learner_frames: NDArray[np.bool_]):
        self._expert = expert
        self.env_config = getattr(expert, "env_config", None)
        """The environment of the expert's training, which decides what it sees."""
        self._learner_frames = learner_frames
        self._frame = 0
        self._label: Any = None

    def begin(self, env: gym.Env) -> Any:
        self._frame = 0
        return self._expert.begin(env)

    def act(self, observation: np.ndarray, state: Any, dt: float) -> tuple[Any, Any]:
        self._label, state = self._expert.act(observation, state, dt)
        return self._label, state

    def execute(self, intended: Any) -> Any:
        """Return the action to execute, given the learner's. Call it after `act`, once per frame."""
        by_learner = self._learner_frames[self._frame]
        self._frame += 1
        return intended if by_learner else self._label
