"""Frames that are not drawn: `look`, and an action that is repeated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nac_drive.envs import ActionRepeat, EnvConfig, make_env
from tests.envs.episodes import FULL_GAS, blind, play, random_actions


def test_every_frame_is_an_array_of_its_own():
    env = make_env()
    frames = [outcome[0] for outcome in play(env, [3] * 3, 0)]
    before = [frame.copy() for frame in frames]
    env.step(3)
    env.reset(seed=1)
    np.testing.assert_array_equal(frames, before)


def test_look_returns_the_frame_of_the_step():
    seeing, blinded = (make_env() for _ in range(2))
    actions = random_actions("discrete", 54, 2)
    for one, _ in zip(play(seeing, actions, 2), play(blind(blinded), actions, 2), strict=True):
        looked = blinded.unwrapped.look()  # type: ignore[attr-defined]
        np.testing.assert_array_equal(one[0], looked)
    assert not blinded.unwrapped.observe  # type: ignore[attr-defined]
    assert seeing.unwrapped.reward == blinded.unwrapped.reward  # type: ignore[attr-defined]


def test_action_repeat_sums_rewards_and_shows_the_last_frame():
    config = EnvConfig(mask_bar=True, max_steps=43)
    actions = random_actions("discrete", 11, 6)
    each = list(play(make_env(config), [action for action in actions for _ in range(4)], 6))
    repeated = list(play(ActionRepeat(make_env(config), 4), actions, 6))
    assert len(repeated) == 12
    for i, (observation, reward, terminated, truncated, info) in enumerate(repeated[1:]):
        among = each[1 + 4 * i : 5 + 4 * i]
        np.testing.assert_array_equal(observation, among[-1][0])
        assert reward == sum(outcome[1] for outcome in among)
        assert (terminated, truncated) == among[-1][2:4]
        assert info == {**among[-1][4], "dt": len(among) / 50}
    assert [outcome[3] for outcome in repeated] == [False] * 11 + [True]
    assert repeated[-1][4]["dt"] == 3 / 50


def test_action_repeat_draws_once_and_keeps_a_blind_one_blind(monkeypatch):
    env = ActionRepeat(make_env(), 5)
    car_racing: Any = env.unwrapped
    env.reset(seed=0)
    drawn: list[bool] = []
    step = car_racing.step
    monkeypatch.setattr(car_racing, "step", lambda action: drawn.append(car_racing.observe) or step(action))
    env.step(3)
    assert drawn == [False] * 4 + [True]
    blind(env)
    env.step(3)
    assert drawn[5:] == [False] * 5
    assert not car_racing.observe


def test_action_repeat_does_not_lose_a_crash_in_between():
    each = list(play(blind(make_env(crash="ignore")), [FULL_GAS["discrete"]] * 400, 1))
    crashes = [outcome[4]["crash"] for outcome in each[1:]]
    repeated = list(play(blind(ActionRepeat(make_env(crash="ignore"), 8)), [FULL_GAS["discrete"]] * 50, 1))
    among = [next(filter(None, crashes[8 * i : 8 * i + 8]), None) for i in range(len(repeated) - 1)]
    assert [outcome[4]["crash"] for outcome in repeated[1:]] == among
    assert any(among)


@pytest.mark.parametrize("frames", [0, -1])
def test_action_repeat_of_no_frame_is_refused(frames):
    with pytest.raises(ValueError, match=f"frames must be at least 1, got {frames}"):
        ActionRepeat(make_env(), frames)
