"""stable-baselines3 gets from SB3VecEnv what its own DummyVecEnv gives it, and trains on it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from nac_drive.envs import EnvConfig, ProcessVectorEnv, make_env
from nac_drive.policies.ops.threads import one_thread
from nac_drive.training.sb3_vec_env import SB3VecEnv


class Crashes(gym.Wrapper):
    """Terminates the episode in its last frame, which the time limit also truncates."""

    def step(self, action):
        observation, reward, _, truncated, info = self.env.step(action)
        return observation, reward, truncated, truncated, info


def monitored(frames: int, crashes: bool) -> gym.Env:
    env = make_env(EnvConfig(max_steps=frames))
    return Monitor(Crashes(env) if crashes else env)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[SB3VecEnv, DummyVecEnv]]:
    """The same environments, whose episodes end one after the other: in two processes, and in stable-baselines3's."""
    env_fns = [partial(monitored, frames, crashes) for frames, crashes in ((5, False), (7, False), (5, True))]
    ours, theirs = SB3VecEnv(ProcessVectorEnv(env_fns, 2)), DummyVecEnv(env_fns)
    yield ours, theirs
    ours.close()


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal but for the seconds that the monitor has measured."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for name in theirs.keys() - {"t"}:
            assert_same(ours[name], theirs[name])
    else:
        np.testing.assert_array_equal(ours, theirs)


def test_it_gives_what_dummy_vec_env_gives(pair):
    ours, theirs = pair
    assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
    for env in pair:
        env.seed(3)
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    rng = np.random.default_rng(0)
    ends, truncations = [], []
    for _ in range(15):
        actions = rng.integers(5, size=3)
        (observations, rewards, dones, infos), expected = ours.step(actions), theirs.step(actions)
        np.testing.assert_array_equal(observations, expected[0])
        np.testing.assert_array_equal(rewards.astype(np.float32), expected[1])
        np.testing.assert_array_equal(dones, expected[2])
        for info, other in zip([*infos, *ours.reset_infos], [*expected[3], *theirs.reset_infos], strict=True):
            assert_same(info, other)
        ends.append(dones.tolist())
        truncations.append([info["TimeLimit.truncated"] for info in infos])
    never, first, second = [False] * 3, [True, False, True], [False, True, False]
    assert ends == [never] * 4 + [first, never, second] + [never] * 2 + [first] + [never] * 3 + [second, first]
    assert truncations[4] == truncations[14] == [True, False, False]
    assert infos[0]["episode"]["l"] == 5
    assert infos[0]["terminal_observation"].shape == (96, 96, 3)
    assert "terminal_observation" not in infos[1]


def test_attributes_of_all_and_of_some(pair):
    for env in pair:
        env.set_attr("nickname", "car")
        env.set_attr("nickname", "truck", indices=1)
        assert env.get_attr("nickname") == ["car", "truck", "car"]
        assert env.get_attr("nickname", indices=[1, 2]) == ["truck", "car"]
        assert env.env_method("get_wrapper_attr", "nickname") == ["car", "truck", "car"]
        assert env.has_attr("centre_line")
        assert not env.has_attr("wings")
    with pytest.raises(ValueError, match=r"indices must be None, got \[0\]: look is called on all environments"):
        pair[0].env_method("look", indices=[0])


def test_ppo_learns_on_it_logs_returns_and_is_evaluated():
    config = EnvConfig(max_steps=6)
    env_fns = [partial(make_env, config, crash="terminate")] * 2
    env = VecMonitor(SB3VecEnv(SyncVectorEnv(env_fns, autoreset_mode=AutoresetMode.DISABLED)))
    with one_thread():
        model = PPO("CnnPolicy", env, n_steps=8, batch_size=8, n_epochs=1, seed=0, device="cpu")
        before = [parameter.clone() for parameter in model.policy.parameters()]
        model.learn(32)
        returns, lengths = evaluate_policy(model, env, n_eval_episodes=2, return_episode_rewards=True)
    assert any((now != then).any() for now, then in zip(model.policy.parameters(), before, strict=True))
    assert [episode["l"] for episode in model.ep_info_buffer or []] == [6] * 4
    assert lengths == [6, 6]
    assert all(np.isfinite(returns))  # type: ignore[arg-type]
