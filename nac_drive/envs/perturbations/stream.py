"""Random numbers of a perturbation."""

from __future__ import annotations

import zlib

import numpy as np

from nac_drive.plain import plain, whole


class Stream:
    """Random generator of one perturbation, apart from the environment's `np_random`.

    The name, `seed` and the seed of `reset` settle its numbers. The level does not enter, so levels of one perturbation
    share them. A reset without a seed continues the stream, as gymnasium's own generators do.

    Args:
        name: Name of the perturbation.
        seed: At least 0.

    Raises:
        ValueError: If `seed` is no whole number, or negative.
    """

    def __init__(self, name: str, seed: int = 0):
        self._key = (zlib.crc32(name.encode()), whole("seed", seed, 0))
        self.rng = np.random.default_rng(self._key)

    def restart(self, seed: int | None) -> np.random.Generator:
        """Return the generator of the episode that `reset(seed=seed)` begins."""
        if seed is not None:
            self.rng = np.random.default_rng((*self._key, plain(seed)))
        return self.rng
