"""Tracks whose road comes close to itself.

There a driver may take a short cut.

    python benchmarks/protocols/close_roads.py --first-track 84000 --tracks 6000 --count 60

It prints the tracks with the least distance between two stretches of the centre line, the closest first, as a list for
`--tracks`. Stretches are APART tiles apart along the road, one way or the other. No driver is asked, so a training on
such tracks has seen no failure of its own.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import tyro
from numpy.typing import NDArray

from nac_drive.envs import CarRacing, EnvConfig, make_env

APART = 25
"""Tiles; a tile is some 3.5 units long, and the road 13.3 units wide."""


@dataclass(frozen=True)
class Settings:
    """Which tracks, and how many of them."""

    first_track: int
    """First track that is looked at."""
    tracks: int
    """Tracks that are looked at."""
    count: int
    """Tracks that are printed."""


def closest(centre_line: NDArray[np.floating], apart: int = APART) -> float:
    """Return how close a closed line comes to itself.

    Args:
        centre_line: Its points, (N, 2).
        apart: Fewest points between them.
    """
    count = len(centre_line)
    apart_by = np.abs(np.arange(count)[:, None] - np.arange(count))
    distance = np.linalg.norm(centre_line[:, None] - centre_line, axis=2)
    return float(distance[np.minimum(apart_by, count - apart_by) >= apart].min(initial=np.inf))


def distances(tracks: range) -> dict[int, float]:
    """Return `closest` of every track, in the simulator's units."""
    env = make_env(EnvConfig("continuous"))
    road = env.unwrapped
    assert isinstance(road, CarRacing)
    result = {}
    for track in tracks:
        env.reset(seed=track)
        result[track] = closest(road.centre_line.points)
    return result


def main(settings: Settings) -> None:
    """Print the list."""
    if not 1 <= settings.count <= settings.tracks:
        sys.exit(f"count must lie between 1 and tracks, {settings.tracks}, got {settings.count}.")
    closeness = distances(range(settings.first_track, settings.first_track + settings.tracks))
    print(*sorted(closeness, key=lambda track: closeness[track])[: settings.count], sep=",")


if __name__ == "__main__":
    main(tyro.cli(Settings))
