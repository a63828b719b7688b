"""The rollout loop: queries of drivers, steps, and their order."""

from __future__ import annotations

import numpy as np
import pytest

from nac_drive.envs import Step, rollout
from tests.problems import CheckingDriver, Darkened, ToyEnv


def row(step: Step) -> tuple:
    return (
        step.index, int(step.observation.max()), step.info["frame"], step.dt,
        step.intended, step.action, step.expert_action,
        step.reward, step.terminated, step.truncated, step.outcome["frame"],
    )  # fmt: skip


def test_the_steps_of_an_episode():
    env, steps, order = ToyEnv(), [], []
    driver, expert = CheckingDriver(0, sees=[0, 1, 2, 3]), CheckingDriver(10, sees=[0, 1, 2, 3])
    episode = rollout(
        env, driver, 7, expert=expert, execute=lambda action: 4 - action,
        subscribers=[
            lambda step: order.append(("first", step.index)), lambda step: order.append(("second", step.index)),
            steps.append,
        ],
    )  # fmt: skip
    assert [row(step) for step in steps] == [
        # index, image, info, dt, intended, action, expert_action, reward, terminated, truncated, outcome
        (0, 0, 0, 0.00, 0, 4, 10, 10.0, False, False, 1),
        (1, 1, 1, 0.02, 1, 3, 11, 100.0, False, False, 2),
        (2, 2, 2, 0.06, 2, 2, 12, 1000.0, False, False, 3),
        (3, 3, 3, 0.02, 3, 1, 13, 10000.0, True, False, 4),
    ]
    assert order == [(who, i) for i in range(4) for who in ("first", "second")]
    assert env.resets == [7]
    assert env.actions == [4, 3, 2, 1]
    assert (episode.seed, episode.episode_return, episode.length, episode.terminated) == (7, 11110.0, 4, True)
    assert episode.outcome == {"dt": 0.02, "frame": 4}
    assert all(step.latency >= 0 for step in steps)


def test_the_expert_sees_the_frame_before_the_wrappers():
    env, steps = Darkened(ToyEnv()), []
    rollout(env, CheckingDriver(0, [0] * 4), 1, expert=CheckingDriver(5, [0, 1, 2, 3]), subscribers=[steps.append])
    assert not any(step.observation.any() for step in steps)
    assert [step.expert_action for step in steps] == [5, 6, 7, 8]


def test_expert_noise_and_subscribers_are_optional():
    env, steps = ToyEnv(terminates=False), []
    episode = rollout(env, CheckingDriver(0), 3, subscribers=(step for step in [steps.append]))
    assert [step.expert_action for step in steps] == [None] * 4
    assert env.actions == [0, 1, 2, 3]
    assert not episode.terminated
    assert steps[-1].truncated
    assert rollout(env, CheckingDriver(0), 3) == episode


def test_every_episode_begins_with_a_new_state():
    driver = CheckingDriver(0)
    for seed in range(3):
        rollout(ToyEnv(), driver, seed)
    assert driver.begun == 3


def test_the_double_notices_a_state_that_was_not_reset():
    driver = CheckingDriver(0)
    env = ToyEnv()
    _, info = env.reset()
    state = driver.begin(env)
    _, state = driver.act(np.zeros((2, 2, 3)), state, info["dt"])
    with pytest.raises(AssertionError, match="time since"):
        driver.act(np.zeros((2, 2, 3)), state, info["dt"])
    driver.begin(env)
    with pytest.raises(AssertionError, match="another episode"):
        driver.act(np.zeros((2, 2, 3)), state, 0.02)
