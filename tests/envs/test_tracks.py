"""Named lists of track seeds."""

from __future__ import annotations

from itertools import combinations

import pytest

from nac_drive.envs import LARGEST_SEED, SPLITS, track_seeds


def test_the_splits_never_meet():
    assert set(SPLITS) == {"train", "val", "test", "holdout", "challenge"}
    for one, other in combinations(SPLITS.values(), 2):
        assert not set(one) & set(other)


@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        ("test-3", [900_000, 900_001, 900_002]),
        ("val-1", [800_000]),
        ("train-2", [0, 1]),
        ("3,17,40", [3, 17, 40]),
        ("900007", [900_007]),
        ("holdout-1", [920_000]),
    ],
)
def test_names(name, seeds):
    assert track_seeds(name) == seeds


def test_a_longer_list_begins_with_the_shorter_one():
    assert track_seeds("test-100")[:20] == track_seeds("test-20")
    assert len(track_seeds("test-100")) == 100


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("test-0", "has 100 tracks"),
        ("test-101", "has 100 tracks; name 1 to 100"),
        ("val-26", "'val' has 25 tracks"),
        ("3,17,3", "every track once, got '3,17,3'"),
        (str(LARGEST_SEED + 1), "0 to 9223372036854775807"),
        *((name, "SPLIT-COUNT") for name in ("test", "test-", "test--1", "", "3,", "3, 4", "-3", "test-3\n", "TEST-3")),
    ],
)
def test_other_names_are_refused_with_the_rule(name, message):
    with pytest.raises(ValueError, match=message) as caught:
        track_seeds(name)
    assert repr(name) in str(caught.value)


def test_seeds_are_checked_like_names():
    assert track_seeds([LARGEST_SEED, 0]) == [LARGEST_SEED, 0]
    for seeds, message in (([], "got none"), ([3, 17, 3], r"once, got \[3, 17, 3\]"), ([-1], "0 to"), ([1.5], "whole")):
        with pytest.raises(ValueError, match=message):
            track_seeds(seeds)  # type: ignore[arg-type]


def test_a_number_or_nothing_in_place_of_a_list_is_named():
    for tracks, message in (
        (5, r"a list of seeds, got 5; pass \[5\] .*, or 'test-5'"),
        (5.0, "got 5.0"),
        (None, "got None"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            track_seeds(tracks)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
