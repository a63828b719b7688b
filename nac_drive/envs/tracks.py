"""Named lists of track seeds. Training, validation and test tracks are disjoint."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Sequence

from nac_drive.plain import plain

SPLITS: dict[str, range] = {
    "train": range(100_000),
    "val": range(800_000, 800_025),
    "test": range(900_000, 900_100),
    "holdout": range(920_000, 921_000),
    "challenge": range(940_000, 941_000),
}
"""train: demonstrations and PPO. val: selection of checkpoints. test: reported results, nothing is trained on them.
holdout: what happens once in a hundred tracks, of finished drivers. challenge: the challenge."""


LARGEST_SEED = 2**63 - 1
"""Seeds of tracks are stored as 64-bit integers."""


def track_seeds(tracks: str | Sequence[int]) -> list[int]:
    """Return the track seeds of a list.

    Args:
        tracks: SPLIT-COUNT, such as `test-20` for the first 20 tracks of the split; a comma list of seeds, such as
            `3,17,40`; or the seeds themselves.

    Raises:
        ValueError: For an unknown split, for more tracks than the split has, for no track, for a track that is named
            twice, and for a seed outside of 0 to LARGEST_SEED.
    """
    if not isinstance(tracks, str | Iterable):
        fix = (
            f"; pass [{tracks}] for this seed, or 'test-{tracks}' for so many tracks" if isinstance(tracks, int) else ""
        )
        raise ValueError(f"tracks must be SPLIT-COUNT (such as test-20) or a list of seeds, got {tracks!r}{fix}.")
    if not isinstance(tracks, str):
        return _checked(list(tracks), tracks)
    if re.fullmatch(r"[0-9]+(,[0-9]+)*", tracks):
        return _checked([int(seed) for seed in tracks.split(",")], tracks)
    match = re.fullmatch(r"([a-z]+)-([0-9]+)", tracks)
    if not match or match[1] not in SPLITS:
        raise ValueError(
            f"tracks must be SPLIT-COUNT with a split of {sorted(SPLITS)} (such as test-20) or a comma list of seeds "
            f"(such as 3,17,40), got {tracks!r}."
        )
    seeds, count = SPLITS[match[1]], int(match[2])
    if not 1 <= count <= len(seeds):
        raise ValueError(f"tracks {tracks!r}: the split {match[1]!r} has {len(seeds)} tracks; name 1 to {len(seeds)}.")
    return list(seeds[:count])


def _checked(seeds: list[int], tracks: str | Sequence[int]) -> list[int]:
    got = f"got {reprlib.repr(tracks)}"
    if not seeds:
        raise ValueError("tracks must name at least one track, got none.")
    seeds = plain(seeds)
    if not all(type(seed) is int and 0 <= seed <= LARGEST_SEED for seed in seeds):
        raise ValueError(f"tracks must be whole numbers from 0 to {LARGEST_SEED} (2^63 - 1), {got}.")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"tracks must name every track once, {got}.")
    return seeds
