"""Formulas of the metrics, on values whose answers are known by hand."""

from __future__ import annotations

import numpy as np
import pytest

from nac_drive.evaluation.formulas import (
    agrees,
    autonomy,
    driving_score,
    steering_of,
    steering_rate_rms,
    steering_reversals,
)


@pytest.mark.parametrize(
    ("completion", "crashes", "off_road", "score"),
    [(1.0, 0, 0.0, 100.0), (0.5, 0, 0.0, 50.0), (1.0, 1, 0.0, 65.0), (1.0, 2, 0.5, 21.125), (0.0, 0, 0.0, 0.0)],
)
def test_driving_score(completion, crashes, off_road, score):
    assert driving_score(completion, crashes, off_road) == pytest.approx(score)


@pytest.mark.parametrize(
    ("interventions", "seconds", "fraction"), [(0, 10.0, 1.0), (1, 60.0, 0.9), (2, 12.0, 0.0), (9, 12.0, 0.0)]
)
def test_autonomy(interventions, seconds, fraction):
    assert autonomy(interventions, seconds) == pytest.approx(fraction)


@pytest.mark.parametrize(
    ("steering", "reversals"),
    [
        ([], 0),
        ([0.0] * 10, 0),
        ([0.5, 0.6, 0.1], 0),
        ([0.5, -0.5], 1),
        ([0.6, 0.0, 0.0, 0.6], 0),  # straight between two turns to one side
        ([0.6, 0.0, -0.6, 0.0], 1),
        ([0.1, -0.1, 0.1, -0.1], 3),
    ],
)
def test_steering_reversals(steering, reversals):
    expected = reversals * 50 / len(steering) if steering else 0.0
    assert steering_reversals(steering) == pytest.approx(expected)


def test_steering_rate():
    assert steering_rate_rms([0.3] * 9) == 0.0
    assert steering_rate_rms([0.3]) == 0.0
    assert steering_rate_rms([0.0, 0.6, 0.0, -0.6]) == pytest.approx(0.6 * 50)
    assert steering_rate_rms([0.0, 0.3, 0.7]) == pytest.approx(np.sqrt((0.09 + 0.16) / 2) * 50)
    assert steering_rate_rms(list(np.linspace(-1, 1, 101))) == pytest.approx(1.0)  # 2 in 2 seconds


def test_actions_as_steering_and_agreement():
    assert [steering_of(np.int64(action)) for action in range(5)] == [0.0, 0.6, -0.6, 0.0, 0.0]
    assert steering_of(np.array([-0.25, 1.0, 0.0])) == -0.25
    assert agrees(3, np.int64(3))
    assert not agrees(3, 4)
    assert agrees(np.array([0.5, 1.0, 0.0]), np.array([0.41, 0.0, 1.0]))  # steering only
    assert not agrees(np.array([0.5, 1.0, 0.0]), np.array([0.39, 1.0, 0.0]))
