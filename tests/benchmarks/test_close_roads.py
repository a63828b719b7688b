"""Tracks whose road comes close to itself."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from close_roads import APART, Settings, closest, distances, main


def loop(count: int = 100, waist: float = 1.0) -> np.ndarray:
    """A circle whose middle is pressed together."""
    turn = np.linspace(0, 2 * np.pi, count, endpoint=False)
    return 100 * np.column_stack((np.cos(turn), np.sin(turn) * (waist + (1 - waist) * np.cos(turn) ** 2)))


def test_a_circle_is_closest_to_itself_along_a_chord_and_a_waist_is_closer():
    assert closest(loop()) == pytest.approx(200 * math.sin(math.pi * APART / 100))
    assert closest(loop(waist=0.1)) == pytest.approx(20)
    assert closest(loop(count=2 * APART - 1)) == math.inf  # no two points are so far apart along the road


def test_it_is_the_least_of_all_pairs():
    points = np.random.default_rng(0).normal(size=(60, 2))
    pairs = (pair for pair in combinations(range(60), 2) if APART <= pair[1] - pair[0] <= 60 - APART)
    assert closest(points) == pytest.approx(min(math.dist(points[i], points[j]) for i, j in pairs))


def test_the_closest_tracks_come_first(capsys):
    main(Settings(first_track=42030, tracks=12, count=3))
    printed = [int(track) for track in capsys.readouterr().out.split(",")]
    closeness = distances(range(42030, 42042))
    assert [closeness[track] for track in printed] == sorted(closeness.values())[:3]
    assert printed[0] == 42037  # a hairpin with a neck of 18 units
    assert closeness[42037] == pytest.approx(18, abs=0.5)


def test_more_tracks_than_there_are_is_refused():
    with pytest.raises(SystemExit, match=r"^count must lie between 1 and tracks, 5, got 6"):
        main(Settings(first_track=0, tracks=5, count=6))
