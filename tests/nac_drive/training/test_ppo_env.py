"""The environment of PPO: rewards, ends, tracks and states."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

from nac_drive.envs import BAR_TOP, SPLITS, EnvConfig, make_env
from nac_drive.training.ppo.config import REWARD_SCALE, PPOConfig
from nac_drive.training.ppo.env import TrainingEnv, privileged_size, training_env
from tests.nac_drive.small import (
    nested,
)

ENV = EnvConfig(max_steps=3)
PLAIN = nested(PPOConfig(), action_repeat=1, patience=0)


def test_in_training_rewards_are_scaled_grass_and_crashes_cost_and_tracks_are_training_tracks():
    class Crashes(gym.Env):
        seeds: list[int | None] = []

        def reset(self, *, seed=None, options=None):
            self.seeds.append(seed)
            return np.zeros((2, 2, 3)), {"completion": 0.0}

        def step(self, action):
            info = {
                "crash": "off_road" if action == 1 else None,
                "wheels_off_road": action,
                "completion": 0.0,
                "dt": 0.04,
            }
            return np.zeros((2, 2, 3)), 7.0, False, False, info

    env = TrainingEnv(Crashes(), PPOConfig(), 0, EnvConfig())
    for _ in range(20):
        env.reset(seed=900_000)  # the seed of the caller does not count
    assert all(seed in SPLITS["train"] for seed in Crashes.seeds)
    assert len(set(Crashes.seeds)) > 15
    assert env.step(0)[1] == pytest.approx(0.14)
    assert env.step(1)[1] == pytest.approx(-0.46)
    assert env.step(2)[1] == pytest.approx(0.14)
    assert env.step(3)[1] == env.step(4)[1] == pytest.approx(0.1), "1 for each of two frames"
    assert env.native_return == 5 * 7.0


def test_the_native_return_has_the_rewards_of_the_environment_alone():
    class Pays(gym.Env):
        def reset(self, *, seed=None, options=None):
            self.rewards = iter((-0.5, 5.0, -100.0))
            return np.zeros((2, 2, 3)), {"completion": 0.0}

        def step(self, action):
            info = {"crash": "off_road", "wheels_off_road": 4, "completion": 0.0, "dt": 0.02}
            return np.zeros((2, 2, 3)), next(self.rewards), False, False, info

    env = TrainingEnv(Pays(), nested(PPOConfig(), patience=3), 0, EnvConfig(max_steps=100))
    for _ in range(2):
        env.reset()
        returns = []
        for _ in range(3):
            *_, terminated, _, _ = env.step(0)
            returns.append(env.native_return)
        assert terminated, "without progress; what it costs in training is no part of the return"
        assert returns == [-0.5, 4.5, -95.5]


def test_in_training_a_tile_costs_when_it_is_missed_and_not_again():
    class Passes(gym.Env):
        missed = 0

        def reset(self, *, seed=None, options=None):
            self.missed = 0
            return np.zeros((2, 2, 3)), {"completion": 0.0}

        def step(self, action):
            self.missed += action
            return np.zeros((2, 2, 3)), 0.0, False, False, {
                "crash": None, "wheels_off_road": 0, "completion": 0.0, "dt": 0.02,
            }  # fmt: skip

        def tiles_missed(self):
            return self.missed

    env = TrainingEnv(Passes(), nested(PPOConfig(), missed_tile_penalty=20), 0, EnvConfig())
    for _ in range(2):
        env.reset()
        assert [env.step(more)[1] for more in (0, 3, 0, -1, 1, 2)] == pytest.approx([0, -1.2, 0, 0, 0, -0.8])


def test_in_training_an_episode_ends_without_progress_and_the_first_one_is_cut_at_a_random_frame():
    class Stands(gym.Env):
        frame = 0

        def reset(self, *, seed=None, options=None):
            self.frame = 0
            return np.zeros((2, 2, 3)), {"completion": 0.0}

        def step(self, action):
            self.frame += 4
            info = {"crash": None, "wheels_off_road": 0, "completion": self.frame // 40 * action, "dt": 0.08}
            return np.zeros((2, 2, 3)), 1.0, False, False, info

    def length(env: TrainingEnv, moves: int, most: int = 2000) -> tuple[int, bool, bool]:
        env.reset()
        for frames in range(4, most, 4):
            _, _, terminated, truncated, _ = env.step(moves)
            if terminated or truncated:
                return frames, terminated, truncated
        return most, False, False

    first = [TrainingEnv(Stands(), PPOConfig(), rank, EnvConfig(max_steps=1000)) for rank in range(16)]
    cuts = [length(env, 1) for env in first]
    assert all(
        (terminated, truncated) == (False, True) and 250 <= frames <= 1003 for frames, terminated, truncated in cuts
    )
    assert len({frames for frames, _, _ in cuts}) > 10
    assert [length(env, 1)[0] for env in first[:2]] == [2000, 2000], "only the first one is cut"
    assert [length(env, 0) for env in first[:2]] == [(100, True, False)] * 2
    first[0].reset()
    rewards = [first[0].step(0)[1] for _ in range(25)]
    assert sum(rewards) == pytest.approx(250 * REWARD_SCALE), "the last step pays for the 1000 frames"
    first[0].start_at(0)
    assert length(first[0], 1) == cuts[0]
    timed = TrainingEnv(TimeLimit(Stands(), 50), PPOConfig(), 0, EnvConfig(max_steps=200))
    timed.start_at(0)
    length(timed, 1)
    assert length(timed, 1) == (200, True, False), "the time limit is an end, as the value network sees the time"
    patient = TrainingEnv(Stands(), nested(PPOConfig(), patience=0), 0, EnvConfig())
    length(patient, 0)
    assert length(patient, 0)[0] == 2000


def test_the_value_network_sees_the_car_and_the_road_ahead():
    env = training_env(EnvConfig(max_steps=400), PLAIN, 0)
    _, info = env.reset()
    at_start = env.privileged()
    assert at_start.shape == (privileged_size(EnvConfig()),)
    simulator: Any = env.unwrapped
    for _ in range(120):
        *_, info = env.step(3)
    assert tuple(env.privileged()[13:15]) == (0, 0)
    simulator._cars["visited"][0, :3] = False
    simulator._cars["lap"]["furthest"] = 30  # as if the car had passed tiles and not touched these three
    missed = np.count_nonzero(~simulator.visited[:27])
    assert missed >= 3
    state, hull = env.privileged(), simulator.car.hull
    assert tuple(state[13:15]) == pytest.approx((1, missed / 10))
    speed = np.hypot(state[3], state[4]) * 50
    assert speed == pytest.approx(info["speed"], rel=1e-5)
    assert state[-1] == pytest.approx(120 / 400)
    assert state[0] == pytest.approx(info["lateral_offset"], rel=1e-5)
    right, forward = state[15:27] * 25, state[27:39] * 25
    line = simulator.centre_line
    nearest = line.locate(hull.position, hull.angle).index
    for place, tiles in ((0, 1), (11, 28)):
        goal = line.points[(nearest + tiles) % len(line)]
        sin, cos = np.sin(hull.angle), np.cos(hull.angle)
        ahead = np.array([cos * right[place] - sin * forward[place], sin * right[place] + cos * forward[place]])
        np.testing.assert_allclose(hull.position + ahead, goal, atol=1e-2)


def test_in_training_every_episode_has_a_draw_of_one_augmentation_or_none():
    config = nested(PLAIN, augment=("colour:3", "occlusion-bars:2"))
    env, plain = (TrainingEnv(make_env(ENV), config, 0, ENV) for config in (config, PLAIN))
    changed = []
    for _ in range(12):
        seen, shown = env.reset()[0], env.unwrapped.state  # type: ignore[attr-defined]
        after = env.step(3)[0]
        assert (seen[BAR_TOP:] == shown[BAR_TOP:]).all()
        kinds = [(frame != state).any() for frame, state in ((seen, shown), (after, env.unwrapped.state))]  # type: ignore[attr-defined]
        assert kinds[0] == kinds[1], "one draw holds for the whole episode"
        changed.append(kinds[0])
        assert (plain.reset()[0] == plain.unwrapped.state).all()  # type: ignore[attr-defined]
    assert 0 < sum(changed) < 12


def test_each_training_episode_has_the_perturbation_of_its_track():
    class Tracks(gym.Wrapper):
        track = 0

        def reset(self, *, seed=None, options=None):
            self.track = seed or 0
            return self.env.reset(seed=seed, options=options)

    tracks = Tracks(make_env(EnvConfig(max_steps=3, perturb="frame-rate:3,weak-tyres:2")))
    env, simulator, grips = TrainingEnv(tracks, PLAIN, 0, EnvConfig(max_steps=3)), tracks.unwrapped, set()
    for _ in range(8):
        env.reset()
        grip = simulator.grip  # type: ignore[attr-defined]
        assert grip == (1.0, 0.75)[tracks.track % 2]
        grips.add(grip)
    assert len(grips) == 2
