"""Offline accuracy and the validation score, on actions and returns whose answers are known by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nac_drive.evaluation.formulas import CAR_RACING, steering_of
from nac_drive.training.data.sequences import curve_weights
from nac_drive.training.offline import macro_f1, measure_accuracy
from nac_drive.training.validation import validation_score


def test_macro_f1_by_hand():
    labels = np.array([0, 0, 0, 1, 1, 2])
    predicted = np.array([0, 0, 1, 1, 2, 0])
    # 0: precision 2/3, recall 2/3. 1: precision 1/2, recall 1/2. 2: nothing right. 3 and 4 do not occur.
    assert macro_f1(predicted, labels) == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    assert macro_f1(labels, labels) == 1.0
    assert macro_f1(np.full(6, 4), labels) == 0.0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=50))
def test_macro_f1_is_the_mean_of_harmonic_means(pairs):
    predicted, labels = np.array(pairs).T
    scores = []
    for action in set(predicted) | set(labels):
        hits = float(np.sum((predicted == action) & (labels == action)))
        precision = hits / max(np.sum(predicted == action), 1)
        recall = hits / max(np.sum(labels == action), 1)
        scores.append(2 * precision * recall / (precision + recall) if hits else 0.0)
    assert macro_f1(predicted, labels) == pytest.approx(np.mean(scores))
    assert macro_f1(predicted, labels) == macro_f1(labels, predicted)


def test_accuracy_and_accuracy_at_changes():
    labels, predicted = np.array([0, 0, 1, 1, 2]), np.array([0, 0, 0, 1, 2])
    changes = np.array([False, False, True, False, True])
    accuracy = measure_accuracy(predicted, labels, changes)
    assert (accuracy.accuracy, accuracy.at_changes) == (0.8, 0.5)
    assert accuracy.macro_f1 == macro_f1(predicted, labels)
    assert measure_accuracy(predicted, labels, np.zeros(5, bool)).at_changes is None


def test_continuous_accuracy_is_of_the_steering():
    labels = np.array([[0.0, 1, 0], [0.5, 0, 0], [-0.5, 0, 1]], np.float32)
    predicted = labels + np.array([[0.05, -1, 0], [0.2, 0, 0], [-0.09, 1, 0]], np.float32)
    accuracy = measure_accuracy(predicted, labels, np.array([False, True, True]))
    assert accuracy.accuracy == pytest.approx(2 / 3)
    assert (accuracy.macro_f1, accuracy.at_changes) == (None, None)
    assert accuracy.steering_mse == pytest.approx((0.05**2 + 0.2**2 + 0.09**2) / 3, rel=1e-5)
    assert accuracy.steering_mae == pytest.approx((0.05 + 0.2 + 0.09) / 3, rel=1e-5)


def test_the_error_of_the_steering_is_that_of_the_closed_loop_whatever_the_range_and_the_order():
    """The second number steers, from -4 to 4."""
    spec = replace(CAR_RACING, parts=("gas", "steer"), part_ranges=((0.0, 1.0), (-4.0, 4.0)), steering_part=1)
    random = np.random.default_rng(0)
    labels, predicted = random.uniform([0, -4], [1, 4], size=(2, 50, 2)).astype(np.float32)
    accuracy = measure_accuracy(predicted, labels, np.ones(50, bool), spec)
    errors = [steering_of(one, spec) - steering_of(other, spec) for one, other in zip(predicted, labels, strict=True)]
    assert accuracy.steering_mse == pytest.approx(np.mean(np.square(errors)))
    assert accuracy.steering_mae == pytest.approx(np.mean(np.abs(errors)))
    np.testing.assert_allclose(curve_weights(labels, 1.0, spec), np.exp(np.abs(labels[:, 1]) / 4), rtol=1e-6)


def test_a_failed_episode_costs_a_driver_more_than_its_part_of_the_mean():
    assert validation_score([900.0, 900.0]) == 900.0
    assert validation_score([900.0, 100.0]) == 500.0 - 0.5 * 400.0
