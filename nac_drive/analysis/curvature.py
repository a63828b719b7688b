"""The curvature of the road."""

from __future__ import annotations

import numpy as np

from nac_drive.envs.telemetry import Track


def curvature(track: Track, index: int, ahead: int = 4) -> float:
    """Return the road's curvature around a tile (1/unit, left positive).

    Args:
        track: The centre line.
        index: The tile.
        ahead: Tiles before and after it that the turn is taken over.
    """
    n = len(track)
    tiles = [(index + i) % n for i in range(-ahead, ahead)]
    length = np.hypot(*track.segments[tiles].T).sum()
    turn = track.angles[(index + ahead) % n] - track.angles[(index - ahead) % n]
    return float(((turn + np.pi) % (2 * np.pi) - np.pi) / length)
