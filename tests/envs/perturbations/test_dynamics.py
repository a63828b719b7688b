"""Actions that come late or wrong, and tyres that slip."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from nac_drive.envs import EnvConfig, make_env, perturb
from nac_drive.envs.perturbations.dynamics import (
    ActionDelay,
    ActionFault,
    DelayedActions,
    FaultyActions,
    TyreGrip,
    WeakTyres,
)
from nac_drive.envs.perturbations.frames import IrregularRate, SkippedFrames
from nac_drive.envs.perturbations.stream import Stream
from tests.envs.episodes import blind
from tests.envs.perturbations.doubles import Clock, controls, timeline


@pytest.mark.parametrize(
    ("delay", "executed"),
    [
        (0, [1, 2, 3, 4, 0, 1, 2, 3]), (1, [0, 1, 2, 3, 4, 0, 1, 2]),
        (2, [0, 0, 1, 2, 3, 4, 0, 1]), (4, [0, 0, 0, 0, 1, 2, 3, 4]),
    ],
)  # fmt: skip
def test_actions_come_late(delay, executed):
    env = Clock()
    for _ in range(2):  # actions that wait at the end of an episode are not executed in the next
        rows = timeline(DelayedActions(env, ActionDelay(delay)))
        assert env.actions == executed
        assert [row[:3] for row in rows] == [row[:3] for row in timeline(Clock())]


def test_a_late_continuous_action_is_none_at_first():
    box = gym.spaces.Box(controls([-1, 0, 0]), controls([1, 1, 1]))
    env = Clock(box)
    late = DelayedActions(env, ActionDelay(1))
    late.reset(seed=0)
    late.step(controls([0.5, 1, 0]))
    late.step(controls([0, 0, 1]))
    np.testing.assert_array_equal(env.actions, controls([[0, 0, 0], [0.5, 1, 0]]))
    assert all(box.contains(action) for action in env.actions)


@pytest.mark.parametrize(
    ("space", "first"),
    [
        (gym.spaces.Box(controls([-3, 0.5, 2]), controls([-1, 4, 2.5])), controls([-1, 0.5, 2])),
        (gym.spaces.Discrete(3, start=5), 5),
        (gym.spaces.Discrete(3, start=-1), 0),
    ],
)
def test_a_late_action_of_a_road_without_zero_is_the_nearest_to_it(space, first):
    """The road refused zeros, and the driver was blamed."""
    env = Clock(space)
    late = DelayedActions(env, ActionDelay(1))
    late.reset(seed=0)
    late.step(space.sample())
    np.testing.assert_array_equal(env.actions, [first])


def test_a_delay_counts_frames_inside_and_decisions_outside_a_slow_camera():
    inside, outside = Clock(), Clock()
    slow = IrregularRate((0.0, 1.0))
    timeline(SkippedFrames(DelayedActions(inside, ActionDelay(1)), slow, Stream("rate")))
    timeline(DelayedActions(SkippedFrames(outside, slow, Stream("rate")), ActionDelay(1)))
    assert inside.actions == [0, 1, 1, 2, 2, 3, 3, 4]
    assert outside.actions == [0, 0, 1, 1, 2, 2, 3, 3]


class Recorder(gym.Env):
    """Takes any action of its space."""

    def __init__(self, space: gym.Space):
        self.action_space, self.actions = space, []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        return np.zeros(1), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.actions.append(action)
        return np.zeros(1), 0.0, False, False, {}


def executed(space: gym.Space, fault: ActionFault, action: Any, frames: int = 5000) -> np.ndarray:
    env = Recorder(space)
    faulty = FaultyActions(env, fault, Stream("action-noise"))
    faulty.reset(seed=0)
    for _ in range(frames):
        faulty.step(action)
    return np.array(env.actions)


def test_a_random_discrete_action_replaces_the_intended_one():
    actions = executed(gym.spaces.Discrete(5), ActionFault(0.3, 0.0), np.int64(3))
    np.testing.assert_allclose(np.bincount(actions) / 5000, [0.06, 0.06, 0.06, 0.76, 0.06], atol=0.015)
    wrong = actions != 3
    assert np.corrcoef(wrong[1:], wrong[:-1])[0, 1] == pytest.approx(0, abs=0.05)
    assert (executed(gym.spaces.Discrete(5), ActionFault(0.0, 1.0), np.int64(3)) == 3).all()
    assert set(executed(gym.spaces.Discrete(5, start=2), ActionFault(1.0, 0.0), np.int64(2))) == {2, 3, 4, 5, 6}


def test_noise_on_steering_and_pedals_stays_in_the_action_space():
    space = make_env(EnvConfig("continuous")).action_space
    noisy = executed(space, ActionFault(1.0, 0.05), controls([0.2, 0.5, 0.5])) - [0.2, 0.5, 0.5]
    np.testing.assert_allclose(noisy.std(axis=0), 0.05, rtol=0.05)
    np.testing.assert_allclose(noisy.mean(axis=0), 0, atol=0.005)
    pushed = executed(space, ActionFault(1.0, 0.3), controls([-1, 1, 0]))
    assert (pushed[:, 0] == -1).mean() == pytest.approx(0.5, abs=0.03)
    assert (pushed[:, 1] == 1).mean() == pytest.approx(0.5, abs=0.03)
    assert (pushed[:, 2] == 0).mean() == pytest.approx(0.5, abs=0.03)


def braking_distance(grip: float, sideways: float = 0.0, intervene: bool = False) -> float:
    """From 90 units/s along the road to rest with locked wheels, started `sideways` units beside the centre line."""
    env = WeakTyres(blind(make_env(EnvConfig("continuous"))), TyreGrip(grip))
    env.reset(seed=0)
    simulator: Any = env.unwrapped
    if intervene:
        simulator.intervene()
    angle = float(simulator.centre_line.angles[0])
    position = simulator.centre_line.points[0] + sideways * np.array([np.cos(angle), np.sin(angle)])
    simulator.place(angle, *position, velocity=(-90 * np.sin(angle), 90 * np.cos(angle)))
    for _ in range(400):
        info = env.step(controls([0, 0, 1]))[-1]
        if info["speed"] < 0.5:
            return float(np.hypot(*(simulator.car.hull.position - position)))
    raise AssertionError("it never stops")


def test_weak_tyres_lengthen_braking_as_friction_does():
    """The distance is v^2 / (2 a), and a is proportional to the grip."""
    firm = braking_distance(1.0)
    for grip in (0.9, 0.75, 0.6):
        assert braking_distance(grip) == pytest.approx(firm / grip, rel=0.03)
    assert braking_distance(0.75, intervene=True) == braking_distance(0.75)


def test_grass_is_as_slippery_as_ever():
    on_grass = {braking_distance(grip, sideways=20.0) for grip in (1.0, 0.75, 0.6)}
    assert len(on_grass) == 1
    assert on_grass.pop() == pytest.approx(braking_distance(0.6), rel=0.03), "at 0.6 the road is no better"


def test_weak_tyres_hold_from_episode_to_episode():
    env = perturb(blind(make_env()), "weak-tyres:2")
    simulator: Any = env.unwrapped
    for seed in (0, 0, 1):
        env.reset(seed=seed)
        assert simulator.grip == 0.75


# Refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ActionDelay(-1), "frames must be at least 0, got -1"),
        (lambda: ActionFault(-0.1, 0.0), "a probability must lie in"),
        (lambda: ActionFault(0.1, float("nan")), "deviation must be at least 0 and finite, got nan"),
        (lambda: TyreGrip(0.5), r"grip must lie in \[0.6, 1\], got 0.5; below 0.6, the grip of grass"),
        (lambda: Stream("name", -1), "seed must be at least 0, got -1"),
    ],
)
def test_a_bad_setting_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_tyres_need_a_road():
    with pytest.raises(ValueError, match="weaker tyres need CarRacing's road tiles, got <Clock"):
        perturb(Clock(), "weak-tyres:1")
