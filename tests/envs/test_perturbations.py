"""Perturbed drives: literal timelines on a toy, properties on CarRacing, chance that is nobody else's."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.box2d.car_dynamics import Car
from gymnasium.utils.env_checker import check_env

from envs import CORRUPTIONS, PERTURBATIONS, EnvConfig, Step, make_env, perturb, rollout
from envs.disturbances import (
    ActionDelay,
    ActionFault,
    DelayedActions,
    FaultyActions,
    Stream,
    TyreGrip,
    WeakTyres,
)
from envs.frame_loss import FrameDrop, FrameLoss, Gaps, IrregularRate, SkippedFrames, StaleFrames
from envs.perturbations import parse
from tests.problems import ToyEnv

HIGHEST = [f"{name}:{len(levels)}" for name, levels in PERTURBATIONS.items()]
LOSSES = [
    f"{name}:3:{missing}"
    for name in ("frame-drop", "gap", "scattered-gaps", "frame-rate")
    for missing in ("hold", "zero", "skip")
]
ALL = "+".join(HIGHEST)


class Clock(ToyEnv):
    """Eight frames, 1/50 s apart, but for one that is late; any action may be taken."""

    DT = (0.0, 0.02, 0.02, 0.06, 0.02, 0.02, 0.02, 0.02, 0.02)

    def __init__(self, action_space: gym.Space = ToyEnv.action_space, crash: int | None = None):
        super().__init__(length=8)
        self.action_space, self.crash = action_space, crash

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, info | {"crash": "off" if self.frame == self.crash else None}


@dataclass(frozen=True)
class Scripted(FrameLoss):
    """Frames 2, 3, 6 and 8 are lost."""

    def lost(self, rng: np.random.Generator) -> Iterator[bool]:
        return (frame in (2, 3, 6, 8) for frame in itertools.count())


class Counter:
    """Drives by its own number of decisions."""

    def begin(self, env: gym.Env) -> int:
        return 1

    def act(self, observation: np.ndarray, state: int, dt: float) -> tuple[int, int]:
        return state % 5, state + 1


class Random:
    """Random actions, each held for some frames."""

    def begin(self, env: gym.Env) -> np.random.Generator:
        return np.random.default_rng(0)

    def act(self, observation: np.ndarray, state: np.random.Generator, dt: float) -> tuple[Any, np.random.Generator]:
        return np.int64(state.choice(5, p=[0.1, 0.2, 0.15, 0.5, 0.05])), state


def timeline(env: gym.Env) -> list[tuple]:
    """What the driver sees, the time since it was asked, its action, the reward, the end, and what is told."""
    steps: list[Step] = []
    rollout(env, Counter(), 0, subscribers=[steps.append])
    return [
        (
            int(step.observation.max()), step.info["dt"], step.action, step.reward, step.terminated,
            step.info.get("frame_lost"),
        )
        for step in steps
    ]  # fmt: skip


def controls(values: list) -> np.ndarray:
    return np.array(values, np.float32)


def blind(env: gym.Env) -> gym.Env:
    env.unwrapped.observe = False  # type: ignore[attr-defined]
    return env


def drive(env: gym.Env, seed: int = 0, driver: Any = None) -> list[Step]:
    steps: list[Step] = []
    rollout(env, driver or Random(), seed, subscribers=[steps.append])
    return steps


def pictures(steps: list[Step]) -> np.ndarray:
    return np.stack([step.observation for step in steps])


# Lost frames


def test_held_the_last_frame_comes_again_and_the_clock_goes_on():
    env = Clock()
    assert timeline(StaleFrames(env, Scripted(missing="hold"), Stream("scripted"))) == [
        # picture, dt, action, reward, terminated, frame_lost
        (0, 0.00, 1, 1e1, False, False),
        (1, 0.02, 2, 1e2, False, False),
        (1, 0.02, 3, 1e3, False, True),
        (1, 0.06, 4, 1e4, False, True),
        (4, 0.02, 0, 1e5, False, False),
        (5, 0.02, 1, 1e6, False, False),
        (5, 0.02, 2, 1e7, False, True),
        (7, 0.02, 3, 1e8, True, False),
    ]
    assert env.actions == [1, 2, 3, 4, 0, 1, 2, 3]


def test_zeroed_the_driver_sees_black():
    rows = timeline(StaleFrames(Clock(), Scripted(missing="zero"), Stream("scripted")))
    assert [row[0] for row in rows] == [0, 1, 0, 0, 4, 5, 0, 7]
    held = timeline(StaleFrames(Clock(), Scripted(missing="hold"), Stream("scripted")))
    assert [row[1:] for row in rows] == [row[1:] for row in held]


def test_skipped_the_driver_is_not_asked_and_the_next_frame_has_a_longer_dt():
    env = Clock()
    assert timeline(SkippedFrames(env, Scripted(missing="skip"), Stream("scripted"))) == [
        (0, 0.00, 1, 1e1, False, None),
        (1, 0.02, 2, 1e2 + 1e3 + 1e4, False, None),
        (4, 0.02 + 0.06 + 0.02, 3, 1e5, False, None),
        (5, 0.02, 4, 1e6 + 1e7, False, None),
        (7, 0.02 + 0.02, 0, 1e8, True, None),
    ]
    assert env.actions == [1, 2, 2, 2, 3, 4, 4, 0]


def test_a_crash_in_a_skipped_frame_is_told():
    for crash in range(1, 9):
        steps = drive(SkippedFrames(Clock(crash=crash), Scripted(missing="skip"), Stream("scripted")), driver=Counter())
        assert [step.outcome["crash"] for step in steps].count("off") == 1, crash
    assert "crash" not in drive(SkippedFrames(ToyEnv(), Scripted(), Stream("scripted")), driver=Counter())[0].outcome


def test_losses_of_losses_add_up():
    """Outside, every second of the arriving frames is skipped; inside, stale frames arrive as they are."""
    inner = StaleFrames(Clock(), Scripted(missing="hold"), Stream("scripted"))
    rows = timeline(SkippedFrames(inner, IrregularRate((0.0, 1.0)), Stream("rate")))
    assert [(row[0], row[1], row[5]) for row in rows] == [
        (0, 0.0, False), (1, 0.04, True), (4, pytest.approx(0.08), False), (5, 0.04, True),
    ]  # fmt: skip


@pytest.mark.parametrize("spec", [*LOSSES, "frame-drop:2+frame-rate:3", "gap:2:skip+frame-rate:1:hold", ALL])
def test_the_time_told_is_the_time_that_passed(spec):
    env = perturb(blind(make_env(EnvConfig(max_steps=250))), spec, 3, episode_frames=250)
    steps = drive(env)
    simulator: Any = env.unwrapped
    assert steps[0].dt == 0.0
    assert sum(step.outcome["dt"] for step in steps) == pytest.approx(simulator.frame / 50)
    assert simulator.frame == 250 or steps[-1].terminated
    skips = any(part.setting.missing == "skip" for part in parse(spec) if isinstance(part.setting, FrameLoss))
    assert (max(step.outcome["dt"] for step in steps) > 0.03) == skips
    assert not simulator.observe, "left as it was"


@pytest.mark.parametrize("spec", ["frame-rate:3", "frame-drop:2:skip", "frame-drop:2:hold+frame-rate:3"])
def test_what_arrives_is_what_the_simulator_shows_at_that_time(spec):
    """Frames that nobody sees are not drawn, and nothing of it shows: rewards, pictures and ends are the same."""
    steps = drive(perturb(make_env(EnvConfig(max_steps=90)), spec, 1))
    inside, _, _ = spec.rpartition("+")
    plain = perturb(make_env(EnvConfig(max_steps=90)), inside, 1)
    observations, rewards = [plain.reset(seed=0)[0]], []
    for step in steps:
        total = 0.0
        for _ in range(round(50 * step.outcome["dt"])):
            observation, reward, *_ = plain.step(step.action)
            total += float(reward)
        observations.append(observation)
        rewards.append(total)
    np.testing.assert_array_equal(pictures(steps), np.stack(observations[:-1]))
    assert [step.reward for step in steps] == rewards


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 1.0])
def test_the_share_of_dropped_frames_is_the_probability(probability):
    lost = list(itertools.islice(FrameDrop(probability).lost(np.random.default_rng(0)), 20_001))
    assert not lost[0]
    assert np.mean(lost[1:]) == pytest.approx(probability, abs=0.01)
    assert np.corrcoef(lost[1:-1], lost[2:])[0, 1] == pytest.approx(0, abs=0.02) if 0 < probability < 1 else True


def test_what_a_low_level_drops_a_higher_one_drops_too():
    low, high = (
        np.array([step.info["frame_lost"] for step in drive(perturb(blind(make_env()), f"frame-drop:{level}", 1))])
        for level in (1, 2)
    )
    assert high[low].all()
    assert high.sum() > 2 * low.sum()


@pytest.mark.parametrize(
    ("loss", "spans"),
    [
        (Gaps(0.05), [(475, 525)]),
        (Gaps(0.15), [(425, 575)]),
        (Gaps(0.30), [(350, 650)]),
        (Gaps(0.20, 4), [(160, 210), (370, 420), (580, 630), (790, 840)]),
        (Gaps(0.20, 4, frames=10), [(1, 1), (3, 4), (5, 5), (7, 8)]),
        (Gaps(0.0), [(500, 500)]),
    ],
)
def test_where_the_gaps_lie(loss, spans):
    assert [(span.start, span.stop) for span in loss.spans()] == spans
    lost = list(itertools.islice(loss.lost(np.random.default_rng(0)), loss.frames))
    assert sum(lost) == round(loss.share * loss.frames)


@pytest.mark.parametrize(
    ("spec", "share"), [("gap:1", 0.05), ("gap:2", 0.15), ("gap:3:hold", 0.3), ("scattered-gaps:2", 0.2)]
)
def test_a_whole_episode_loses_exactly_its_share(spec, share):
    class Parked(Counter):
        def act(self, observation, state, dt):
            return 0, state

    env = blind(make_env())
    env.unwrapped.state[:] = 200  # type: ignore[attr-defined]  # what a blind simulator shows
    steps = drive(perturb(env, spec), driver=Parked())
    lost = np.array([step.info["frame_lost"] for step in steps])
    assert len(lost) == 1000
    assert lost.sum() == 1000 * share
    assert np.diff(lost.astype(int)).clip(0).sum() == (4 if "scattered" in spec else 1)
    dark = np.array([not step.observation.any() for step in steps])
    np.testing.assert_array_equal(dark, False if "hold" in spec else lost)
    early = drive(perturb(blind(make_env(EnvConfig(max_steps=500))), spec), driver=Parked())
    np.testing.assert_array_equal([step.info["frame_lost"] for step in early], lost[:500])


def test_the_time_between_frames_follows_its_weights():
    weights = (0.2, 0.0, 0.5, 0.3)
    lost = list(itertools.islice(IrregularRate(weights).lost(np.random.default_rng(0)), 50_000))
    intervals = np.diff(np.flatnonzero(~np.array(lost)))
    np.testing.assert_allclose(np.bincount(intervals, minlength=5)[1:] / len(intervals), weights, atol=0.01)


# Actions and tyres


@pytest.mark.parametrize(
    ("delay", "executed"),
    [
        (0, [1, 2, 3, 4, 0, 1, 2, 3]), (1, [0, 1, 2, 3, 4, 0, 1, 2]),
        (2, [0, 0, 1, 2, 3, 4, 0, 1]), (4, [0, 0, 0, 0, 1, 2, 3, 4]),
    ],
)  # fmt: skip
def test_actions_come_late(delay, executed):
    env = Clock()
    for _ in range(2):  # what waits at the end of an episode is gone in the next
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


def test_a_random_one_of_five_actions_replaces_the_intended_one():
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
    simulator.car.destroy()
    simulator.car = car = Car(simulator.world, angle, *position)
    for body in (car.hull, *car.wheels):
        body.linearVelocity = (-90 * np.sin(angle), 90 * np.cos(angle))
    for _ in range(400):
        info = env.step(controls([0, 0, 1]))[-1]
        if info["speed"] < 0.5:
            return float(np.hypot(*(car.hull.position - position)))
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
        assert {tile.road_friction for tile in simulator.road} == {0.75}


# Chance and composition


@pytest.mark.parametrize("spec", [*HIGHEST, "gap:2:hold", "frame-drop:2:skip", ALL])
def test_the_same_seeds_bring_back_the_same_disturbance(spec):
    def run(seed: int, track: int, env: gym.Env | None = None) -> list[Step]:
        return drive(env or fresh(seed), track)

    def fresh(seed: int) -> gym.Env:
        return perturb(make_env(EnvConfig(max_steps=40)), spec, seed, episode_frames=40)

    def same(one: list[Step], other: list[Step]) -> bool:
        return (
            len(one) == len(other)
            and np.array_equal(pictures(one), pictures(other))
            and [step.reward for step in one] == [step.reward for step in other]
        )

    env = fresh(1)
    first = run(1, 5, env)
    drive(env, 6)
    assert same(run(1, 5, env), first), "a used environment"
    assert same(run(1, 5), first), "a fresh one"
    settled = spec.split(":")[0] in ("gap", "scattered-gaps", "action-delay", "weak-tyres")  # nothing is drawn
    assert all(same(run(seed, 5), first) for seed in range(2, 7)) == settled


def test_without_a_seed_the_chance_goes_on():
    env = perturb(ToyEnv(), "occlusion-blobs:3+gaussian-noise:1", 1)
    first, second = env.reset(seed=4)[0], env.reset()[0]
    assert not np.array_equal(first, second)
    assert np.array_equal(env.reset(seed=4)[0], first)
    assert np.array_equal(env.reset()[0], second)


def test_names_and_seeds_have_streams_of_their_own():
    draws = {Stream(name, seed).restart(track).random() for name in ("a", "b") for seed in (0, 1) for track in (1, 2)}
    assert len(draws) == 8


@pytest.mark.parametrize("spec", [*HIGHEST, ALL])
def test_the_simulators_own_chance_is_left_alone(spec):
    plain, perturbed = blind(make_env()), perturb(blind(make_env()), spec, 9)
    for env in (plain, perturbed):
        env.reset(seed=8)
        env.step(np.int64(3))
    one, other = plain.unwrapped, perturbed.unwrapped
    assert one.np_random.bit_generator.state == other.np_random.bit_generator.state
    assert one.track == other.track  # type: ignore[attr-defined]
    assert plain.reset()[1] == {key: value for key, value in perturbed.reset()[1].items() if key != "frame_lost"}
    assert one.track == other.track, "the next one too"  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_pixels_change_neither_physics_nor_rewards_nor_the_state(name):
    """Nor what an advisor sees."""
    plain, perturbed = make_env(), perturb(make_env(), f"{name}:3", 2)
    assert np.array_equal(plain.reset(seed=1)[0], perturbed.unwrapped.state if perturbed.reset(seed=1) else None)  # type: ignore[attr-defined]
    for action in np.random.default_rng(0).integers(5, size=60):
        one, other = plain.step(action), perturbed.step(action)
        assert one[1:] == other[1:]
        assert not np.array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[0], perturbed.unwrapped.state)  # type: ignore[attr-defined]
    assert perturbed.unwrapped.car.hull.position == plain.unwrapped.car.hull.position  # type: ignore[attr-defined]


def test_the_first_word_is_nearest_to_the_simulator():
    black_bars, noisy_bars = (
        perturb(make_env(), spec, 3).reset(seed=1)[0]
        for spec in ("gaussian-noise:1+occlusion-bars:3", "occlusion-bars:3+gaussian-noise:1")
    )
    bars, clean = perturb(make_env(), "occlusion-bars:3", 3).reset(seed=1)[0], make_env().reset(seed=1)[0]
    hidden = (bars != clean).any(axis=-1)
    assert hidden.sum() > 100
    assert not black_bars[hidden].any()
    assert noisy_bars[hidden].any()
    env = perturb(make_env(), "frame-drop:1+action-delay:2+shadows:1")
    layers = [type(env).__name__, type(env.env).__name__, type(env.env.env).__name__]  # type: ignore[attr-defined]
    assert layers == ["CorruptedFrames", "DelayedActions", "StaleFrames"]


@pytest.mark.parametrize("spec", ["", " ", "shadows:0", "gap:0:hold + colour:0"])
def test_nothing_asked_nothing_changed(spec):
    env = ToyEnv()
    assert perturb(env, spec) is env


@pytest.mark.filterwarnings("ignore:.*different from the unwrapped version")
@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_gymnasium_accepts_all_of_them_at_once(control):
    env = perturb(make_env(EnvConfig(control, max_steps=120), render_mode="rgb_array"), ALL)
    check_env(env, skip_render_check=True)


def test_the_page_names_every_one_with_the_numbers_of_its_levels():
    page = (Path(__file__).parents[2] / "docs" / "perturbations.md").read_text()
    rows = {row.split("`")[1]: row.split("|")[2:4] for row in page.splitlines() if row.startswith("| `")}
    assert list(rows) == list(PERTURBATIONS)
    for name, levels in PERTURBATIONS.items():
        told = set(re.findall(r"[\d.]+", " ".join(rows[name])))
        for setting in levels:
            values = asdict(setting)
            numbers = [values[key] for key in values.keys() - {"missing", "frames" if "gap" in name else "", "pieces"}]
            numbers = [len(value) if isinstance(value, tuple) else value for value in numbers]
            assert all({f"{number:g}", f"{100 * number:g}"} & told for number in numbers), (name, setting)


# Refusals


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("fog:1", r"perturbation 'fog' is unknown; choose from \['action-delay', "),
        ("shadows:4", r"perturbation 'shadows' has the levels 1 to 3 \(0 is none\), got 4"),
        ("action-delay:5", "has the levels 1 to 4"),
        ("shadows", "each part must be NAME:LEVEL or NAME:LEVEL:MISSING, got 'shadows'; such as"),
        ("shadows:-1", "got 'shadows:-1'"),
        ("shadows:1,colour:1", "must be NAME:LEVEL"),
        ("shadows:1+", "got ''"),
        ("shadows:1:hold", "'shadows' loses no frames, got 'shadows:1:hold'; write shadows:1"),
        ("gap:1:lost", r"MISSING must be one of \('hold', 'zero', 'skip'\), got 'lost'"),
        ("gap:1+gap:2", "names 'gap' twice"),
    ],
)
def test_a_specification_is_refused(spec, told):
    with pytest.raises(ValueError, match=told):
        perturb(ToyEnv(), spec)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: FrameDrop(1.5), r"a probability must lie in \[0, 1\], got 1.5"),
        (lambda: FrameDrop(float("nan")), "got nan"),
        (lambda: FrameDrop(0.5, missing="black"), r"missing must be one of .*, got 'black'"),  # type: ignore[arg-type]
        (lambda: Gaps(1.0), r"share must lie in \[0, 1\), got 1.0"),
        (lambda: Gaps(0.1, 0), "pieces and frames must be at least 1, got 0 and 1000"),
        (lambda: IrregularRate((0.5, 0.4)), "weights must sum to 1, got .* with the sum 0.9"),
        (lambda: IrregularRate((1.5, -0.5)), r"a probability must lie in \[0, 1\], got 1.5"),
        (lambda: ActionDelay(-1), "frames must be at least 0, got -1"),
        (lambda: ActionFault(-0.1, 0.0), "a probability must lie in"),
        (lambda: ActionFault(0.1, float("nan")), "deviation must be at least 0 and finite, got nan"),
        (lambda: TyreGrip(0.5), r"grip must lie in \[0.6, 1\], got 0.5; below 0.6, the grip of grass"),
        (lambda: Stream("name", -1), "seed must be at least 0, got -1"),
    ],
)
def test_a_bad_setting_is_named(make, told):
    with pytest.raises(ValueError, match=told):
        make()


def test_tyres_need_a_road():
    with pytest.raises(TypeError, match="weaker tyres need CarRacing's road tiles, got <Clock"):
        perturb(Clock(), "weak-tyres:1")
