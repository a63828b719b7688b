"""The rollout loop: queries of drivers, steps, and their order."""

from __future__ import annotations

import numpy as np
import pytest

from nac_drive.envs import BatchPolicy, EpisodeSetup, Step, rollout, rollouts
from tests.problems import CheckingBatchPolicy, CheckingDriver, Darkened, ToyEnv


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


def test_rollouts_in_lockstep_one_pass_for_all_and_rows_kept_busy():
    driver, expert, steps = CheckingBatchPolicy(0), CheckingBatchPolicy(7), {}
    envs = [ToyEnv(length) for length in (4, 2, 3, 4)]

    def setups():
        for seed, env in enumerate(envs):
            steps[seed] = []
            yield EpisodeSetup(env, driver, seed, expert, lambda action: 4 - action, [steps[seed].append])

    ends = []
    for setup, episode in rollouts(setups(), batch_size=2):
        ends.append((setup.seed, episode.length, len(steps)))
    # seed, length, episodes begun: the second ends first, then its place is the third's
    assert ends == [(1, 2, 2), (0, 4, 3), (2, 3, 4), (3, 4, 4)]
    # the first decision of an episode is made alone, and so is one without others to join; episodes count from 1
    assert driver.alone == [1, 2, 3, 1, 4, 3, 4, 4, 4]
    assert driver.batches == [[1, 2], [1, 3]]
    assert expert.batches == [[1, 2], [1, 2], [1, 3], [1, 3], [3, 4]]
    for seed, env in enumerate(envs):
        alone: list[Step] = []
        rollout(
            ToyEnv(env.length), CheckingDriver(0), seed, expert=CheckingDriver(7), execute=lambda action: 4 - action,
            subscribers=[alone.append],
        )  # fmt: skip
        assert [row(step) for step in steps[seed]] == [row(step) for step in alone]
    assert [step.latency is None for step in steps[0]] == [False, True, False, True]


def test_the_number_of_episodes_at_a_time_changes_no_step():
    def rows(batch_size: int) -> dict[int, list[tuple]]:
        steps: dict[int, list[Step]] = {seed: [] for seed in range(5)}
        driver = CheckingBatchPolicy(0)
        setups = [EpisodeSetup(ToyEnv(1 + seed % 4), driver, seed, subscribers=[steps[seed].append]) for seed in steps]
        ended = [(setup.seed, episode) for setup, episode in rollouts(setups, batch_size)]
        assert sorted(seed for seed, _ in ended) == list(steps)
        return {seed: [row(step) for step in own] for seed, own in steps.items()}

    expected = rows(1)
    assert [len(own) for own in expected.values()] == [1, 2, 3, 4, 1]
    assert all(rows(batch_size) == expected for batch_size in (2, 3, 16))


def test_a_driver_without_batches_is_queried_car_by_car():
    drivers = [CheckingDriver(answer) for answer in (0, 1)]
    assert not isinstance(drivers[0], BatchPolicy)
    assert isinstance(CheckingBatchPolicy(0), BatchPolicy)
    steps: list[Step] = []
    setups = [EpisodeSetup(ToyEnv(), driver, 5, subscribers=[steps.append]) for driver in drivers]
    assert [episode.length for _, episode in rollouts(setups, batch_size=2)] == [4, 4]
    assert [step.intended for step in steps] == [0, 1, 1, 2, 2, 3, 3, 4]
    assert all(step.latency is not None for step in steps)


def test_cars_of_two_batch_drivers_are_two_batches():
    one, two = CheckingBatchPolicy(0), CheckingBatchPolicy(1)
    setups = [EpisodeSetup(ToyEnv(2), driver, 5) for driver in (one, two, one, two)]
    assert len(list(rollouts(setups, batch_size=4))) == 4
    assert (one.batches, two.batches) == ([[1, 2]], [[1, 2]])


def test_no_episodes_are_none():
    assert list(rollouts([], batch_size=3)) == []
