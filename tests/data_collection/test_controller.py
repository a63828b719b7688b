"""The privileged controller: its line, its speeds, and how it drives."""

from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_collection.controller import CONTINUOUS, DISCRETE, Controller, racing_line, speed_profile
from envs import EnvConfig, Track, make_env, rollout
from tests.problems import ToyEnv, circle, square


def length_of(line: np.ndarray) -> float:
    return float(spacing_of(line).sum())


def spacing_of(line: np.ndarray) -> np.ndarray:
    return np.linalg.norm(np.roll(line, -1, axis=0) - line, axis=1)


def real_track(seed: int) -> Track:
    env = make_env()
    env.reset(seed=seed)
    return env.unwrapped.centre_line  # type: ignore[attr-defined]


REAL = {seed: real_track(seed) for seed in (1, 2)}


@pytest.mark.parametrize(("control", "config"), [("discrete", DISCRETE), ("continuous", CONTINUOUS)])
def test_it_drives_above_850_on_every_track(control, config):
    env = make_env(EnvConfig(control))
    env.unwrapped.observe = False  # type: ignore[attr-defined]
    for seed in (900_000, 900_001, 17, 42):
        episode = rollout(env, Controller(control), seed)
        assert episode.episode_return > 850, seed
        assert episode.outcome["lap_finished"]
        assert episode.outcome["crashes"] == 0
    assert Controller(control).config == config


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_it_drives_the_same_lap_twice_and_looks_at_no_pixel(control):
    class Blinded(gym.ObservationWrapper):
        def observation(self, observation):
            return np.full_like(observation, 255)

    env = make_env(EnvConfig(control, max_steps=150))
    env.unwrapped.observe = False  # type: ignore[attr-defined]
    lap = rollout(env, Controller(control), 5)
    assert rollout(env, Controller(control), 5) == lap
    assert rollout(Blinded(env), Controller(control), 5) == lap


def test_only_cars_with_a_track_to_read():
    with pytest.raises(ValueError, match="env must come from make_env"):
        Controller().begin(ToyEnv())


# The racing line


@settings(max_examples=20, deadline=None)
@given(seed=st.sampled_from(sorted(REAL)), reach=st.floats(0, 6))
def test_the_racing_line_stays_inside_its_reach_and_is_no_longer_than_the_centre_line(seed, reach):
    track = REAL[seed]
    line = racing_line(track, reach)
    assert (np.linalg.norm(line - track.points, axis=1) <= reach + 1e-9).all()
    assert length_of(line) <= length_of(track.points) + 1e-9
    if reach > 0.5:
        assert length_of(line) < length_of(track.points)


def test_more_reach_is_a_shorter_line():
    lengths = [length_of(racing_line(REAL[1], reach)) for reach in (0.0, 1.0, 2.0, 4.0)]
    assert lengths == sorted(lengths, reverse=True)
    np.testing.assert_array_equal(racing_line(REAL[1], 0.0), REAL[1].points)


def test_on_a_circle_the_line_is_the_inner_circle():
    line = racing_line(circle(100.0, tiles=180), 2.0)
    np.testing.assert_allclose(np.linalg.norm(line, axis=1), 98.0, atol=0.05)


# The speed profile


@settings(max_examples=20, deadline=None)
@given(
    seed=st.sampled_from(sorted(REAL)), lateral=st.floats(50, 400), braking=st.floats(5, 100), top=st.floats(20, 120)
)
def test_speeds_keep_the_limits(seed, lateral, braking, top):
    config = replace(DISCRETE, lateral_limit=lateral, braking_limit=braking, top_speed=top)
    line = racing_line(REAL[seed], 1.5)
    spacing = spacing_of(line)
    speed = speed_profile(line, spacing, config)
    assert (speed > 0).all()
    assert (speed <= top + 1e-9).all()
    deceleration = (speed**2 - np.roll(speed, -1) ** 2) / (2 * spacing)
    assert (deceleration <= braking + 1e-6).all()  # over the finish, too
    unhurried = speed_profile(line, spacing, replace(config, lateral_limit=lateral / 2))
    assert (unhurried <= speed + 1e-9).all()


def test_on_a_circle_the_speed_is_known():
    line = circle(100.0).points
    speed = speed_profile(line, spacing_of(line), replace(DISCRETE, lateral_limit=36.0, top_speed=1000.0))
    np.testing.assert_allclose(speed, np.sqrt(36.0 * 100.0), rtol=1e-3)


def test_on_a_square_it_brakes_before_the_corner():
    line = square(200).points.astype(float)
    config = replace(DISCRETE, braking_limit=10.0, top_speed=40.0, lateral_limit=100.0)
    speed = speed_profile(line, spacing_of(line), config)
    corner = speed[199]
    assert corner < 30
    for before in (10, 20):
        assert speed[195 - before] == pytest.approx(min(40.0, np.sqrt(speed[195] ** 2 + 2 * 10.0 * before)), rel=1e-6)
    assert speed[100] == 40.0
