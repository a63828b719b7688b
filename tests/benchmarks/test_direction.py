"""Pictures and answers of the probe of the direction."""

from __future__ import annotations

import numpy as np
from direction import POINTS, pictures, probed, row


def test_pictures_come_in_pairs_of_one_place_and_are_the_same_again():
    frames, turned = pictures(range(40_000, 40_001), 0)
    assert turned.tolist() == [False, True] * len(POINTS)
    assert all((there != back).any() for there, back in zip(frames[::2], frames[1::2], strict=True))
    np.testing.assert_array_equal(pictures(range(40_000, 40_001), 0)[0], frames)


def test_a_regression_answers_what_features_hold_and_guesses_otherwise():
    rng = np.random.default_rng(0)
    turned, answers = rng.random(400) < 0.5, rng.random(400) < 0.5
    noise, other = rng.normal(size=(2, 400, 8)).astype(np.float32)
    assert 0.4 < (probed(noise, turned, other) == answers).mean() < 0.6
    noise[:, 3] += 8 * turned
    other[:, 3] += 8 * answers
    assert (probed(noise, turned, other) == answers).mean() > 0.98


def test_a_row_has_the_percentage_and_wilsons_interval():
    assert row("mine", np.array([True] * 9 + [False])) == "| mine | 90.0 [59.6, 98.2] |"
