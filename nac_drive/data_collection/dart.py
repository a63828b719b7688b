"""Noise in executed actions: DART, Laskey et al., arXiv 1703.09327.

The label stays the driver's.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from nac_drive.plain import plain_fields
from nac_drive.policies.ranges import check_number


@dataclass(frozen=True)
class NoiseConfig:
    """Settings of action noise: random actions that replace the driver's.

    At 50 frames/s a single random frame hardly moves the car, so that recovery is only demonstrated when the
    noise lasts: one random action is held for `hold` frames on average.

    Raises:
        ValueError: For a probability or a hold that is no number, or outside of its range.
    """

    probability: float = 0.05
    """Fraction of frames whose executed action is random, in [0, 1). `nac-drive collect --driver controller --noise P
    --noise-hold H` shows how many points and how many off-road events it costs a driver."""
    hold: float = 8.0
    """Mean number of frames that one random action is held, at least 1 (1: frames are independent)."""

    def __post_init__(self) -> None:
        plain_fields(self)
        for name, value in (("noise probability", self.probability), ("noise hold", self.hold)):
            check_number(name, value)
        if not 0 <= self.probability < 1:
            raise ValueError(f"noise probability must lie in [0, 1), got {self.probability}; 0 means no noise.")
        if not 1 <= self.hold < float("inf"):
            raise ValueError(f"noise hold must be at least 1 frame and finite, got {self.hold}; 1 means no holding.")


class ActionNoise:
    """Turn the intended action into the executed one. For `rollout(execute=...)`, one instance per episode.

    A two-state Markov chain (own action, random action): in every frame the present segment ends with probability
    1/hold, and the next one is random with probability p, its action drawn uniformly from the action space. So every
    frame is random with probability p, the first one included; a segment lasts `hold` frames on average (geometric);
    hold = 1 makes the frames independent. Random segments may follow each other, and a random discrete action may
    happen to be the intended one.

    Args:
        probability: See `NoiseConfig`.
        hold: See `NoiseConfig`.
        action_space: Sampled from a copy; the environment's own generator is left alone.
        seed: Same seed, same noise.

    Raises:
        ValueError: As `NoiseConfig` does.
    """

    def __init__(self, probability: float, hold: float, action_space: gym.Space, seed: int | Sequence[int]):
        self._config = NoiseConfig(probability, hold)
        self._rng = np.random.default_rng(seed)
        self._space = deepcopy(action_space)
        self._space.seed(int(self._rng.integers(2**31)))
        self._random_action: Any = None
        self._begin_segment()

    def __call__(self, intended: Any) -> Any:
        executed = intended if self._random_action is None else self._random_action
        if self._rng.random() < 1 / self._config.hold:
            self._begin_segment()
        return executed

    def _begin_segment(self) -> None:
        noisy = self._rng.random() < self._config.probability
        self._random_action = self._space.sample() if noisy else None
