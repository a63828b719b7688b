"""One of several perturbations per episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym


class PerturbedInTurn(gym.Wrapper):
    """Environment under several perturbations, in turn by track.

    The episode of `reset(seed=n)` is under number n modulo their count, so that neighbouring tracks have all of them. A
    reset without a seed keeps the chain of the episode before.

    Args:
        chains: One simulator under each of the perturbations; at least one.
    """

    def __init__(self, chains: Sequence[gym.Env]):
        super().__init__(chains[0])
        self._chains = chains

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        if seed is not None:
            self.env = self._chains[seed % len(self._chains)]
        return self.env.reset(seed=seed, options=options)
