"""Split tracks into training and validation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from nac_drive.data_collection.dataset.meta import Meta


def split_tracks(
    path: Path, meta: Meta, seeds: Iterable[int], validation_fraction: float
) -> tuple[list[int], list[int]]:
    """Return the tracks of training and of validation, see `Demonstrations.split`."""
    tracks = sorted(set(seeds))
    if not 0 <= validation_fraction < 1:
        raise ValueError(
            f"validation_fraction must lie in [0, 1), got {validation_fraction}; 0 keeps all for training."
        )
    if validation_fraction == 0:
        return tracks, []
    if len(tracks) < 2:
        fix = "record more or pass 0"
        if meta.env.spec.make is None:  # what was recorded elsewhere is validated on recorded episodes alone
            fix = "record more, or import it again with a smaller episode_frames (--episode-frames)"
        raise ValueError(
            f"validation_fraction {validation_fraction} needs at least two tracks, {path} has {len(tracks)}; {fix}."
        )
    count = min(max(round(validation_fraction * len(tracks)), 1), len(tracks) - 1)
    shuffled = [tracks[i] for i in np.random.default_rng(0).permutation(len(tracks))]
    return sorted(shuffled[count:]), sorted(shuffled[:count])
