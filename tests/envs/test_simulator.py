"""The compiled simulator is gymnasium's, bit for bit and pixel for pixel; benchmarks/proof.py does it for hours."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from nac_drive.data_collection.controller.controller import Controller
from nac_drive.envs import CarRacing, EnvConfig, make_env, rollout
from nac_drive.envs.branches import branch, go_back
from nac_drive.envs.gymnasium_world import GymnasiumWorld, read_road
from nac_drive.envs.native.check import STORED, compiled, digest_of_drive
from nac_drive.envs.world import COLORS, World
from tests.envs.episodes import blind, native, play
from tests.slow import slow_but

KINDS = ("random", "violent", "lazy", "spin")
COMPARED = (
    "speed",
    "lateral_offset",
    "heading_error",
    "position",
    "reward",
    "wheels_off_road",
    "visited_count",
    "crash",
)


def actions_of(kind: str, frames: int, seed: int) -> np.ndarray:
    """Actions (frames, 3) of one kind of driving."""
    rng = np.random.default_rng(seed)
    actions = np.zeros((frames, 3))
    for t in range(frames):
        if kind == "random":
            actions[t] = rng.uniform(-1, 1), rng.uniform(0, 1), rng.uniform(0, 1) * (rng.random() < 0.3)
        elif kind == "violent":
            changed = rng.random() < 0.1
            actions[t] = (
                (rng.choice([-1, 0, 1]), rng.choice([0, 1]), rng.choice([0, 0, 0.5, 1])) if changed else actions[t - 1]
            )
        elif kind == "lazy":  # the car rests, so that its bodies fall asleep
            actions[t] = rng.choice([-1, 0, 1]) * (rng.random() < 0.02), 0.3 * (rng.random() < 0.05), 0
        else:
            actions[t] = 1, 1, 0
    return actions.astype(np.float32).astype(np.float64)


@pytest.fixture(scope="module")
def library() -> Any:
    found = compiled()
    assert found is not None, "this platform has no compiled simulator"
    return found


def begun(world: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    while not world.build(0, rng.random(24)):
        pass
    world.begin(0)
    return world


def assert_same_bits(ours: World, theirs: GymnasiumWorld, where: Any) -> None:
    one, other = ours.cars[0], theirs.cars[0]
    for name in ("x", "y", "angle", "vx", "vy", "spin", "sin", "cos"):
        assert one["body"][name].tolist() == other["body"][name].tolist(), (where, name)
    for name in ("steer", "gas", "brake", "omega", "phase", "touched"):
        assert one["wheel"][name].tolist() == other["wheel"][name].tolist(), (where, name)
    for wheel in range(4):
        touched = one["wheel"]["touched"][wheel]
        assert sorted(one["wheel"]["tiles"][wheel, :touched]) == sorted(other["wheel"]["tiles"][wheel, :touched]), where
    for name in COMPARED:
        np.testing.assert_array_equal(one[name], other[name], err_msg=f"{where} {name}")
    assert (one["visited"] == other["visited"]).all(), where
    assert one["lap"]["furthest"] == other["lap"]["furthest"], where
    for name in ("off_road", "off_road_events", "crashes"):
        assert one["events"][name] == other["events"][name], (where, name)
    assert (ours.rewards[0], ours.terminated[0]) == (theirs.rewards[0], theirs.terminated[0]), where


@pytest.mark.parametrize("kind", slow_but(["random", "violent"], KINDS))
def test_every_number_of_the_car_is_gymnasiums(kind, library):
    """Three episodes in one environment: what Box2D's world keeps between episodes changes nothing."""
    ours, theirs = World(1, library), GymnasiumWorld()
    ours.intervenes = theirs.intervenes = kind == "violent"
    for seed in range(3):
        begun(ours, seed)
        begun(theirs, seed)
        count = int(ours.roads["tiles"][0])
        for name in ("line", "tile_of", "color", "polygon"):
            length = count if name == "line" else int(ours.roads["polygons"][0])
            np.testing.assert_array_equal(ours.roads[name][0, :length], theirs.roads[name][0, :length])
        for frame, action in enumerate(actions_of(kind, 180, seed)):
            ours.actions[0] = theirs.actions[0] = action
            ours.step()
            theirs.step()
            assert_same_bits(ours, theirs, (kind, seed, frame))
            if ours.terminated[0]:
                break


def test_a_place_beyond_the_road_off_the_playfield_and_in_motion(library):
    ours, theirs = begun(World(1, library), 3), begun(GymnasiumWorld(), 3)
    for angle, x, y, *motion in (
        (0.3, 0.0, 0.0), (0.3, 0.0, 0.0, (11.3, -42.7), 0.0), (1.7, 100.0, -20.0, (31.1, 20.3), -14.3),
        (2.0, 320.0, 10.0), (-4.0, 30.0, -331.0),
    ):  # fmt: skip
        for world in (ours, theirs):
            world.place(0, angle, x, y, *motion)
        for frame in range(60):
            ours.actions[0] = theirs.actions[0] = (0.1, 1.0, 0.0)
            ours.step()
            theirs.step()
            assert_same_bits(ours, theirs, (x, frame))
            np.testing.assert_array_equal(ours.draw(), theirs.draw()) if frame % 20 == 0 else None
    assert ours.terminated[0]
    assert ours.rewards[0] == -100


@pytest.mark.parametrize(("grip", "percent"), [(0.7, 0.95), (1.0, 0.0)])
def test_slippery_tiles_and_laps_that_end_early(grip, percent, library):
    ours, theirs = World(1, library), GymnasiumWorld()
    for world in (ours, theirs):
        rng = np.random.default_rng(5)
        while not world.build(0, rng.random(24), COLORS, percent):
            pass
        world.begin(0)
        world.roads["grip"] = grip
    for frame, action in enumerate(actions_of("random", 200, 5)):
        ours.actions[0] = theirs.actions[0] = action
        ours.step()
        theirs.step()
        assert_same_bits(ours, theirs, frame)


@pytest.mark.parametrize("randomize", [False, True])
def test_every_pixel_is_gymnasiums(randomize):
    """The zoom-in, road, grass and kerbs, of the default colours and of random ones."""
    ours = CarRacing(control="continuous", domain_randomize=randomize)
    theirs = gym.make("CarRacing-v3", domain_randomize=randomize, disable_env_checker=True)
    for seed in (2, 11):
        frame, expected = ours.reset(seed=seed)[0], theirs.reset(seed=seed)[0]
        np.testing.assert_array_equal(frame, expected)
        driver = Controller("continuous")
        state = driver.begin(ours)
        for step in range(75):
            action, state = driver.act(frame, state, 0.02)
            frame, reward, terminated, *_ = ours.step(action)
            expected, *outcome = theirs.step(action)
            np.testing.assert_array_equal(frame, expected, err_msg=f"{seed} {step}")
            assert [reward, terminated] == outcome[:2]


STEEP_AT_A_CORNER = (
    ((-59, 788), (-34, 1002), (21, 996), (-3, 781)), ((-48, 793), (-41, 971), (5, 970), (-1, 791)),
    ((-34, 756), (-32, 880), (0, 880), (-1, 755)),
)  # fmt: skip
"""Quads in pixels of the window that have an edge of which clipping leaves one pixel, far from their other pixels."""


def quads_at_the_border(rng: np.random.Generator, count: int) -> np.ndarray:
    """Quads (count, 4, 2) of any shape in pixels of the window, most of them across its border."""
    where = rng.uniform((-40, 60), (1040, 840), (count, 2))
    side, corner = rng.integers(3, size=(2, count))
    where[side == 0, 0] = 1000 * rng.integers(2, size=(side == 0).sum()) + rng.normal(0, 4, (side == 0).sum())
    where[corner == 0, 1] = 800 + rng.normal(0, 4, (corner == 0).sum())
    long, wide = 10 ** rng.uniform(0, 2, (2, count))
    angle = rng.choice([0, np.pi / 2, np.pi / 4], count) + rng.normal(0, 0.3, count) * rng.integers(2, size=count)
    corners = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * np.stack((long, wide), axis=1)[:, None] / 2
    corners += rng.normal(0, 1, corners.shape) * rng.choice([0, 2, 20], (count, 1, 1))
    turn = np.stack((np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)), axis=1).reshape(-1, 2, 2)
    return corners @ turn + where[:, None]


@pytest.mark.parametrize("seed", range(4))
def test_roads_of_any_shape_across_the_border_have_every_pixel(seed, library):
    """Lines that are clipped, crossed or folded quads, steep and level ones, in the colours of tiles and kerbs."""
    rng, ours, theirs = np.random.default_rng(seed), World(1, library), begun(GymnasiumWorld(), seed)
    for _ in range(60):  # the view is at its end
        theirs.step()
    begun(ours, seed)
    ours.cars[:] = theirs.cars
    ours.cars["painted"] = False
    hull, zoom, steep = theirs.env.car.hull, 16.2, np.array(STEEP_AT_A_CORNER)
    cos, sin = np.cos(hull.angle), np.sin(hull.angle)
    for frame in range(8):  # coordinates lose their fraction, towards 0
        pixels = np.concatenate((quads_at_the_border(rng, 150), steep + np.where(steep < 0, -0.5, 0.5)))
        away = (pixels - (500, 200)) / zoom
        polygons = away @ np.array([(cos, sin), (-sin, cos)]) + np.array(tuple(hull.position))
        colors = rng.integers(256, size=(len(polygons), 3)).tolist()
        kerb = rng.random(len(polygons)) < 0.3
        theirs.env.road_poly = [
            (polygon, tuple(color) if is_kerb else color)
            for polygon, color, is_kerb in zip(polygons.tolist(), colors, kerb, strict=True)
        ]
        read_road(theirs.env, ours.roads[0])
        np.testing.assert_array_equal(ours.draw(), theirs.draw(), err_msg=f"frame {frame}")


def test_a_score_beyond_the_table_is_drawn():
    ours, theirs = CarRacing(), native("discrete")
    for env in (ours, theirs):
        env.reset(seed=0)
    for score in (-12_345.0, 4_321.5, -0.4, 1100.0, -1000.0, 812.5):
        ours._cars["reward"], theirs.unwrapped.reward = score, score  # type: ignore[attr-defined]
        np.testing.assert_array_equal(ours.step(0)[0], theirs.step(0)[0], err_msg=str(score))


# Saved states


@pytest.mark.parametrize("control", ["discrete", "continuous", "pulsed"])
def test_an_episode_goes_on_from_a_saved_state_with_the_same_bits(control):
    env = CarRacing(control=control)
    env.reset(seed=7)
    rng = np.random.default_rng(1)

    def action() -> Any:
        numbers = rng.uniform((-1, 0, 0), (1, 1, 0.2)).astype(np.float32)
        return int(rng.integers(5)) if control == "discrete" else numbers

    actions = [action() for _ in range(300)]
    for step in actions[:120]:
        env.step(step)
    state = env.save_state()
    assert len(pickle.dumps(state)) < 8_000
    first = [env.step(step) for step in actions[120:]] + [env.reset()]
    elsewhere = CarRacing(control=control)
    for other in (env, elsewhere, pickle.loads(pickle.dumps(env))):
        other.restore_state(pickle.loads(pickle.dumps(state)))
        assert other.frame == state.frame == 120
        second = [other.step(step) for step in actions[120:]] + [other.reset()]
        for one, two in zip(first, second, strict=True):
            np.testing.assert_array_equal(one[0], two[0])
            assert one[1:] == two[1:]


def test_a_restored_frame_is_the_one_that_was_saved():
    env = CarRacing()
    env.reset(seed=3)
    for _ in range(30):
        frame, *_ = env.step(3)
    state, info = env.save_state(), env._info(0.0)
    env.reset(seed=4)
    assert env.restore_state(state) == info
    np.testing.assert_array_equal(env.look(), frame)


def test_a_state_of_another_version_is_refused():
    env = CarRacing()
    env.reset(seed=3)
    state = env.save_state()
    saved = pickle.dumps(state).replace(state.car, state.car[:-8])
    with pytest.raises(ValueError, match=r"car must hold \d+ bytes, got \d+: another version of nac-drive saved"):
        replace(state, car=state.car[:-8])
    with pytest.raises((ValueError, pickle.UnpicklingError)):
        pickle.loads(saved)


def test_branches_are_futures_of_one_moment():
    """Each branch drives as the environment does from the state, whatever the others do; one can go back."""
    env = CarRacing(control="continuous")
    env.reset(seed=9)
    for action in actions_of("random", 70, 9):
        env.step(action)
    state, futures = env.save_state(), np.stack([actions_of("violent", 60, seed) for seed in range(5)])
    world = branch(state, 5)
    for _ in range(2):
        rewards = []
        for actions in futures.swapaxes(0, 1):
            world.actions[:] = actions
            world.step()
            rewards.append(world.rewards.copy())
        for row, future in enumerate(futures):
            env.restore_state(state)
            assert [env.step(action)[1] for action in future] == np.array(rewards)[:, row].tolist()
            assert env._cars.tobytes() == world.cars[row : row + 1].tobytes()
        go_back(world, state)
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        branch(state, 0)


# Where the numbers differ


@pytest.mark.filterwarnings("error")
def test_the_check_is_that_of_the_library_and_of_gymnasium_whatever_is_stored(library, monkeypatch):
    digest = digest_of_drive(World(1, library))
    assert digest == digest_of_drive(GymnasiumWorld())
    assert digest == STORED or sys.platform != "linux"
    monkeypatch.setattr("nac_drive.envs.native.check.STORED", "of another platform")
    compiled.cache_clear()
    try:
        assert compiled() is not None
    finally:
        compiled.cache_clear()


def test_gymnasium_drives_where_the_numbers_differ(monkeypatch):
    expected = play(blind(make_env(EnvConfig("continuous"))), list(actions_of("random", 40, 0).astype(np.float32)), 6)
    wanted = list(expected)
    monkeypatch.setattr("nac_drive.envs.native.check.digest_of_drive", lambda world: type(world).__name__)
    compiled.cache_clear()
    try:
        with pytest.warns(
            RuntimeWarning,
            match=r"drives gymnasium's own simulator.*its numbers differ .*\(check World, gymnasium's GymnasiumWorld\)",
        ):
            env = make_env(EnvConfig("continuous"))
        outcomes = list(play(env, list(actions_of("random", 40, 0).astype(np.float32)), 6))
        assert [outcome[1:] for outcome in outcomes] == [outcome[1:] for outcome in wanted]
        with pytest.raises(NotImplementedError, match="saves no states"):
            env.unwrapped.save_state()  # type: ignore[attr-defined]
    finally:
        compiled.cache_clear()


def test_a_whole_lap_of_the_controller_is_gymnasiums():
    env = blind(make_env(EnvConfig("continuous")))
    steps: list[Any] = []
    episode = rollout(env, Controller("continuous"), 4, subscribers=[steps.append])
    theirs = native("continuous", draw=False)
    outcomes = [outcome[1:4] for outcome in play(theirs, [step.action for step in steps], 4)][1:]
    assert outcomes == [(step.reward, step.terminated, step.truncated) for step in steps]
    assert episode.outcome["lap_finished"]
