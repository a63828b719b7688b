"""Figures of driving, on rows whose answers are known by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from nac_drive.envs import Episode, Step
from nac_drive.evaluation.metrics import (
    EpisodeMeter,
    EpisodeResult,
    agrees,
    autonomy,
    driving_score,
    steering_of,
    steering_rate_rms,
    steering_reversals,
)
from nac_drive.evaluation.statistics import bootstrap, summarise
from nac_drive.training.offline import macro_f1, measure_accuracy


def row(seed: int = 0, **values: Any) -> EpisodeResult:
    base = EpisodeResult(
        driver="one", seed=seed, crash_mode="ignore", perturbation="",
        renderer="gymnasium", episode_return=900.0, length=500, completion=1.0,
        lap_finished=True, lap_time=10.0, off_road_events=0, off_road_fraction=0.0, crashes=0, crash_kinds=[],
        first_crash_time=None, interventions=0, autonomy=1.0, driving_score=100.0, lateral_mean=0.1, lateral_rms=0.1,
        lateral_p95=0.2, heading_rms=0.1, steering_rate_rms=1.0, steering_reversals=2.0, agreement=None, latency_ms=1.0,
    )  # fmt: skip
    return replace(base, **values)


# Figures of one episode


@pytest.mark.parametrize(
    ("completion", "crashes", "off_road", "score"),
    [(1.0, 0, 0.0, 100.0), (0.5, 0, 0.0, 50.0), (1.0, 1, 0.0, 65.0), (1.0, 2, 0.5, 21.125), (0.0, 0, 0.0, 0.0)],
)
def test_driving_score(completion, crashes, off_road, score):
    assert driving_score(completion, crashes, off_road) == pytest.approx(score)


@pytest.mark.parametrize(
    ("interventions", "seconds", "share"), [(0, 10.0, 1.0), (1, 60.0, 0.9), (2, 12.0, 0.0), (9, 12.0, 0.0)]
)
def test_autonomy(interventions, seconds, share):
    assert autonomy(interventions, seconds) == pytest.approx(share)


@pytest.mark.parametrize(
    ("steering", "reversals"),
    [
        ([], 0),
        ([0.0] * 10, 0),
        ([0.5, 0.6, 0.1], 0),
        ([0.5, -0.5], 1),
        ([0.6, 0.0, 0.0, 0.6], 0),  # straight between two turns to one side
        ([0.6, 0.0, -0.6, 0.0], 1),
        ([0.1, -0.1, 0.1, -0.1], 3),
    ],
)
def test_steering_reversals(steering, reversals):
    expected = reversals * 50 / len(steering) if steering else 0.0
    assert steering_reversals(steering) == pytest.approx(expected)


def test_steering_rate():
    assert steering_rate_rms([0.3] * 9) == 0.0
    assert steering_rate_rms([0.3]) == 0.0
    assert steering_rate_rms([0.0, 0.6, 0.0, -0.6]) == pytest.approx(0.6 * 50)
    assert steering_rate_rms([0.0, 0.3, 0.7]) == pytest.approx(np.sqrt((0.09 + 0.16) / 2) * 50)
    assert steering_rate_rms(list(np.linspace(-1, 1, 101))) == pytest.approx(1.0)  # 2 in 2 seconds


def test_actions_as_steering_and_agreement():
    assert [steering_of(np.int64(action)) for action in range(5)] == [0.0, 0.6, -0.6, 0.0, 0.0]
    assert steering_of(np.array([-0.25, 1.0, 0.0])) == -0.25
    assert agrees(3, np.int64(3))
    assert not agrees(3, 4)
    assert agrees(np.array([0.5, 1.0, 0.0]), np.array([0.41, 0.0, 1.0]))  # steering only
    assert not agrees(np.array([0.5, 1.0, 0.0]), np.array([0.39, 1.0, 0.0]))


STEPS = [
    # action, expert_action, zooming, lateral, heading, off_road, crash
    (1, 1, True, 9.0, 9.0, False, None),
    (1, 1, False, 0.3, 0.0, False, None),
    (2, 1, False, -0.4, 0.1, False, "heading"),
    (2, 2, False, 0.0, -0.2, True, None),
    (0, 4, False, 0.0, 0.0, True, "off_road"),
]


def test_a_meter_counts_an_episode_by_hand():
    meter = EpisodeMeter()
    for index, (action, expert_action, zooming, lateral, heading, off_road, crash) in enumerate(STEPS):
        outcome = {
            "lateral_offset": lateral, "heading_error": heading, "off_road": off_road, "crash": crash, "dt": 0.02,
            "lap_finished": False,
        }  # fmt: skip
        step = Step(
            index,
            np.zeros(1),
            {"zooming": zooming},
            0.02,
            action,
            action,
            expert_action,
            1.0,
            False,
            False,
            outcome,
            0.003,
        )
        meter(step)
    outcome = {
        "completion": 0.5, "lap_finished": False, "off_road_events": 1, "crashes": 2, "interventions": 0,
    }  # fmt: skip
    result = meter.result("driver", Episode(7, 5.0, 5, True, outcome), crash_mode="ignore")
    assert (result.driver, result.seed, result.episode_return, result.length) == ("driver", 7, 5.0, 5)
    assert (result.lap_time, result.crash_kinds, result.first_crash_time) == (None, ["heading", "off_road"], 3 / 50)
    assert result.off_road_fraction == pytest.approx(0.4)
    assert result.driving_score == pytest.approx(100 * 0.5 * 0.65**2 * 0.6)
    assert result.agreement == pytest.approx(2 / 4)
    assert result.lateral_mean == pytest.approx(0.7 / 4)
    assert result.lateral_rms == pytest.approx(np.sqrt(0.25 / 4))
    assert result.heading_rms == pytest.approx(np.sqrt(0.05 / 4))
    assert result.steering_reversals == pytest.approx(1 * 50 / 5)
    assert result.latency_ms == pytest.approx(3.0)


def test_a_lap_that_ends_in_the_zoom_and_a_finished_one_are_counted():
    meter = EpisodeMeter()
    outcome = {
        "lateral_offset": 1.0,
        "heading_error": 1.0,
        "off_road": False,
        "crash": None,
        "dt": 20.0,
        "lap_finished": True,
    }
    meter(Step(0, np.zeros(1), {"zooming": True}, 0.0, 3, 3, None, 1.0, False, False, outcome, 0.0))
    end = {"completion": 1.0, "lap_finished": True, "off_road_events": 0, "crashes": 0, "interventions": 1}
    result = meter.result("driver", Episode(7, 5.0, 1, True, end), crash_mode="intervene")
    assert (result.lateral_mean, result.heading_rms, result.agreement) == (0.0, 0.0, None)
    assert result.lap_time == 20.0
    assert result.autonomy == pytest.approx(0.7)


def test_a_step_of_several_frames_counts_like_as_many_frames():
    """Figures do not depend on how often the driver is asked: only agreement and length are per decision."""
    durations = [1, 3, 2, 1, 4]
    end = {"completion": 1.0, "lap_finished": True, "off_road_events": 1, "crashes": 2, "interventions": 0}
    results = []
    for expanded in (False, True):
        meter = EpisodeMeter()
        for (action, _, zooming, lateral, heading, off_road, crash), frames in zip(STEPS, durations, strict=True):
            for i in range(frames if expanded else 1):
                told = crash if not expanded or i == frames - 1 else None
                outcome = {"lateral_offset": lateral, "heading_error": heading, "off_road": off_road, "crash": told}
                outcome["dt"] = 0.02 if expanded else frames * 0.02
                outcome["lap_finished"] = (action, lateral) == (2, 0.0) and (not expanded or i == frames - 1)
                meter(Step(0, np.zeros(1), {"zooming": zooming}, 0.0, action, action, None, 1.0, False, False, outcome,
                           0.003))  # fmt: skip
        results.append(meter.result("driver", Episode(7, 5.0, 5, True, end), crash_mode="ignore"))
    assert results[0] == results[1]
    assert (results[0].lap_time, results[0].first_crash_time) == (7 / 50, 6 / 50)
    assert results[0].off_road_fraction == pytest.approx(5 / 11)
    assert results[0].steering_reversals == pytest.approx(50 / 11)


# The bootstrap


def test_an_interval_of_equal_values_is_a_point():
    for shape in ((1, 1), (1, 10), (3, 1), (3, 10)):
        interval = bootstrap(np.full(shape, 5.0))
        assert (interval.mean, interval.low, interval.high) == (5.0, 5.0, 5.0)


def test_an_interval_is_repeatable_and_moves_and_scales_with_its_values():
    values = np.random.default_rng(0).normal(size=(2, 20))
    one = bootstrap(values)
    assert bootstrap(values) == one
    assert one.low < one.mean < one.high
    moved = bootstrap(10 * values + 3)
    for name in ("mean", "low", "high"):
        assert getattr(moved, name) == pytest.approx(10 * getattr(one, name) + 3)


def test_intervals_are_near_the_normal_theory_and_cover_it():
    rng = np.random.default_rng(1)
    covered = []
    for _ in range(60):
        sample = rng.normal(3.0, 2.0, size=40)
        interval = bootstrap(sample[None])
        covered.append(interval.low <= 3.0 <= interval.high)
        half = stats.norm.ppf(0.975) * sample.std() / np.sqrt(40)
        assert interval.high - interval.low == pytest.approx(2 * half, rel=0.08)
    assert 0.85 <= np.mean(covered) <= 1.0


def test_one_training_is_paired_by_track_as_scipy_does_it():
    mine, other = np.random.default_rng(2).normal(size=(2, 1, 12))
    theirs = stats.bootstrap((mine[0] - other[0],), np.mean, n_resamples=10_000, method="percentile",
                                   rng=np.random.default_rng(0)).confidence_interval  # fmt: skip
    interval = bootstrap(mine, other)
    assert (interval.low, interval.high) == pytest.approx((theirs.low, theirs.high))


def test_trainings_are_drawn_anew_too():
    """Where trainings alone differ, or tracks alone, each interval is that of a plain mean over them; and trainings of
    the baseline count like one's own."""
    by_training = np.random.default_rng(3).normal(size=8)[:, None]
    half = stats.norm.ppf(0.975) * by_training.std() / np.sqrt(8)
    for interval in (
        bootstrap(np.repeat(by_training, 5, axis=1)),
        bootstrap(np.zeros((1, 5)), np.repeat(by_training, 5, axis=1)),
    ):
        assert interval.high - interval.low == pytest.approx(2 * half, rel=0.1)
    by_track = np.random.default_rng(4).normal(size=30)[None]
    alone, thrice = bootstrap(by_track), bootstrap(np.repeat(by_track, 3, axis=0))
    assert (thrice.low, thrice.high) == pytest.approx((alone.low, alone.high))
    assert vars(bootstrap(np.repeat(by_track, 3, axis=0), by_track)) == pytest.approx({"mean": 0, "low": 0, "high": 0})


# The summary


def test_a_summary_by_hand():
    rows = [
        row(1, episode_return=950.0, crashes=1, interventions=2, agreement=0.5, lap_time=20.0),
        row(2, episode_return=850.0, completion=0.5, lap_finished=False, lap_time=None, off_road_events=3),
        row(3, episode_return=900.0, crashes=2, agreement=1.0, lap_time=10.0, off_road_fraction=0.3),
    ]
    summary = summarise(rows)
    assert (summary.driver, summary.tracks) == ("one", 3)
    assert (summary.return_mean, summary.return_sd, summary.return_min) == (900.0, 50.0, 850.0)
    assert summary.return_p10 == pytest.approx(860.0)
    assert summary.solved == pytest.approx(2 / 3)
    assert summary.completion == pytest.approx(2.5 / 3)
    assert summary.laps_finished == pytest.approx(2 / 3)
    assert summary.lap_time == 15.0
    assert (summary.crashes_per_episode, summary.off_road_events_per_episode) == (1.0, 1.0)
    assert summary.off_road_fraction == pytest.approx(0.1)
    assert summary.interventions_per_episode == pytest.approx(2 / 3)
    assert summary.agreement == 0.75
    assert summary.return_interval.low <= 900.0 <= summary.return_interval.high
    assert (summary.versus, summary.return_difference, summary.progress_difference) == (None, None, None)


def test_differences_are_paired():
    """Tracks differ by far more than drivers: unpaired, a constant gain of 5 would drown."""
    hard = [100.0, 500.0, 900.0]
    rows = [row(seed, episode_return=value + 5, completion=0.9) for seed, value in enumerate(hard)]
    baseline = [row(seed, driver="expert", episode_return=value) for seed, value in enumerate(hard)]
    summary = summarise(rows, baseline)
    assert summary.versus == "expert"
    assert summary.return_difference is not None
    assert summary.progress_difference is not None
    assert vars(summary.return_difference) == {"mean": 5.0, "low": 5.0, "high": 5.0}
    assert summary.progress_difference.mean == pytest.approx(-0.1)


def test_two_trainings_against_one():
    """On track 1 they are 0 and 10 above, on track 2 20 and 10: the worst that can be drawn is 0, the best 20."""
    mine = [row(seed, episode_return=value) for seed, value in ((1, 900), (2, 920), (1, 910), (2, 910))]
    other = [row(seed, driver="expert", episode_return=900) for seed in (2, 1)]
    summary = summarise(mine, other)
    difference = summary.return_difference
    assert difference is not None
    assert (difference.mean, difference.low, difference.high) == pytest.approx((10.0, 0.0, 20.0))
    assert summary.run_returns == [910.0, 910.0]


@given(st.permutations(range(5)))
def test_the_order_of_tracks_changes_no_mean(order):
    rows = [row(seed, episode_return=800.0 + 10 * seed**2) for seed in range(5)]
    one, other = summarise(rows), summarise([rows[i] for i in order])
    assert (one.return_mean, one.return_min, one.return_p10) == pytest.approx(
        (other.return_mean, other.return_min, other.return_p10)
    )


@pytest.mark.parametrize(
    ("rows", "baseline", "told"),
    [
        ([], None, "exactly one driver, got none"),
        ([row(), row(driver="two")], None, r"exactly one driver, got \['one', 'two'\]"),
        ([row(1), row(2)], [row(1)], "same tracks"),
        ([row(1)], [row(1), row(2)], "same tracks"),
        ([row(1), row(2), row(2)], None, r"as many for every track, got \(track, rows\) \[\(2, 2\), \(1, 1\)\]"),
    ],
)
def test_what_cannot_be_compared_is_refused(rows, baseline, told):
    with pytest.raises(ValueError, match=told):
        summarise(rows, baseline)


# Accuracy


def test_macro_f1_by_hand():
    labels = np.array([0, 0, 0, 1, 1, 2])
    predicted = np.array([0, 0, 1, 1, 2, 0])
    # 0: precision 2/3, recall 2/3. 1: precision 1/2, recall 1/2. 2: nothing right. 3 and 4 do not occur.
    assert macro_f1(predicted, labels) == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    assert macro_f1(labels, labels) == 1.0
    assert macro_f1(np.full(6, 4), labels) == 0.0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=50))
def test_macro_f1_is_the_mean_of_harmonic_means(pairs):
    predicted, labels = np.array(pairs).T
    scores = []
    for action in set(predicted) | set(labels):
        hits = float(np.sum((predicted == action) & (labels == action)))
        precision = hits / max(np.sum(predicted == action), 1)
        recall = hits / max(np.sum(labels == action), 1)
        scores.append(2 * precision * recall / (precision + recall) if hits else 0.0)
    assert macro_f1(predicted, labels) == pytest.approx(np.mean(scores))
    assert macro_f1(predicted, labels) == macro_f1(labels, predicted)


def test_accuracy_and_accuracy_at_changes():
    labels, predicted = np.array([0, 0, 1, 1, 2]), np.array([0, 0, 0, 1, 2])
    changes = np.array([False, False, True, False, True])
    accuracy = measure_accuracy(predicted, labels, changes)
    assert (accuracy.accuracy, accuracy.at_changes) == (0.8, 0.5)
    assert accuracy.macro_f1 == macro_f1(predicted, labels)
    assert measure_accuracy(predicted, labels, np.zeros(5, bool)).at_changes is None


def test_continuous_accuracy_is_of_the_steering():
    labels = np.array([[0.0, 1, 0], [0.5, 0, 0], [-0.5, 0, 1]], np.float32)
    predicted = labels + np.array([[0.05, -1, 0], [0.2, 0, 0], [-0.09, 1, 0]], np.float32)
    accuracy = measure_accuracy(predicted, labels, np.array([False, True, True]))
    assert accuracy.accuracy == pytest.approx(2 / 3)
    assert (accuracy.macro_f1, accuracy.at_changes) == (None, 0.5)
