"""Contributions of neurons (Definition 6): signals whose answers are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from contribution import angle_histogram, contribution, contributions, slope_angles

TIME = np.linspace(0.0, 4 * math.pi, 401)


def path(signs: str) -> tuple[np.ndarray, np.ndarray]:
    """A neuron that rises by 1 in every step, and a motor neuron that rises or falls by 1 as `signs` say."""
    return np.arange(len(signs) + 1.0), np.cumsum([0.0, *(1.0 if sign == "+" else -1.0 for sign in signs)])


def test_angles_are_those_of_the_slopes() -> None:
    neuron, motor = np.array([0.0, 1.0, 2.0, 1.0, 1.0, 3.0]), np.array([0.0, 1.0, 0.0, math.sqrt(3), 2.0, 2.0])
    expected = [math.pi / 4, -math.pi / 4, -math.pi / 3]  # then one of the two rests, twice
    assert slope_angles(neuron, motor) == pytest.approx(expected)


def test_the_histogram_has_no_bin_of_both_signs() -> None:
    counts, edges = angle_histogram(np.array([-0.01, -1.5, 0.01, 0.02, 1.5]), bins=4)
    assert counts.tolist() == [1, 1, 2, 1]
    assert edges == pytest.approx([-math.pi / 2, -math.pi / 4, 0.0, math.pi / 4, math.pi / 2])
    with pytest.raises(ValueError, match=r"bins: must be even.*got 5"):
        angle_histogram(np.zeros(1), bins=5)


@pytest.mark.parametrize(
    ("motor", "expected"),
    [
        (3.0 * np.sin(TIME) + 1.0, "positive"),
        (-0.1 * np.sin(TIME), "negative"),
        (np.sin(TIME) ** 3, "positive"),  # any rising function of the neuron
        (np.sin(TIME + math.pi / 4), "positive"),  # together for three quarters of a period
        (np.sin(TIME + 3 * math.pi / 4), "negative"),
        (np.cos(TIME), "phases"),  # together for half of it
        (np.sin(2 * TIME), "phases"),
        (np.ones_like(TIME), "none"),
    ],
)
def test_known_signals(motor: np.ndarray, expected: str) -> None:
    neuron = np.sin(TIME)
    assert contribution(neuron, motor) == expected
    opposite = {"positive": "negative", "negative": "positive"}.get(expected, expected)
    assert contribution(-neuron, motor) == opposite


@pytest.mark.parametrize(
    ("signs", "expected"),
    [("+++--", "phases"), ("++++--", "positive"), ("--+", "negative"), ("---++", "phases"), ("+", "positive")],
)
def test_a_sign_must_exceed_the_other_by_more_than_half(signs: str, expected: str) -> None:
    assert contribution(*path(signs)) == expected


def test_every_pair_of_a_neuron_and_a_motor_neuron_is_named() -> None:
    x = np.sin(TIME)
    potentials = np.stack((x, -x, np.cos(TIME), 2 * x, np.cos(TIME)), axis=1)
    assert contributions(potentials, ("a", "b", "c", "FWD", "REV"), ("FWD", "REV")) == {
        "FWD": {"a": "positive", "b": "negative", "c": "phases"},
        "REV": {"a": "phases", "b": "phases", "c": "positive"},
    }
