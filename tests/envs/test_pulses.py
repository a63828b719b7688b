"""Pulsed control: three numbers that five actions carry out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nac_drive.data_collection.controller.controller import Controller
from nac_drive.envs import EnvConfig, make_env, rollout
from nac_drive.envs.pulses import (
    BRAKE,
    COMMANDS,
    GAS,
    LEFT,
    MAX_WHEEL_ANGLE,
    NOTHING,
    RIGHT,
    TURN,
    Pulses,
    best_action,
    wheel_angle_after,
)
from tests.envs.episodes import blind, native, play, random_actions

angles = st.floats(-MAX_WHEEL_ANGLE, MAX_WHEEL_ANGLE)


def test_the_frames_and_rewards_are_those_of_the_discrete_environment_bit_for_bit():
    """gymnasium's own discrete environment, driven by the actions that `Pulses` chooses from the same commands."""
    commands, pulses = random_actions("continuous", 120, 7), Pulses()
    actions = [pulses.action(command) for command in commands]
    assert set(actions) >= {RIGHT, LEFT, GAS}
    ours = play(make_env(EnvConfig("pulsed")), commands, 7)
    theirs = play(native("discrete"), [np.int64(action) for action in actions], 7)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        assert one[1:4] == other[1:4]


def test_the_reckoned_wheel_angle_is_the_true_one():
    env: Any = blind(make_env(EnvConfig("pulsed"))).unwrapped
    env.reset(seed=2)
    seen = []
    for command in random_actions("continuous", 300, 1):
        env.step(command)
        seen.append((env.pulses.angle, env.car.wheels[0].joint.angle))
    reckoned, true = np.array(seen).T
    assert np.ptp(true) > MAX_WHEEL_ANGLE
    np.testing.assert_allclose(reckoned, true, atol=0.5 * TURN)  # at the stop the wheels may turn 0.02 rad too far
    first = int(np.argmax(np.abs(true) > MAX_WHEEL_ANGLE))
    assert first > 0
    np.testing.assert_allclose(reckoned[:first], true[:first], atol=1e-4)


def test_after_an_intervention_and_a_reset_the_wheels_are_straight():
    env: Any = blind(make_env(EnvConfig("pulsed"))).unwrapped
    env.reset(seed=2)
    for begin_again in (env.intervene, env.reset):
        for _ in range(5):
            env.step(np.array([1.0, 0.0, 0.0], np.float32))
        assert env.pulses.angle == pytest.approx(-5 * TURN)
        begin_again()
        assert env.pulses.angle == 0.0
        assert abs(env.car.wheels[0].joint.angle) < TURN  # gymnasium's reset drives a frame, which turns them a little


@given(wanted=angles, angle=angles, pedal=st.sampled_from([NOTHING, GAS, BRAKE]), worth=st.floats(0, 1))
def test_the_best_action_leaves_the_smallest_error(wanted, angle, pedal, worth):
    action = best_action(wanted, angle, pedal, worth)
    assert action in (pedal, LEFT, RIGHT)
    error = {each: (wanted - wheel_angle_after(each, angle)) ** 2 for each in (pedal, LEFT, RIGHT)}
    if action != pedal:  # a pedal is given up for a gain that is worth it
        assert error[action] == min(error.values())
        assert error[pedal] - error[action] >= 2 * TURN * worth * (1 - 1e-9)
    else:
        assert error[pedal] - min(error.values()) <= 2 * TURN * worth + 1e-12


@given(steer=st.floats(-1, 1))
def test_without_pedals_the_wheels_come_to_the_commanded_angle_and_stay_near(steer):
    pulses, wanted = Pulses(), min(max(-steer, -MAX_WHEEL_ANGLE), MAX_WHEEL_ANGLE)
    for _ in range(8):  # 0.4 rad take seven frames
        pulses.action((steer, 0.0, 0.0))
    for _ in range(20):
        pulses.action((steer, 0.0, 0.0))
        assert abs(pulses.angle - wanted) <= TURN + 1e-9


@given(steer=st.floats(-1, 1), gas=st.floats(0, 1), brake=st.floats(0, 1))
def test_a_mirrored_command_is_carried_out_by_mirrored_actions(steer, gas, brake):
    mirrored = {NOTHING: NOTHING, LEFT: RIGHT, RIGHT: LEFT, GAS: GAS, BRAKE: BRAKE}
    one, other = Pulses(), Pulses()
    for _ in range(12):
        action = one.action((steer, gas, brake))
        if abs(one.angle) > 1e-9:  # a tie between left and right is broken by order
            assert other.action((-steer, gas, brake)) == mirrored[action]
        else:
            other.angle = -one.angle


def test_the_commands_of_the_actions_are_those_of_the_environments_facts():
    spec = EnvConfig().spec
    assert tuple(steer for steer, _, _ in COMMANDS) == spec.steering
    assert [spec.action_names[action] for action in (NOTHING, RIGHT, LEFT, GAS, BRAKE)] == list(spec.action_names)


def test_the_controller_drives_by_pulses():
    episode = rollout(blind(make_env(EnvConfig("pulsed"))), Controller("pulsed"), 17)
    assert episode.episode_return > 900
    assert episode.outcome["crashes"] == 0
