"""One of several perturbations per episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from nac_drive.envs.perturbations.stream import Stream
from nac_drive.plain import plain


class PerturbedInTurn(gym.Wrapper):
    """Environment under several perturbations, in turn by track.

    The episode of `reset(seed=n)` is under number n modulo their count, so that neighbouring tracks have all of them. A
    reset without a seed goes on with the next number. The random numbers of all of them follow from the last seed.

    Args:
        chains: One simulator under each of the perturbations; at least one.
        streams: Random numbers of all of them.
    """

    def __init__(self, chains: Sequence[gym.Env], streams: Sequence[Stream]):
        super().__init__(chains[0])
        self._chains, self._streams, self._number = chains, streams, -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self._number = self._number + 1 if seed is None else plain(seed)
        if seed is not None:
            for stream in self._streams:
                stream.restart(seed)
        self.env = self._chains[self._number % len(self._chains)]
        return self.env.reset(seed=seed, options=options)
