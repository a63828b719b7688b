"""The random numbers of a perturbation."""

from __future__ import annotations

import zlib

import numpy as np


class Stream:
    """The chance of one perturbation: a generator of its own, never the environment's `np_random`.

    Seeded by name, `seed` and the seed that `reset` is given: the same three bring back the same disturbance, whatever
    the level. A reset without a seed goes on where the stream is, as gymnasium's own generators do.
    """

    def __init__(self, name: str, seed: int = 0):
        if seed < 0:
            raise ValueError(f"seed must be at least 0, got {seed}.")
        self._key = (zlib.crc32(name.encode()), seed)
        self.rng = np.random.default_rng(self._key)

    def restart(self, seed: int | None) -> np.random.Generator:
        """The generator of the episode that `reset(seed=seed)` begins."""
        if seed is not None:
            self.rng = np.random.default_rng((*self._key, seed))
        return self.rng
