"""Action noise: its statistics and its determinism. The intended action stays as it is."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nac_drive.data_collection.dart import ActionNoise, NoiseConfig

PEDALS = gym.spaces.Box(np.array([-1, 0, 0], np.float32), np.array([1, 1, 1], np.float32))
INTENDED = np.array([0.25, 0.5, 0.0], dtype=np.float32)
FRAMES = 20_000


def drive(probability: float, hold: float, seed: int, frames: int = FRAMES) -> list[np.ndarray]:
    noise = ActionNoise(probability, hold, PEDALS, seed)
    return [noise(INTENDED) for _ in range(frames)]


def noisy(actions: list[np.ndarray]) -> np.ndarray:
    return np.array([action is not INTENDED for action in actions])


@settings(max_examples=10, deadline=None)
@given(probability=st.floats(0, 0.9), hold=st.floats(1, 12), seed=st.integers(0, 2**31))
def test_a_fraction_p_of_frames_is_random(probability, hold, seed):
    fraction = noisy(drive(probability, hold, seed)).mean()
    # Variance of the mean of a chain with autocorrelation (1 - 1/hold)^lag.
    sd = np.sqrt(probability * (1 - probability) * (2 * hold - 1) / FRAMES)
    assert abs(fraction - probability) <= 6 * sd + 1e-9  # sd underflows for the smallest floats


@pytest.mark.parametrize("hold", [1.0, 3.0, 8.0])
def test_a_random_action_is_held_for_a_geometric_number_of_frames(hold):
    actions = drive(0.4, hold, seed=1)
    lengths, previous = [], None
    for action in actions:
        if action is not INTENDED and action is previous:
            lengths[-1] += 1
        elif action is not INTENDED:
            lengths.append(1)
        previous = action
    sd = np.sqrt(hold * (hold - 1))
    assert abs(np.mean(lengths) - hold) <= 6 * sd / np.sqrt(len(lengths))
    # A geometric law ends with the same probability after every length.
    assert abs(np.mean(np.array(lengths) == 1) - 1 / hold) <= 6 * np.sqrt(1 / hold / len(lengths))


def test_hold_one_makes_frames_independent():
    flags = noisy(drive(0.3, 1.0, seed=2)).astype(float)
    correlation = np.corrcoef(flags[:-1], flags[1:])[0, 1]
    assert abs(correlation) < 6 / np.sqrt(FRAMES)
    held = noisy(drive(0.3, 8.0, seed=2)).astype(float)
    assert np.corrcoef(held[:-1], held[1:])[0, 1] == pytest.approx(1 - 1 / 8, abs=0.03)


def test_the_first_frame_is_as_noisy_as_any():
    first = np.mean([noisy(drive(0.25, 8.0, seed, frames=1))[0] for seed in range(2000)])
    assert abs(first - 0.25) < 6 * np.sqrt(0.25 * 0.75 / 2000)


def test_same_seed_same_noise_and_the_spaces_own_generator_is_left_alone():
    space = gym.spaces.Discrete(5, seed=7)
    expected = gym.spaces.Discrete(5, seed=7).sample()
    sequences = [
        [int(noise(np.int64(2))) for _ in range(500)]
        for noise in (ActionNoise(0.5, 3, space, seed) for seed in ((0, 4), (0, 4), (1, 4), (0, 5)))
    ]
    assert sequences[0] == sequences[1]
    assert sequences[0] != sequences[2]
    assert sequences[0] != sequences[3]
    assert space.sample() == expected


def test_random_actions_are_spread_over_the_whole_space():
    noise = ActionNoise(0.99, 1, gym.spaces.Discrete(5), seed=3)
    counts = np.bincount([noise(np.int64(0)) for _ in range(FRAMES)], minlength=5) / FRAMES
    np.testing.assert_allclose(counts, 0.99 / 5 + 0.01 * np.eye(5)[0], atol=6 * np.sqrt(0.16 / FRAMES))
    drawn = np.array([a for a in drive(0.99, 1, seed=3) if a is not INTENDED])
    assert all(PEDALS.contains(action) for action in drawn[:100])
    np.testing.assert_allclose(drawn.mean(axis=0), [0, 0.5, 0.5], atol=0.03)


def test_without_noise_every_action_passes_and_the_intended_one_is_never_written_to():
    before = INTENDED.copy()
    assert not noisy(drive(0.0, 1.0, seed=0, frames=1000)).any()
    drive(0.9, 4.0, seed=0, frames=1000)
    np.testing.assert_array_equal(INTENDED, before)


@pytest.mark.parametrize(
    ("probability", "hold", "named"),
    [(-0.1, 1, "probability"), (1.0, 1, "probability"), (float("nan"), 1, "probability"), (0.1, 0.5, "hold")],
)
def test_arguments_out_of_range_are_named(probability, hold, named):
    with pytest.raises(ValueError, match=f"{named}.*got {hold if named == 'hold' else probability}"):
        NoiseConfig(probability, hold)
    with pytest.raises(ValueError, match=named):
        ActionNoise(probability, hold, PEDALS, 0)
