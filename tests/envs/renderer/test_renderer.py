"""The fast renderer changes nothing but pixels, and hardly those."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pygame
import pytest
from gymnasium.envs.box2d.car_dynamics import Car
from gymnasium.envs.box2d.car_racing import PLAYFIELD, WINDOW_H, WINDOW_W

from nac_drive.data_collection.controller.controller import Controller
from nac_drive.envs import BAR_TOP, ActionRepeat, EnvConfig, Renderer, Step, make_env, rollout
from nac_drive.envs.renderer.car import CAR_BOTTOM, CAR_LEFT, CAR_RIGHT, CAR_TOP
from nac_drive.envs.renderer.status_bar import SCORE_W, StatusBar, score
from tests.envs.episodes import FULL_GAS, blind, native, play, random_actions

GROUND = np.s_[:BAR_TOP, :]
SCORE, INDICATORS = np.s_[BAR_TOP:, :SCORE_W], np.s_[BAR_TOP:, SCORE_W:]
CAR = np.s_[CAR_TOP:CAR_BOTTOM, CAR_LEFT:CAR_RIGHT]
ZOOM_FRAMES = 50


def fast(control: Any = "discrete", **settings: Any) -> gym.Env:
    return make_env(EnvConfig(control, renderer="fast"), **settings)


def expert_actions(control: Any, frames: int, seed: int) -> list[Any]:
    steps: list[Step] = []
    env = blind(make_env(EnvConfig(control, max_steps=frames)))
    rollout(env, Controller(control), seed, subscribers=[steps.append])
    return [step.action for step in steps]


def pose(env: gym.Env) -> list[float]:
    """Everything that moves: position, angle and velocities of the hull and the wheels, and the wheels' phases."""
    car = env.unwrapped.car  # type: ignore[attr-defined]
    bodies = [(*b.position, b.angle, *b.linearVelocity, b.angularVelocity) for b in (car.hull, *car.wheels)]
    return [*np.ravel(bodies), *(wheel.phase for wheel in car.wheels), *(wheel.omega for wheel in car.wheels)]


def side_by_side(control: Any, actions: list[Any], seed: int, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(N, 96, 96, 3) frames of ours and of gymnasium's from `start` on; everything else is equal, bit for bit."""
    ours, theirs = blind(fast(control)), native(control, draw=False)
    frames: tuple[list[np.ndarray], list[np.ndarray]] = [], []

    def draw() -> None:
        ours.unwrapped.observe = True  # type: ignore[attr-defined]
        del theirs.unwrapped._render  # type: ignore[attr-defined]

    if start == 0:
        draw()
    for i, (one, other) in enumerate(zip(play(ours, actions, seed), play(theirs, actions, seed), strict=True)):
        assert one[1:4] == other[1:4]
        assert pose(ours) == pose(theirs)
        if i < start:
            if i == start - 1:
                draw()
            continue
        for kept, frame in zip(frames, (one[0], other[0]), strict=True):
            assert frame.dtype == np.uint8
            kept.append(frame)
    return np.array(frames[0]), np.array(frames[1])


def assert_close(ours: np.ndarray, theirs: np.ndarray, mean: float, fraction: float) -> None:
    """Mean absolute error of all values, and fraction of pixels of which a channel is off by more than 16."""
    error = np.abs(ours.astype(np.int64) - theirs)
    assert error.mean() <= mean
    assert (error.max(axis=-1) > 16).mean() <= fraction


# Against gymnasium


@pytest.mark.parametrize(
    ("control", "actions", "seed"), [("discrete", random_actions, 2), ("continuous", expert_actions, 31)]
)
def test_nothing_but_pixels_changes_and_those_hardly(control, actions, seed):
    ours, theirs = side_by_side(control, actions(control, 130, seed), seed)
    for phase in (np.s_[:10], np.s_[10:ZOOM_FRAMES], np.s_[ZOOM_FRAMES:]):
        assert_close(ours[phase], theirs[phase], mean=0.5, fraction=0.006)
        assert_close(ours[phase][:, *GROUND], theirs[phase][:, *GROUND], mean=0.5, fraction=0.007)
        assert_close(ours[phase][:, *CAR], theirs[phase][:, *CAR], mean=3.0, fraction=0.03)
        assert_close(ours[phase][:, *INDICATORS], theirs[phase][:, *INDICATORS], mean=0.1, fraction=0.0)
        assert_close(ours[phase][:, *SCORE], theirs[phase][:, *SCORE], mean=0.1, fraction=0.0)
    assert np.abs(ours.astype(int) - theirs)[:, BAR_TOP:].max() <= 4


def test_frames_are_close_on_the_grass_and_where_the_car_skids():
    env = blind(make_env())
    actions = [3] * 70 + [4] * 10 + [1] * 60  # brakes block nothing at 0.8, so it skids by turning and by gas
    marks = [len(env.unwrapped.car.particles) for _ in play(env, actions, 1)]  # type: ignore[attr-defined]
    assert max(marks) > 0
    ours, theirs = side_by_side("discrete", actions, 1, start=70)
    assert_close(ours, theirs, mean=0.4, fraction=0.006)


@pytest.mark.parametrize("t", [0.1, 0.3, 0.7, 2.0])
def test_frames_are_close_from_every_pose_even_beyond_the_playfield(t):
    ours, theirs = fast(), native("discrete")
    rng = np.random.default_rng(0)
    for env in (ours, theirs):
        env.reset(seed=5)
    frames: list[tuple[np.ndarray, ...]] = []
    for _ in range(8):
        place = (rng.uniform(-np.pi, np.pi), *rng.uniform(-PLAYFIELD, PLAYFIELD, 2))
        for env in (ours, theirs):
            car_racing: Any = env.unwrapped
            car_racing.car.destroy()
            car_racing.car = Car(car_racing.world, *place)
            car_racing.t = t
        frames.append(tuple(env.step(0)[0] for env in (ours, theirs)))
    assert_close(*np.swapaxes(frames, 0, 1), mean=0.4, fraction=0.006)


@pytest.mark.filterwarnings("error")
def test_a_kerb_without_width_is_drawn_as_gymnasium_draws_it():
    """gymnasium lays a kerb on the centre line where two tiles point the same way, as on this track."""
    ours, theirs = fast(), native("discrete")
    for env in (ours, theirs):
        env.reset(seed=298)
    corners = ours.unwrapped.road_vertices  # type: ignore[attr-defined]
    (kerb, *_) = np.flatnonzero((corners[:, 0] == corners[:, 1]).all(axis=1))
    frames: list[tuple[np.ndarray, ...]] = []
    for angle in (0.0, 1.0):
        for env in (ours, theirs):
            car_racing: Any = env.unwrapped
            car_racing.car.destroy()
            car_racing.car = Car(car_racing.world, angle, *(corners[kerb].mean(axis=0) - 8))
            car_racing.t = 2.0
        frames.append(tuple(env.step(0)[0] for env in (ours, theirs)))
    assert_close(*np.swapaxes(frames, 0, 1), mean=0.4, fraction=0.006)


def test_the_score_is_gymnasiums():
    env: Any = native("discrete")
    env.reset(seed=0)
    for reward in (-250.4, -100.0, -12.0, -0.6, -0.4, 0.0, 9.5, 88.0, 123.4, 999.9, 1000.0):
        env.unwrapped.reward = reward
        theirs = env.unwrapped._render("state_pixels")[SCORE].astype(int)
        assert np.abs(theirs - score(f"{reward:04.0f}")).max() <= 1


def test_the_indicators_are_gymnasiums():
    """Random values: both signs, values below the threshold, indicators over the edge of the window."""
    env: Any = native("discrete").unwrapped
    rng = np.random.default_rng(0)
    bar = StatusBar()
    for case in range(90):
        scale = 10.0 ** rng.uniform(-6, 0, 4) if case % 3 else np.ones(4)
        hull = SimpleNamespace(
            linearVelocity=tuple(rng.normal(0, 60, 2) * scale[0]), angularVelocity=rng.normal(0, 9) * scale[1]
        )
        joint = SimpleNamespace(angle=rng.uniform(-0.5, 0.5) * scale[2])
        wheels = [SimpleNamespace(omega=omega * scale[3], joint=joint) for omega in rng.normal(0, 120, 4)]
        env.car, env.surf = SimpleNamespace(hull=hull, wheels=wheels), pygame.Surface((WINDOW_W, WINDOW_H))
        env._render_indicators(WINDOW_W, WINDOW_H)
        theirs = env._create_image_array(env.surf, (96, 96))[BAR_TOP:].astype(int)
        ours = np.empty((96 - BAR_TOP, 96, 3), np.uint8)
        bar.draw(ours, env.car)
        assert np.abs(ours - theirs).max() <= 8, case
        assert np.abs(ours - theirs).mean() <= 0.2, case


def test_render_returns_gymnasiums_image_with_the_fast_renderer_too():
    ours, theirs = fast(render_mode="rgb_array"), native("discrete", draw=False, render_mode="rgb_array")
    for env in (ours, theirs):
        for _ in play(env, random_actions("discrete", 60, 1), 1):
            pass
    np.testing.assert_array_equal(ours.render(), theirs.render())  # type: ignore[arg-type]


# Against itself


def test_the_same_episode_gives_the_same_frames_in_a_used_environment():
    used, actions = fast(), random_actions("discrete", 60, 3)
    first = [outcome[0] for outcome in play(used, actions, 3)]
    list(play(used, actions[:20], 4))
    for fresh in (used, fast()):
        np.testing.assert_array_equal(first, [outcome[0] for outcome in play(fresh, actions, 3)])


def test_repainted_tiles_look_as_if_painted_so_at_first():
    env = fast()
    *_, last = play(env, expert_actions("discrete", 200, 7), 7)
    car_racing: Any = env.unwrapped
    assert last[4]["tiles_visited"] > 20
    assert (car_racing._road_colors[:, 0] == 102).sum() > last[4]["tiles_total"] / 3 + 10
    renderer = Renderer((102, 204, 102), (102, 230, 102))
    renderer.begin(car_racing.road_vertices, car_racing._road_colors.copy())
    np.testing.assert_array_equal(renderer.draw(car_racing.car, 16.2, car_racing.reward + 0.1), last[0])


def test_every_frame_is_an_array_of_its_own():
    env = fast()
    frames = [outcome[0] for outcome in play(env, [3] * 3, 0)]
    before = [frame.copy() for frame in frames]
    env.step(3)
    env.reset(seed=1)
    np.testing.assert_array_equal(frames, before)


def test_the_ground_is_painted_at_the_first_frame_that_is_drawn():
    env = blind(fast())
    list(play(env, [3] * 5, 0))
    assert not env.unwrapped._ground_is_painted  # type: ignore[attr-defined]


@pytest.mark.parametrize("renderer", ["gymnasium", "fast"])
def test_look_returns_the_frame_of_the_step(renderer):
    seeing, blinded = (make_env(EnvConfig(renderer=renderer)) for _ in range(2))
    actions = random_actions("discrete", 54, 2)
    for one, _ in zip(play(seeing, actions, 2), play(blind(blinded), actions, 2), strict=True):
        looked = blinded.unwrapped.look()  # type: ignore[attr-defined]
        np.testing.assert_array_equal(one[0], looked)
    assert not blinded.unwrapped.observe  # type: ignore[attr-defined]
    assert seeing.unwrapped.reward == blinded.unwrapped.reward  # type: ignore[attr-defined]


# Action repeat


@pytest.mark.parametrize("renderer", ["gymnasium", "fast"])
def test_action_repeat_sums_rewards_and_shows_the_last_frame(renderer):
    config = EnvConfig(mask_bar=True, max_steps=43, renderer=renderer)
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
    env = ActionRepeat(fast(), 5)
    car_racing: Any = env.unwrapped
    env.reset(seed=0)
    drawn = []
    draw = car_racing._draw
    monkeypatch.setattr(car_racing, "_draw", lambda renderer: drawn.append(1) or draw(renderer))
    env.step(3)
    assert len(drawn) == 1
    blind(env)
    env.step(3)
    assert len(drawn) == 1
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


# Configuration


def test_an_old_config_means_gymnasiums_renderer():
    old = {"control": "discrete", "mask_bar": False, "max_steps": 1000}
    assert EnvConfig(**old) == EnvConfig(renderer="gymnasium")
    assert make_env(EnvConfig(**old)).unwrapped.renderer == "gymnasium"  # type: ignore[attr-defined]


def test_an_unknown_renderer_is_named():
    for make in (lambda: EnvConfig(renderer="opengl"), lambda: gym.make("nac_drive/CarRacing-v0", renderer="opengl")):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"renderer must be one of \('gymnasium', 'fast'\), got 'opengl'"):
            make()
