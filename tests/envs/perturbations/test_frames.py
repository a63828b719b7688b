"""Lost frames: literal timelines on a toy, true time and true images on CarRacing."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from nac_drive.envs import EnvConfig, make_env, perturb
from nac_drive.envs.perturbations.frames import (
    Blackouts,
    FrameDrop,
    FrameLoss,
    Gaps,
    IrregularRate,
    SkippedFrames,
    StaleFrames,
)
from nac_drive.envs.perturbations.registry import parse
from nac_drive.envs.perturbations.stream import Stream
from tests.envs.episodes import blind
from tests.envs.perturbations.doubles import ALL, Clock, Counter, Random, Scripted, drive, observations, timeline
from tests.problems import ToyEnv

LOSSES = [
    f"{name}:3:{missing}"
    for name in ("frame-drop", "blackouts", "gap", "scattered-gaps", "frame-rate", "action-repeat")
    for missing in ("hold", "zero", "skip")
]


def test_hold_repeats_the_last_frame_and_the_clock_goes_on():
    env = Clock()
    assert timeline(StaleFrames(env, Scripted(missing="hold"), Stream("scripted"))) == [
        # image, dt, action, reward, terminated, frame_lost
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


def test_zero_gives_black_frames():
    rows = timeline(StaleFrames(Clock(), Scripted(missing="zero"), Stream("scripted")))
    assert [row[0] for row in rows] == [0, 1, 0, 0, 4, 5, 0, 7]
    held = timeline(StaleFrames(Clock(), Scripted(missing="hold"), Stream("scripted")))
    assert [row[1:] for row in rows] == [row[1:] for row in held]


def test_skip_queries_no_driver_and_the_next_frame_has_a_longer_dt():
    env = Clock()
    assert timeline(SkippedFrames(env, Scripted(missing="skip"), Stream("scripted"))) == [
        (0, 0.00, 1, 1e1, False, None),
        (1, 0.02, 2, 1e2 + 1e3 + 1e4, False, None),
        (4, 0.02 + 0.06 + 0.02, 3, 1e5, False, None),
        (5, 0.02, 4, 1e6 + 1e7, False, None),
        (7, 0.02 + 0.02, 0, 1e8, True, None),
    ]
    assert env.actions == [1, 2, 2, 2, 3, 4, 4, 0]


def test_a_crash_in_a_skipped_frame_is_reported():
    for crash in range(1, 9):
        steps = drive(SkippedFrames(Clock(crash=crash), Scripted(missing="skip"), Stream("scripted")), driver=Counter())
        assert [step.outcome["crash"] for step in steps].count("off") == 1, crash
    assert "crash" not in drive(SkippedFrames(ToyEnv(), Scripted(), Stream("scripted")), driver=Counter())[0].outcome


def test_losses_of_losses_add_up():
    """Outside, every second of the arriving frames is skipped. Inside, stale frames arrive as they are."""
    inner = StaleFrames(Clock(), Scripted(missing="hold"), Stream("scripted"))
    rows = timeline(SkippedFrames(inner, IrregularRate((0.0, 1.0)), Stream("rate")))
    assert [(row[0], row[1], row[5]) for row in rows] == [
        (0, 0.0, False), (1, 0.04, True), (4, pytest.approx(0.08), False), (5, 0.04, True),
    ]  # fmt: skip


@pytest.mark.parametrize("spec", [*LOSSES, "frame-drop:2+frame-rate:3", "gap:2:skip+frame-rate:1:hold", ALL])
def test_the_sum_of_dt_is_the_time_that_passed(spec):
    env = perturb(blind(make_env(EnvConfig(max_steps=250))), spec, 3, episode_frames=250)
    steps = drive(env)
    simulator: Any = env.unwrapped
    assert steps[0].dt == 0.0
    assert sum(step.outcome["dt"] for step in steps) == pytest.approx(simulator.frame / 50)
    assert simulator.frame == 250 or steps[-1].terminated
    skips = any(part.perturbation.missing == "skip" for part in parse(spec) if isinstance(part.perturbation, FrameLoss))
    assert (max(step.outcome["dt"] for step in steps) > 0.03) == skips
    assert not simulator.observe, "left as it was"


@pytest.mark.parametrize("spec", ["frame-rate:3", "frame-drop:2:skip", "frame-drop:2:hold+frame-rate:3"])
def test_a_frame_that_arrives_is_the_simulators_frame_of_that_time(spec):
    """Skipped frames are not drawn. Rewards, images and ends are the same as if they were."""
    config = EnvConfig(max_steps=60)
    steps = drive(perturb(make_env(config), spec, 1))
    inside, _, _ = spec.rpartition("+")
    plain = perturb(make_env(config), inside, 1)
    frames, rewards = [plain.reset(seed=0)[0]], []
    for step in steps:
        total = 0.0
        for _ in range(round(50 * step.outcome["dt"])):
            observation, reward, *_ = plain.step(step.action)
            total += float(reward)
        frames.append(observation)
        rewards.append(total)
    np.testing.assert_array_equal(observations(steps), np.stack(frames[:-1]))
    assert [step.reward for step in steps] == rewards


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 1.0])
def test_the_fraction_of_dropped_frames_is_the_probability(probability):
    lost = list(itertools.islice(FrameDrop(probability).lost(np.random.default_rng(0)), 20_001))
    assert not lost[0]
    assert np.mean(lost[1:]) == pytest.approx(probability, abs=0.01)
    assert np.corrcoef(lost[1:-1], lost[2:])[0, 1] == pytest.approx(0, abs=0.02) if 0 < probability < 1 else True


def test_a_higher_level_drops_the_frames_of_a_lower_one_too():
    low, high = (
        np.array([step.info["frame_lost"] for step in drive(perturb(blind(make_env()), f"frame-drop:{level}", 1))])
        for level in (1, 2)
    )
    assert high[low].all()
    assert high.sum() > 2 * low.sum()


@pytest.mark.parametrize(("fraction", "frames"), [(0.3, 5), (0.5, 5), (0.7, 5), (0.2, 1), (0.75, 3), (0.6, 40)])
def test_blackouts_cover_their_fraction_and_have_their_mean_length(fraction, frames):
    """Up to four standard errors. A chain of two states has the correlation c from frame to frame, and 1 / count of the
    variance of its mean grows by (1 + c) / (1 - c); the lengths are geometric, of the variance frames^2 - frames."""
    count = 100_000
    lost = np.fromiter(Blackouts(fraction, frames).lost(np.random.default_rng(0)), bool, count)
    assert not lost[0]
    correlation = 1 - 1 / frames / (1 - fraction)
    error = np.sqrt(fraction * (1 - fraction) / count * (1 + correlation) / (1 - correlation))
    assert lost.mean() == pytest.approx(fraction, abs=4 * error)
    assert np.corrcoef(lost[:-1], lost[1:])[0, 1] == pytest.approx(correlation, abs=0.02)
    changes = np.flatnonzero(np.diff(lost.astype(int)))
    lengths = np.diff(changes)[::2]
    error = np.sqrt((frames**2 - frames) / len(lengths))
    assert lengths.mean() == pytest.approx(frames, abs=4 * error + 1e-9)
    assert (lengths == 1).mean() == pytest.approx(1 / frames, abs=2 / np.sqrt(len(lengths)))
    assert np.diff(changes)[1::2].mean() == pytest.approx(frames * (1 - fraction) / fraction, rel=0.1)


def test_the_ends_of_the_range_of_blackouts():
    def lost(loss: Blackouts) -> list[bool]:
        return list(itertools.islice(loss.lost(np.random.default_rng(0)), 1000))

    assert not any(lost(Blackouts(0.0, 5)))
    assert lost(Blackouts(0.5, 1)) == [False, True] * 500
    between = np.diff(np.flatnonzero(np.diff(lost(Blackouts(5 / 6, 5)))))[1::2]
    assert (between == 1).all(), "one frame between two blackouts"


def test_the_first_frame_arrives_in_a_recording_too():
    draws = [Blackouts(0.7, 5).lost_of(32, np.random.default_rng(seed)) for seed in range(200)]
    assert not np.stack(draws)[:, 0].any()
    assert 0.5 < np.stack(draws)[:, 10:].mean() < 0.8


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
    assert sum(lost) == round(loss.fraction * loss.frames)


@pytest.mark.parametrize(
    ("spec", "fraction"), [("gap:1", 0.05), ("gap:2", 0.15), ("gap:3:hold", 0.3), ("scattered-gaps:2", 0.2)]
)
def test_a_whole_episode_loses_exactly_its_fraction(spec, fraction):
    class Parked(Counter):
        def act(self, observation, state, dt):
            return 0, state

    env = blind(make_env())
    env.unwrapped.state[:] = 200  # type: ignore[attr-defined]  # the observation of a blind simulator
    steps = drive(perturb(env, spec), driver=Parked())
    lost = np.array([step.info["frame_lost"] for step in steps])
    assert len(lost) == 1000
    assert lost.sum() == 1000 * fraction
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


# Drivers that read whether a frame is lost


class Reads(Random):
    """Random actions; it asks the environment at every frame."""

    def begin(self, env):
        self.env, self.read = env, []
        return super().begin(env)

    def act(self, observation, state, dt):
        self.read.append(self.env.get_wrapper_attr("frame_lost"))
        return super().act(observation, state, dt)


@pytest.mark.parametrize(
    "spec",
    [
        "frame-drop:3:zero", "blackouts:2", "gap:3:hold", "frame-drop:1:hold+gap:2", "gap:2:hold+blackouts:2:hold",
        "colour:1+blackouts:1+action-delay:1+frame-rate:2:hold", "blackouts:2+frame-rate:3",
    ],
)  # fmt: skip
def test_a_privileged_driver_reads_what_info_says_at_every_frame(spec):
    driver, env = Reads(), perturb(blind(make_env(EnvConfig(max_steps=100))), spec, 3, episode_frames=100)
    for track in (4, 5):
        steps = drive(env, track, driver)
        assert driver.read == [step.info["frame_lost"] for step in steps]
        assert env.get_wrapper_attr("frame_lost") == steps[-1].outcome["frame_lost"]
        assert 0 < sum(driver.read) < len(steps)


def test_a_frame_is_lost_where_one_of_two_losses_takes_it():
    config = EnvConfig(max_steps=100, mask_bar=True, perturb="gap:2")
    both, inner, outer = Reads(), Reads(), Reads()
    for driver, env in (
        (both, perturb(blind(make_env(config)), "blackouts:1:hold")),
        (inner, blind(make_env(config))),
        (outer, perturb(blind(make_env(EnvConfig(max_steps=100))), "blackouts:1:hold")),
    ):
        drive(env, 4, driver)
    assert both.read == [one or other for one, other in zip(inner.read, outer.read, strict=True)]
    assert inner.read != both.read != outer.read


# Refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FrameDrop(1.5), r"a probability must lie in \[0, 1\], got 1.5"),
        (lambda: FrameDrop(float("nan")), "got nan"),
        (lambda: FrameDrop(0.5, missing="black"), r"missing must be one of .*, got 'black'"),  # type: ignore[arg-type]
        (lambda: Blackouts(0.3, 0), r"frames must be at least 1 .*, got 0 and 0.3"),
        (lambda: Blackouts(-0.1, 5), r"fraction in \[0, frames / \(frames \+ 1\)\], got 5 and -0.1"),
        (lambda: Blackouts(0.84, 5), "got 5 and 0.84: between two blackouts one frame arrives"),
        (lambda: Blackouts(1.0, 10**9), "got 1000000000 and 1.0"),
        (lambda: Blackouts(float("nan"), 5), "got 5 and nan"),
        (lambda: Blackouts(0.3, 5, missing="black"), r"missing must be one of .*, got 'black'"),  # type: ignore[arg-type]
        (lambda: Gaps(1.0), r"fraction must lie in \[0, 1\), got 1.0"),
        (lambda: Gaps(0.1, 0), "pieces and frames must be at least 1, got 0 and 1000"),
        (lambda: IrregularRate((0.5, 0.4)), "weights must sum to 1, got .* with the sum 0.9"),
        (lambda: IrregularRate((1.5, -0.5)), r"a probability must lie in \[0, 1\], got 1.5"),
    ],
)
def test_a_bad_setting_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
