"""CarRacing with telemetry is gymnasium's CarRacing-v3, bit for bit, and its telemetry is true."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.box2d import car_racing as gymnasium_car_racing
from gymnasium.envs.box2d.car_dynamics import Car
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_env_of_stable_baselines3

from nac_drive.data_collection.controller.controller import Controller
from nac_drive.envs import (
    BAR_TOP,
    TRACK_HALF_WIDTH,
    CarRacing,
    Control,
    EnvConfig,
    Step,
    make_env,
    rollout,
    wrap_angle,
)
from tests.envs.episodes import CONTROLS, FULL_GAS, blind, native, play, random_actions


def assert_same(ours: Iterator[tuple[Any, ...]], theirs: Iterator[tuple[Any, ...]]) -> list[dict[str, Any]]:
    infos = []
    for frame, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert one[0].dtype == other[0].dtype
        np.testing.assert_array_equal(one[0], other[0], err_msg=f"frame {frame}")
        assert one[1:4] == other[1:4], frame
        infos.append(one[4])
    return infos


# Parity with gymnasium


@pytest.mark.parametrize(
    ("control", "seed"), [pytest.param("discrete", 12_345, marks=pytest.mark.slow), ("continuous", 0)]
)
def test_frames_and_rewards_are_gymnasiums_bit_for_bit(control, seed):
    ours, theirs = make_env(EnvConfig(control)), native(control)
    actions = random_actions(control, 120, seed)
    infos = assert_same(play(ours, actions, seed), play(theirs, actions, seed))
    assert [info["zooming"] for info in infos] == [True] * 50 + [False] * 71
    assert max(info["wheels_off_road"] for info in infos) == 4
    assert max(info["tiles_visited"] for info in infos) > 3
    # A second episode in the same environments, the track drawn from the generator that the first one left.
    assert_same(play(ours, actions[:5], None), play(theirs, actions[:5], None))


def test_the_car_is_gymnasiums_to_the_last_bit_skid_marks_and_blocked_wheels_included():
    def state(car: Any, traces: Any) -> list[Any]:
        wheels = [(w.omega, w.phase, w.gas, w.brake, w.joint.angle) for w in car.wheels]
        motion = [*car.hull.position, car.hull.angle, *car.hull.linearVelocity, car.hull.angularVelocity]
        return [motion, wheels, [(trace.grass, trace.poly) for trace in traces]]

    ours = blind(make_env(EnvConfig("continuous"), render_mode="rgb_array"))
    theirs = native("continuous", draw=False)
    simulator, their_simulator = ours.unwrapped, theirs.unwrapped
    for env in (ours, theirs):
        env.reset(seed=6)
    rng, grounds = np.random.default_rng(6), set()
    for frame in range(400):
        if frame % 12 == 0:
            steer, gas = rng.uniform(-0.3, 0.3), rng.choice([0.0, 0.6, 1.0])
            action = np.array([steer, gas, 0.0 if gas else rng.choice([0.05, 0.5, 1.0])], np.float32)
        for env in (ours, theirs):
            env.step(action)
        found = state(simulator.car, simulator._window.car.particles)  # type: ignore[attr-defined]
        assert found == state(their_simulator.car, their_simulator.car.particles), frame  # type: ignore[attr-defined]
        grounds |= {grass for grass, _ in found[-1]}
    assert grounds == {False, True}


def test_render_returns_gymnasiums_image():
    ours = blind(make_env(render_mode="rgb_array"))
    theirs = native("discrete", draw=False, render_mode="rgb_array")
    for env in (ours, theirs):
        for _ in play(env, random_actions("discrete", 60, 1), 1):
            pass
    np.testing.assert_array_equal(ours.render(), theirs.render())  # type: ignore[arg-type]


@pytest.mark.parametrize("control", CONTROLS)
def test_a_whole_lap_pays_and_ends_as_gymnasiums_does(control):
    steps: list[Step] = []
    episode = rollout(blind(make_env(EnvConfig(control))), Controller(control), 4, subscribers=[steps.append])
    theirs = native(control, draw=False)
    outcomes = [outcome[1:4] for outcome in play(theirs, [step.action for step in steps], 4)][1:]
    assert outcomes == [(step.reward, step.terminated, step.truncated) for step in steps]
    assert episode.terminated
    assert episode.length < 1000
    assert episode.outcome["lap_finished"]
    assert episode.outcome["completion"] == 1.0
    assert [step.outcome["lap_finished"] for step in steps].count(True) == 1


def test_a_lap_is_detected_where_gymnasium_misses_it():
    """One tile is never counted: gymnasium drives on to the time limit, the lap ends where the car passes the start."""
    env = blind(make_env())
    car_racing: Any = env.unwrapped

    def begin(env: gym.Env) -> Any:
        car_racing._cars["visited"][0, 50] = True
        return Controller.begin(controller, env)

    controller, steps = Controller(), []
    controller.begin = begin  # type: ignore[method-assign]
    episode = rollout(env, controller, 4, subscribers=[steps.append])
    assert not episode.terminated
    assert episode.length == 1000
    assert episode.outcome["tiles_visited"] == episode.outcome["tiles_total"] - 1
    finished = [step.outcome["lap_finished"] for step in steps]
    at = finished.index(True)
    assert finished == [False] * at + [True] * (1000 - at)
    assert steps[at - 1].outcome["completion"] > 0.95
    assert car_racing.lap.finished


def test_tiles_that_the_car_jumps_over_are_missed_until_it_touches_them():
    env = blind(make_env())
    car_racing: Any = env.unwrapped
    counts: list[tuple[int, int, int]] = []  # furthest tile, missed, not touched

    def jump(step: Step) -> None:
        if len(counts) == 200:
            place = car_racing.pose.index + 15
            line = car_racing.centre_line
            car_racing.place(line.angles[place], *line.points[place])
        untouched = step.outcome["tiles_total"] - step.outcome["tiles_visited"]
        counts.append((car_racing.lap.furthest, car_racing.tiles_missed(), untouched))

    total = rollout(env, Controller(), 4, subscribers=[jump]).outcome["tiles_total"]
    assert {missed for _, missed, _ in counts[:200]} == {0}
    first_lap = {missed for furthest, missed, _ in counts[240:] if furthest < total}
    assert len(first_lap) == 1
    assert 8 <= first_lap.pop() <= 15
    later = [(missed, untouched) for furthest, missed, untouched in counts if furthest >= total + 3]
    assert all(missed == untouched for missed, untouched in later)
    assert later[-1][0] < later[0][0], "the second lap touches them"
    env.reset(seed=4)
    assert car_racing.tiles_missed() == 0


@pytest.mark.parametrize("control", CONTROLS)
def test_leaving_the_playfield_ends_the_episode_as_gymnasiums_rule_does(control):
    ours, theirs = blind(make_env(EnvConfig(control))), native(control, draw=False)
    simulator: Any = theirs.unwrapped
    for env in (ours, theirs):
        env.reset(seed=3)
    place = (0.0, 20.0, gymnasium_car_racing.PLAYFIELD - 0.5)  # looks at the edge
    ours.unwrapped.place(*place)  # type: ignore[attr-defined]
    simulator.car.destroy()
    simulator.car = Car(simulator.world, *place)
    infos, ended = [], False
    while not ended:
        *outcome, info = ours.step(FULL_GAS[control])
        *expected, _ = theirs.step(FULL_GAS[control])
        assert outcome[1:] == expected[1:]
        infos.append(info)
        ended = outcome[2]
    assert 3 < len(infos) < 50
    assert (infos[-1]["crash"], infos[-1]["crashes"], infos[-1]["lap_finished"]) == ("outside", 1, False)


def test_the_time_limit_truncates():
    outcomes = list(play(blind(make_env(EnvConfig(max_steps=7))), [0] * 20, 0))
    assert [outcome[2:4] for outcome in outcomes] == [(False, False)] * 7 + [(False, True)]


def test_gymnasium_makes_it_by_name():
    env = gym.make("nac_drive/CarRacing-v0", crash="terminate")
    assert isinstance(env.unwrapped, CarRacing)
    assert env.unwrapped.crash == "terminate"
    assert env.action_space == gym.spaces.Discrete(5)
    assert env.spec is not None
    assert env.spec.max_episode_steps == 1000
    infos = assert_same(play(env, [3] * 20, 5), play(make_env(crash="terminate"), [3] * 20, 5))
    assert "heading_error" in infos[-1]


def test_control_is_one_word_with_one_default():
    by_name = gym.make("nac_drive/CarRacing-v0", control="continuous")
    assert by_name.action_space == make_env(EnvConfig(control="continuous")).action_space
    assert by_name.action_space.shape == (3,)
    defaults = [gym.make("nac_drive/CarRacing-v0"), make_env(), CarRacing()]
    assert all(env.action_space == gym.spaces.Discrete(5) for env in defaults)


@pytest.mark.filterwarnings("ignore:.*render_mode")
@pytest.mark.parametrize("config", [*map(EnvConfig, get_args(Control)), EnvConfig(mask_bar=True)])
def test_both_env_checkers_are_content(config, recwarn):
    check_env(make_env(config).unwrapped, skip_render_check=True)
    check_env_of_stable_baselines3(make_env(replace(config, max_steps=20)), skip_render_check=True)
    messages = [str(warning.message) for warning in recwarn if "stable_baselines3" in warning.filename]
    # Its one wish is an action space that is symmetric around 0. gymnasium's own space is not.
    assert all("symmetric" in message for message in messages)


# Telemetry


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("crash", ["ignore", "intervene"])
def test_tiles_completion_and_rewards_agree(control, crash):
    env = blind(make_env(EnvConfig(control), crash=crash))
    outcomes = list(play(env, random_actions(control, 400, seed=8), 8))
    total = outcomes[0][4]["tiles_total"]
    earned = np.cumsum([outcome[1] for outcome in outcomes])
    for frame, (*_, info) in enumerate(outcomes[1:], start=1):
        assert info["completion"] == info["tiles_visited"] / total
        assert info["tiles_total"] == total
        assert earned[frame] == pytest.approx(1000 * info["completion"] - 0.1 * frame)
    assert total == len(env.unwrapped.track)  # type: ignore[attr-defined]
    assert outcomes[-1][4]["tiles_visited"] > 5


def test_dt_is_zero_after_a_reset_and_a_fiftieth_of_a_second_later():
    env = blind(make_env())
    for _ in range(2):
        assert [info["dt"] for *_, info in play(env, [0] * 3, 0)] == [0.0, 0.02, 0.02, 0.02]


def test_after_a_reset_the_counts_are_those_of_a_new_episode():
    env = blind(make_env(crash="intervene"))
    last = list(play(env, [3] * 400, 1))[-1][4]
    assert last["interventions"] > 0
    info = next(play(env, [], 1))[4]
    counts = ("off_road", "off_road_events", "crash", "crashes", "interventions", "wheels_off_road", "lap_finished")
    assert [info[name] for name in counts] == [False, 0, None, 0, 0, 0, False]
    assert info["zooming"]
    assert info["speed"] == pytest.approx(0.0, abs=1e-6)
    assert (info["lateral_offset"], info["heading_error"]) == pytest.approx((0.0, 0.0), abs=0.05)


def test_signs_on_the_real_track():
    """Steering right turns the heading negative and the car to the right of the centre line, as the image shows."""
    for action, sign in ((1, 1), (2, -1)):
        env = blind(make_env())
        *_, info = list(play(env, [3] * 25 + [action] * 20, 6))[-1]
        *_, straight = list(play(env, [3] * 45, 6))[-1]
        assert sign * (straight["heading_error"] - info["heading_error"]) > 0.1
        assert sign * (info["lateral_offset"] - straight["lateral_offset"]) > 0.02
        car = env.unwrapped.car  # type: ignore[attr-defined]
        assert straight["speed"] == pytest.approx(np.hypot(*car.hull.linearVelocity))


# Crash modes


def drive_off(crash: Any, frames: int = 400) -> list[tuple[Any, ...]]:
    return list(play(blind(make_env(crash=crash)), [3] * frames, 1))


def test_a_crash_ends_the_episode_in_the_mode_terminate_only():
    ignored, ended = drive_off("ignore"), drive_off("terminate")
    at = next(frame for frame, (*_, info) in enumerate(ignored) if info["crash"])
    assert ignored[at][4]["crash"] in ("off_road", "heading")
    assert not ignored[at][2]
    assert len(ended) == at + 1
    assert ended[-1][2:4] == (True, False)
    assert [outcome[1] for outcome in ended] == [outcome[1] for outcome in ignored[: at + 1]]
    assert [info for *_, info in ended] == [info for *_, info in ignored[: at + 1]]
    assert {info["interventions"] for *_, info in ignored} == {0}
    assert sum(info["crash"] is not None for *_, info in ignored) == ignored[-1][4]["crashes"]


def test_an_intervention_sets_the_car_on_the_centre_line_at_rest_along_the_road():
    ignored = drive_off("ignore")
    at = next(frame for frame, (*_, info) in enumerate(ignored) if info["crash"])
    env = blind(make_env(crash="intervene"))
    outcomes = list(play(env, [3] * at, 1))
    assert [outcome[1:4] for outcome in outcomes] == [outcome[1:4] for outcome in ignored[: at + 1]]
    info = outcomes[-1][4]
    assert (info["crashes"], info["interventions"]) == (1, 1)
    assert info["wheels_off_road"] >= 3  # info describes the crash; the car has been moved after it
    car, track = env.unwrapped.car, env.unwrapped.centre_line  # type: ignore[attr-defined]
    pose = track.locate(car.hull.position, car.hull.angle)
    np.testing.assert_allclose(car.hull.position, track.points[pose.index], atol=1e-4)
    assert wrap_angle(car.hull.angle - track.angles[pose.index]) == pytest.approx(0.0, abs=1e-5)
    assert all(tuple(body.linearVelocity) == (0, 0) for body in (car.hull, *car.wheels))
    *_, after = env.step(0)
    assert after["wheels_off_road"] == 0
    assert not after["off_road"]
    assert after["speed"] < 1.0
    assert abs(after["lateral_offset"]) * TRACK_HALF_WIDTH < 0.5
    assert (after["crashes"], after["interventions"], after["crash"]) == (1, 1, None)


def test_it_intervenes_again_at_the_next_crash():
    *_, info = drive_off("intervene", 700)[-1]
    assert info["interventions"] == info["crashes"] >= 2


# What is drawn


def test_observe_off_changes_nothing_but_the_frames():
    seeing, blinded = make_env(), blind(make_env())
    actions = random_actions("discrete", 40, 2)
    drawn = []
    for one, other in zip(play(seeing, actions, 2), play(blinded, actions, 2), strict=True):
        assert one[1:] == other[1:]
        drawn.append(other[0])
    assert all(frame is drawn[0] for frame in drawn)
    blinded.unwrapped.observe = True  # type: ignore[attr-defined]
    np.testing.assert_array_equal(blinded.step(0)[0], seeing.step(0)[0])


def test_the_mask_blackens_the_status_bar_and_nothing_else():
    masked, clear = (make_env(EnvConfig(mask_bar=mask)) for mask in (True, False))
    actions = random_actions("discrete", 60, 3)
    for one, other in zip(play(masked, actions, 3), play(clear, actions, 3), strict=True):
        assert not one[0][BAR_TOP:].any()
        np.testing.assert_array_equal(one[0][:BAR_TOP], other[0][:BAR_TOP])
        np.testing.assert_array_equal(masked.unwrapped.state, other[0])  # type: ignore[attr-defined]
        assert one[1:] == other[1:]
    assert BAR_TOP == 84


def test_the_bar_begins_where_the_mask_does(monkeypatch):
    """gymnasium with and without its indicators differs in the rows from BAR_TOP on, and in no other."""
    with_bar, without = native("discrete", draw=False), native("discrete", draw=False)
    monkeypatch.setattr(without.unwrapped, "_render_indicators", lambda width, height: None)
    frames = []
    for env in (with_bar, without):
        list(play(env, [3] * 60, 1))
        frames.append(gymnasium_car_racing.CarRacing._render(env.unwrapped, "state_pixels"))  # type: ignore[arg-type]
    differing = np.flatnonzero((frames[0] != frames[1]).any(axis=(1, 2)))
    assert differing.min() >= BAR_TOP - 1
    assert set(range(BAR_TOP, 96)) <= set(differing)


# Refusals


@pytest.mark.parametrize(
    ("control", "action", "fix"),
    [
        ("discrete", 5, "Pass an integer 0-4"),
        ("discrete", -1, "Pass an integer 0-4"),
        ("discrete", 1.5, "Pass an integer 0-4"),
        ("discrete", np.array([0.0, 1.0, 0.0]), "Pass an integer 0-4"),
        ("continuous", [1.1, 0, 0], r"Clip steer to \[-1, 1\]"),
        ("continuous", [0, -0.1, 0], "gas and brake"),
        ("continuous", [0, np.nan, 0], "nan"),
        ("continuous", [np.inf, 0, 0], "inf"),
        ("continuous", [0.0, 0.0], "Clip"),
        ("continuous", 3, "Clip"),
    ],
)
def test_an_action_outside_the_space_is_refused_and_the_car_does_not_move(control, action, fix):
    env = blind(make_env(EnvConfig(control)))
    env.reset(seed=0)
    with pytest.raises(ValueError, match=f"action must lie in .*got .*{fix}|{fix}"):
        env.step(action)
    after = env.step(FULL_GAS[control])
    expected = list(play(blind(make_env(EnvConfig(control))), [FULL_GAS[control]], 0))[-1]
    assert (after[1], after[4]) == (expected[1], expected[4])


def test_a_list_is_as_good_as_an_array():
    one, other = (blind(make_env(EnvConfig("continuous"))) for _ in range(2))
    of_lists, of_arrays = play(one, [[0.5, 0.5, 0]] * 5, 0), play(other, [np.array([0.5, 0.5, 0])] * 5, 0)
    assert [outcome[1:] for outcome in of_lists] == [outcome[1:] for outcome in of_arrays]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"control": "joystick"}, r"control must be one of \('discrete', 'continuous', 'pulsed'\), got 'joystick'"),
        ({"max_steps": 0}, "max_steps must be at least 1, got 0"),
    ],
)
def test_a_bad_config_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        EnvConfig(**settings)


def test_a_bad_crash_mode_is_named():
    with pytest.raises(ValueError, match=r"crash must be one of .*intervene.*got 'explode'"):
        make_env(crash="explode")  # type: ignore[arg-type]


@pytest.mark.parametrize("driven", [False, True])
def test_a_closed_environment_is_released(driven):
    """Box2D holds it in a circle that garbage collection does not see: it stayed in memory for ever."""
    env = make_env(EnvConfig(max_steps=5))
    if driven:
        env.reset(seed=3)
        env.step(0)
    env.close()
    env.close()
    left = weakref.ref(env.unwrapped)
    del env
    gc.collect()
    assert left() is None
