"""PPO on roads of users.

They have other rewards, ends and observations than CarRacing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from nac_drive.envs import ENVIRONMENTS, EnvConfig, gymnasium_environment
from nac_drive.training.ppo.config import REWARD_SCALE, PPOConfig
from nac_drive.training.ppo.env import TrainingEnv, privileged_size, training_env
from nac_drive.training.ppo.envs import SingleEnvs
from tests.nac_drive.small import nested

NAME, LIMIT = "steady-v0", 400
Facts = Callable[[int], Any]


class Steady(gym.Env):
    """A road that pays 1 a step."""

    observation_space = gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, info: Facts, truncated: Facts) -> None:
        self.info, self.truncated = info, truncated

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.time = 0
        return self.draw(), {}

    def draw(self) -> np.ndarray:
        image = np.zeros((16, 16, 3), np.uint8)
        image.reshape(-1)[: self.time % 700 + 1] = 255
        return image

    def step(self, action):
        self.time += 1
        return self.draw(), 1.0, False, self.truncated(self.time), self.info(self.time)


@pytest.fixture
def road(monkeypatch):
    """Return a function that makes a training environment.

    Its first episode is over, which is cut.
    """

    def make(
        info: Facts = lambda _: {}, truncated: Facts = lambda _: False, patience: int = 100, **facts: Any
    ) -> TrainingEnv:
        registered = EnvSpec(NAME, cast("Any", lambda: Steady(info, truncated)), max_episode_steps=LIMIT)
        monkeypatch.setitem(gym.registry, NAME, registered)
        monkeypatch.setitem(ENVIRONMENTS, NAME, gymnasium_environment(NAME, **facts))
        env = training_env(EnvConfig(environment=NAME), nested(PPOConfig(), patience=patience, action_repeat=4), 0)
        env._limit = None
        return env

    return make


def driven(env: TrainingEnv) -> tuple[int, bool, bool, list[float]]:
    """Return steps, end and rewards of an episode."""
    env.reset()
    rewards, terminated, truncated = [], False, False
    while not (terminated or truncated):
        _, reward, terminated, truncated, _ = env.step(0)
        rewards.append(reward / REWARD_SCALE)
    return env.unwrapped.env.unwrapped.time, terminated, truncated, rewards  # type: ignore[attr-defined]


def test_an_episode_without_progress_is_cut_and_pays_what_the_road_pays(road):
    """Its last action paid for 300 steps that were left."""
    env = road(lambda _: {"completion": 0.5})
    steps, *end, rewards = driven(env)
    assert (steps, end) == (104, [False, True]), "the first action makes progress, up to 0.5"
    assert rewards == pytest.approx([4.0] * 26)
    assert env.is_cut


def test_a_finished_lap_is_no_lack_of_progress(road):
    env = road(lambda time: {"completion": min(time / 100, 1.0)})
    assert driven(env)[:3] == (LIMIT, True, False)
    assert not env.is_cut


def test_what_the_value_network_cannot_foresee_is_followed_by_its_estimate(road):
    """An early truncation is no end by a rule.

    The return of the episode is whole.
    """
    env = road(truncated=lambda time: time == 30)
    assert driven(env)[:3] == (30, False, True)
    envs = SingleEnvs([env])
    envs.start_at(0)
    env._limit = None
    outcomes = [envs.step(np.zeros(1, int)) for _ in range(8)]
    assert [outcome.terminated.item() for outcome in outcomes] == [False] * 8
    assert [outcome.ended.item() for outcome in outcomes] == [False] * 7 + [True]
    assert [outcome.returns for outcome in outcomes] == [[]] * 7 + [[30.0]]


# What the value network sees


@pytest.mark.parametrize(
    "privileged", [lambda env, _: [env.time, 2], lambda env, _: np.array([env.time, 2.0]), lambda env, _: (env.time, 2)]
)
@pytest.mark.parametrize("stated", [{}, {"privileged_size": 2}])
def test_any_numbers_become_what_the_value_network_takes(road, privileged, stated):
    """Their number is counted where it is not stated."""
    env = road(privileged=privileged, **stated)
    assert privileged_size(EnvConfig(environment=NAME)) == 3
    env.reset()
    env.step(0)
    seen = env.privileged()
    assert seen.dtype == np.float32
    np.testing.assert_array_equal(seen, np.array([4, 2, 4 / LIMIT], np.float32))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([1.0, 2.0], "returned 2 numbers, privileged_size says 3; state privileged_size=2 beside privileged"),
        ([1.0, np.nan, np.inf], "returned nan as number 1 of 3, expected finite numbers; correct it"),
        ({"x": 1.0}, "returned dict, expected numbers; correct it"),
    ],
)
def test_what_the_value_network_cannot_take_is_one_line(road, state, message):
    """Torch complained of a shape, or the training diverged."""
    env = road(privileged=lambda env, _: state if env.time else [0.0] * 3, privileged_size=3)
    env.reset()
    env.privileged()
    env.step(0)
    where = (
        f"environment '{NAME}', step 4 of the episode with seed {env._track}: privileged, which the value network sees"
    )
    with pytest.raises(ValueError, match=f"{where}, {message}"):
        env.privileged()
