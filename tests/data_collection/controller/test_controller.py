"""The privileged controller: line, speeds, and how it drives."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nac_drive.data_collection.controller.controller import BRAKE, CONTROLLERS, GAS, Controller
from nac_drive.data_collection.controller.racing_line import Path, racing_line, smooth_path, speed_profile
from nac_drive.envs import Control, EnvConfig, Step, Track, make_env, perturb, rollout
from tests.problems import ToyEnv, circle, square


def length_of(line: np.ndarray) -> float:
    return float(np.linalg.norm(np.roll(line, -1, axis=0) - line, axis=1).sum())


def sharpest(line: np.ndarray) -> float:
    return float(np.abs(smooth_path(line).curvature).max())


def quiet_env(config: EnvConfig) -> gym.Env:
    env = make_env(config)
    env.unwrapped.observe = False  # type: ignore[attr-defined]
    return env


def real_track(seed: int) -> Track:
    env = quiet_env(EnvConfig())
    env.reset(seed=seed)
    return env.unwrapped.centre_line  # type: ignore[attr-defined]


REAL = {seed: real_track(seed) for seed in (1, 2)}


@pytest.mark.parametrize(("control", "least"), [("discrete", 905), ("continuous", 925)])
def test_it_finishes_every_track_on_the_road(control, least):
    env = quiet_env(EnvConfig(control))
    for seed in (800_000, 17, 42, 2071):  # on 2071 the tail slides
        episode = rollout(env, Controller(control), seed)
        assert episode.episode_return > least, seed
        assert episode.outcome["lap_finished"]
        assert episode.outcome["off_road_events"] == 0


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_it_drives_the_same_episode_twice_and_reads_no_pixel(control):
    class Blinded(gym.ObservationWrapper):
        def observation(self, observation):
            return np.full_like(observation, 255)

    env = quiet_env(EnvConfig(control, max_steps=150))
    episode = rollout(env, Controller(control), 5)
    assert rollout(env, Controller(control), 5) == episode
    assert rollout(Blinded(env), Controller(control), 5) == episode


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_its_action_is_a_function_of_the_state_alone(control):
    """The same action comes from a second query, and from a new plan: nothing is counted or remembered."""
    env, controller = quiet_env(EnvConfig(control)), Controller(control)
    observation, _ = env.reset(seed=5)
    plan = controller.begin(env)
    for _ in range(200):
        action, plan = controller.act(observation, plan, 0.02)
        np.testing.assert_array_equal(controller.act(observation, plan, 0.02)[0], action)
        fresh = controller.begin(env) if _ % 50 == 0 else plan
        np.testing.assert_array_equal(controller.act(observation, fresh, 0.02)[0], action)
        env.step(action)


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_it_drives_on_after_an_intervention(control):
    env, controller = quiet_env(EnvConfig(control)), Controller(control)
    observation, _ = env.reset(seed=5)
    plan = controller.begin(env)
    simulator: Any = env.unwrapped
    x, y = simulator.car.hull.position
    simulator.place(simulator.car.hull.angle, x + 60.0, y + 30.0)
    env.step(controller.act(observation, plan, 0.02)[0])
    simulator.intervene()
    rewards = []
    for _ in range(200):
        action, plan = controller.act(observation, plan, 0.02)
        observation, reward, *_, info = env.step(action)
        rewards.append(reward)
    assert sum(rewards) > 0
    assert info["off_road_events"] == 0


@pytest.mark.parametrize("control", ["discrete", "continuous"])
@pytest.mark.parametrize(("beside", "turned"), [(9.0, 0.0), (-9.0, 0.0), (0.0, 1.5), (0.0, -1.5), (9.0, -1.5)])
def test_it_comes_back_from_beside_and_across_the_road(control, beside, turned):
    env, controller = quiet_env(EnvConfig(control)), Controller(control)
    observation, _ = env.reset(seed=5)
    plan = controller.begin(env)
    inner: Any = env.unwrapped
    inner.place(inner.centre_line.angles[0] + turned, *inner.centre_line.points[0] + (beside, 0))
    for _ in range(250):
        action, plan = controller.act(observation, plan, 0.02)
        observation, *_, info = env.step(action)
    assert abs(info["lateral_offset"]) < 0.8
    assert abs(info["heading_error"]) < 0.5
    assert info["speed"] > 20


def test_off_its_line_it_slows_down():
    env, controller = quiet_env(EnvConfig("continuous")), Controller("continuous")
    observation, _ = env.reset(seed=5)
    plan = controller.begin(env)
    simulator: Any = env.unwrapped
    hull = simulator.car.hull
    velocity = (-90 * np.sin(hull.angle), 90 * np.cos(hull.angle))
    simulator.place(hull.angle, *hull.position, velocity=velocity)
    gas, brake = controller.act(observation, plan, 0.02)[0][1:]
    assert gas > 0 == brake
    simulator.place(hull.angle + 0.8, *hull.position, velocity=velocity)
    gas, brake = controller.act(observation, plan, 0.02)[0][1:]
    assert gas == 0


def test_only_cars_with_a_track_to_read_and_known_controls():
    with pytest.raises(ValueError, match=r"control must be one of .*, got 'pedals'"):
        Controller("pedals")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="env must come from make_env"):
        Controller().begin(ToyEnv())


# The steady and the cautious controller


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_the_steady_one_stays_further_from_the_edge_and_brakes_earlier(control):
    drives = {}
    for name in ("controller", "steady-controller"):
        steps: list[Step] = []
        controller = Controller(control, CONTROLLERS[name][control])
        result = rollout(quiet_env(EnvConfig(control)), controller, 5, subscribers=[steps.append])  # type: ignore[arg-type]
        assert result.outcome["lap_finished"]
        offsets = np.abs([step.info["lateral_offset"] for step in steps])
        drives[name] = result.episode_return, np.quantile(offsets, 0.95)
    (fast, wide), (steady, narrow) = drives.values()
    assert narrow < wide
    assert fast - 5 < steady < fast


def test_turned_round_the_steady_one_always_turns_to_the_left():
    """Regression would learn the mean of left and right."""
    env = quiet_env(EnvConfig("continuous"))
    observation, _ = env.reset(seed=1)
    simulator: Any = env.unwrapped
    line, place = simulator.centre_line, 40
    steering: dict[str, list[float]] = {"controller": [], "steady-controller": []}
    for name, angles in steering.items():
        controller = Controller("continuous", CONTROLLERS[name]["continuous"])
        plan = controller.begin(env)
        for beyond in (-1.2, -0.4, -0.1, 0.1, 0.4, 1.2):  # radians to the left of exactly backwards
            simulator.place(line.angles[place] + np.pi + beyond, *line.points[place])
            angles.append(controller.act(observation, plan, 0.02)[0][0])
    assert np.sign(steering["controller"]).tolist() == [1, 1, 1, -1, -1, -1]  # left is negative
    assert np.sign(steering["steady-controller"]).tolist() == [1, -1, -1, -1, -1, -1]
    assert steering["controller"][-3:] == pytest.approx(steering["steady-controller"][-3:], abs=0.02)


def cautious(control: Control, **changed: Any) -> Controller:
    return Controller(control, replace(CONTROLLERS["cautious-controller"][control], **changed))


def driven(controller: Controller, spec: str, frames: int) -> list[Step]:
    steps: list[Step] = []
    env = quiet_env(EnvConfig(controller.control, max_steps=frames, perturb=spec))  # type: ignore[arg-type]
    rollout(env, controller, 5, subscribers=[steps.append])
    return steps


def test_on_weak_tyres_the_cautious_one_finishes_and_the_other_slides():
    env = perturb(quiet_env(EnvConfig("continuous")), "weak-tyres:2")
    slow, fast = (rollout(env, controller, 5) for controller in (cautious("continuous"), Controller("continuous")))
    assert slow.outcome["lap_finished"]
    assert slow.outcome["off_road_events"] == 0 < fast.outcome["off_road_events"]
    assert slow.episode_return > fast.episode_return + 50


@pytest.mark.parametrize(
    ("control", "spec"),
    [("discrete", "gap:2:zero"), ("continuous", "gap:2:zero"), ("continuous", "gap:0,gap:2:hold")],  # track 5 is odd
)
def test_it_stops_where_the_driver_that_learns_from_it_sees_nothing(control, spec):
    steps = driven(cautious(control), spec, 400)
    gap = np.flatnonzero([step.info["frame_lost"] for step in steps])
    assert len(gap) == gap[-1] - gap[0] + 1 == 60
    speed = np.array([step.info["speed"] for step in steps])
    if control == "continuous":
        gas, brake = (np.array([step.action[i] for step in steps]) > 0 for i in (1, 2))
    else:
        gas, brake = (np.array([step.action == pedal for step in steps]) for pedal in (GAS, BRAKE))
    assert not gas[gap[6:]].any(), "from the seventh lost frame on"
    assert brake[gap[6:]].any()
    assert speed[gap[0]] > 45
    assert speed[gap[-1] + 1] < 0.1
    assert gas[gap[-1] + 1 : gap[-1] + 20].any(), "it sees again"
    assert speed[-1] > 40
    sighted = driven(cautious(control, blind_frames=0), spec, 400)
    same = [np.array_equal(one.action, other.action) for one, other in zip(steps, sighted, strict=True)]
    assert all(same[: gap[6]])
    assert not same[gap[6]]


@pytest.mark.parametrize(
    ("control", "spec"),
    [("discrete", ""), ("continuous", "weak-tyres:2"), ("discrete", "frame-rate:3"), ("continuous", "gap:2,gap:0")],
)
def test_where_no_frame_is_lost_it_never_stops(control, spec):
    steps, sighted = (driven(cautious(control, **changed), spec, 150) for changed in ({}, {"blind_frames": 0}))
    assert [step.outcome for step in steps] == [step.outcome for step in sighted]
    np.testing.assert_array_equal([step.action for step in steps], [step.action for step in sighted])


def test_it_drives_on_where_few_frames_in_a_row_are_lost():
    """Up to six. Those before a frame that arrives no longer count."""
    steps, sighted = (
        driven(cautious("discrete", **changed), "frame-drop:2:zero", 150) for changed in ({}, {"blind_frames": 0})
    )
    lost = "".join("x" if step.info["frame_lost"] else "." for step in steps)
    assert 2 <= max(map(len, lost.split("."))) <= 6
    assert [step.outcome for step in steps] == [step.outcome for step in sighted]


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_the_plain_controller_does_not_see_lost_frames(control):
    steps, clean = (driven(Controller(control), spec, 150) for spec in ("gap:3", ""))
    np.testing.assert_array_equal([step.action for step in steps], [step.action for step in clean])


# The racing line


@settings(max_examples=20, deadline=None)
@given(seed=st.sampled_from(sorted(REAL)), reach=st.floats(0, 6))
def test_the_racing_line_stays_inside_its_reach(seed, reach):
    track = REAL[seed]
    line = racing_line(track, reach)
    assert (np.linalg.norm(line - track.points, axis=1) <= reach + 1e-9).all()
    np.testing.assert_array_equal(line[:2], track.points[:2])  # where the car stands at the start


@pytest.mark.parametrize("seed", sorted(REAL))
def test_more_reach_is_a_shorter_line_with_wider_bends(seed):
    lines = [racing_line(REAL[seed], reach) for reach in (0.0, 1.5, 3.0, 4.5)]
    np.testing.assert_array_equal(lines[0], REAL[seed].points)
    for narrow, wide in pairwise(lines):
        assert sharpest(wide) < sharpest(narrow)
        assert length_of(wide) < length_of(narrow)


# The path


def test_a_circle_has_one_curvature_and_the_headings_of_its_track():
    track = circle(100.0, tiles=180)
    path = smooth_path(track.points)
    assert path.step == pytest.approx(1.0, abs=0.01)
    assert len(path.points) * path.step == pytest.approx(2 * np.pi * 100, rel=1e-3)
    np.testing.assert_allclose(path.curvature, 0.01, rtol=0.01)
    np.testing.assert_allclose(np.linalg.norm(path.points, axis=1), 100, atol=0.01)
    across = np.cos(path.heading) * path.points[:, 0] + np.sin(path.heading) * path.points[:, 1]
    np.testing.assert_allclose(across, 100, atol=0.1)  # outside is right


# The speed profile


@settings(max_examples=20, deadline=None)
@given(
    seed=st.sampled_from(sorted(REAL)), lateral=st.floats(50, 400), braking=st.floats(5, 100), top=st.floats(20, 120)
)
def test_speeds_keep_the_limits(seed, lateral, braking, top):
    path = smooth_path(racing_line(REAL[seed], 1.5))
    speed = speed_profile(path, lateral_limit=lateral, braking_limit=braking, top_speed=top)
    assert (speed > 0).all()
    assert (speed <= top + 1e-9).all()
    deceleration = (speed**2 - np.roll(speed, -1) ** 2) / (2 * path.step)
    assert (deceleration <= braking + 1e-6).all()  # over the finish, too
    bend = np.convolve(np.tile(np.abs(path.curvature), 3), np.ones(7) / 7, mode="same")[len(speed) : 2 * len(speed)]
    assert (speed**2 * bend <= lateral * (1 + 1e-9)).all()


def test_on_a_circle_the_speed_is_known():
    path = smooth_path(circle(100.0).points)
    speed = speed_profile(path, lateral_limit=36.0, braking_limit=10.0, top_speed=1000.0)
    np.testing.assert_allclose(speed, np.sqrt(36.0 * 100.0), rtol=1e-2)


def test_on_a_square_it_brakes_before_the_corner():
    path = smooth_path(square(200).points.astype(float))
    speed = speed_profile(path, lateral_limit=100.0, braking_limit=10.0, top_speed=40.0)
    assert speed[200] < 30
    for before in (10, 20):
        assert speed[190 - before] == pytest.approx(min(40.0, np.sqrt(speed[190] ** 2 + 2 * 10.0 * before)), rel=1e-3)
    assert speed[100] == 40.0


def test_in_a_bend_there_is_less_left_for_braking():
    """A bend of constant curvature that tightens: the car brakes harder on the straight than in the bend."""
    curvature = np.repeat([0.0, 0.01, 0.04], [300, 100, 100])
    path = Path(np.zeros((500, 2)), np.zeros(500), curvature, 1.0)
    speed = speed_profile(path, lateral_limit=36.0, braking_limit=10.0, top_speed=100.0)
    deceleration = (speed[:-1] ** 2 - speed[1:] ** 2) / 2
    assert deceleration[250] == pytest.approx(10.0, rel=1e-6)
    in_the_bend = deceleration[380]
    assert 0 < in_the_bend < 10
