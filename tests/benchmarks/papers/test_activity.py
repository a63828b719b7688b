"""Measures of neurons on activities whose answers are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from activity import lipschitz, manoeuvres, principal_components, separation

T = np.linspace(0, 1, 201)


def test_the_steepest_change_of_a_ramp_a_sine_and_a_fall():
    activity = np.stack((3 * T, np.sin(2 * np.pi * T), -5 * T, np.zeros_like(T)), axis=1)
    found = lipschitz(activity, dt=T[1])
    assert found[[0, 2, 3]] == pytest.approx([3, 5, 0])
    assert found[1] == pytest.approx(2 * np.pi, rel=1e-3)
    assert lipschitz(activity) == pytest.approx(found * T[1])
    uneven = np.array([0.02, 0.04])
    assert lipschitz(np.array([[0.0], [1.0], [4.0]]), uneven) == pytest.approx([75])


def test_components_of_two_hidden_signals():
    rng = np.random.default_rng(0)
    signals = rng.normal(size=(500, 2)) * (3, 1)
    mixing, _ = np.linalg.qr(rng.normal(size=(6, 2)))
    activity = signals @ mixing.T + rng.normal(size=6)  # a constant for every neuron
    found = principal_components(activity)
    values = np.sort(np.linalg.eigvalsh(np.cov(activity.T)))[::-1]
    assert found.explained == pytest.approx(values / values.sum(), abs=1e-12)
    assert found.explained[:2].sum() == pytest.approx(1)
    np.testing.assert_allclose(found.scores @ found.directions, activity - activity.mean(axis=0), atol=1e-9)
    assert principal_components(np.ones((5, 3))).explained.tolist() == [0, 0, 0]


def test_bends_from_a_radius_of_83_units_are_straights():
    assert manoeuvres(np.array([1 / 40, 0.0, -1 / 40, 1 / 200])).tolist() == [0, 1, 2, 1]


def test_separation_of_groups():
    labels = np.repeat([0, 1, 2], 50)
    told = separation(np.repeat([2.0, 1.0, 0.0], 50), labels)
    assert (told.means, told.deviations, told.explained, told.left_or_right) == ((2, 1, 0), (0, 0, 0), 1, 1)
    blind = separation(np.tile([0.0, 1.0], 75), labels)
    assert blind.explained == pytest.approx(0)
    assert blind.left_or_right == 0.5
    constant = separation(np.ones(150), labels)
    assert (constant.explained, constant.left_or_right) == (0, 0.5)
    only_left = separation(np.arange(5.0), np.zeros(5, int))
    assert only_left.means[0] == 2
    assert math.isnan(only_left.means[1])
    assert math.isnan(only_left.left_or_right)
