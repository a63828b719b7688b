"""Named lists of track seeds. Training, validation and test tracks are disjoint."""

from __future__ import annotations

import re
from collections import Counter

SPLITS: dict[str, range] = {
    "train": range(100_000),
    "val": range(800_000, 800_025),
    "test": range(900_000, 900_100),
}
"""train: demonstrations and PPO. val: selection of checkpoints. test: reported results, used for nothing else."""


def track_seeds(name: str) -> list[int]:
    """Return the track seeds of a named list.

    Args:
        name: SPLIT-COUNT, such as `test-20` for the first 20 tracks of the split; or a comma list of seeds, such as
            `3,17,40`.

    Raises:
        ValueError: For an unknown split, for more tracks than the split has, and for a track that is named twice.
    """
    if re.fullmatch(r"\d+(,\d+)*", name):
        seeds = [int(seed) for seed in name.split(",")]
        if twice := [seed for seed, count in Counter(seeds).items() if count > 1]:
            raise ValueError(f"tracks must be named once each, got {twice[0]} more often in {name!r}.")
        return seeds
    match = re.fullmatch(r"([a-z]+)-(\d+)", name)
    if not match or match[1] not in SPLITS:
        raise ValueError(
            f"tracks must be SPLIT-COUNT with a split of {sorted(SPLITS)} (such as test-20) or a comma list of seeds "
            f"(such as 3,17,40), got {name!r}."
        )
    seeds, count = SPLITS[match[1]], int(match[2])
    if not 1 <= count <= len(seeds):
        raise ValueError(f"tracks {name!r}: the split {match[1]!r} has {len(seeds)} tracks; name 1 to {len(seeds)}.")
    return list(seeds[:count])
