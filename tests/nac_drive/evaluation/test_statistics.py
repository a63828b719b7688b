"""Intervals and summaries, on values whose answers are known by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from nac_drive.evaluation.intervals import bootstrap
from nac_drive.evaluation.statistics import summarise
from tests.nac_drive.evaluation.rows import row


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


def test_one_run_is_paired_by_track_as_scipy_does_it():
    mine, other = np.random.default_rng(2).normal(size=(2, 1, 12))
    theirs = stats.bootstrap((mine[0] - other[0],), np.mean, n_resamples=10_000, method="percentile",
                                   rng=np.random.default_rng(0)).confidence_interval  # fmt: skip
    interval = bootstrap(mine, other)
    assert (interval.low, interval.high) == pytest.approx((theirs.low, theirs.high))


def test_runs_are_resampled_too():
    """If runs alone differ, or tracks alone, the interval belongs to a plain mean over them; runs of the baseline
    count alike."""
    by_run = np.random.default_rng(3).normal(size=8)[:, None]
    half = stats.norm.ppf(0.975) * by_run.std() / np.sqrt(8)
    for interval in (
        bootstrap(np.repeat(by_run, 5, axis=1)),
        bootstrap(np.zeros((1, 5)), np.repeat(by_run, 5, axis=1)),
    ):
        assert interval.high - interval.low == pytest.approx(2 * half, rel=0.1)
    by_track = np.random.default_rng(4).normal(size=30)[None]
    alone, thrice = bootstrap(by_track), bootstrap(np.repeat(by_track, 3, axis=0))
    assert (thrice.low, thrice.high) == pytest.approx((alone.low, alone.high))
    assert vars(bootstrap(np.repeat(by_track, 3, axis=0), by_track)) == pytest.approx({"mean": 0, "low": 0, "high": 0})


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


def test_two_runs_against_one():
    """On track 1 they are 0 and 10 above, on track 2 20 and 10: the worst resample is 0, the best 20."""
    mine = [row(seed, episode_return=value) for seed, value in ((1, 900), (2, 920), (1, 910), (2, 910))]
    other = [row(seed, driver="expert", episode_return=900) for seed in (2, 1)]
    summary = summarise(mine, other)
    difference = summary.return_difference
    assert difference is not None
    assert (difference.mean, difference.low, difference.high) == pytest.approx((10.0, 0.0, 20.0))
    assert summary.run_returns == [910.0, 910.0]
    assert summary.return_interval == bootstrap(np.array([[900.0, 920.0], [910.0, 910.0]]))  # runs are resampled too
    assert summary.return_interval != bootstrap(np.array([[900.0, 920.0, 910.0, 910.0]]))


@given(st.permutations(range(5)))
def test_the_order_of_tracks_changes_no_mean(order):
    rows = [row(seed, episode_return=800.0 + 10 * seed**2) for seed in range(5)]
    one, other = summarise(rows), summarise([rows[i] for i in order])
    assert (one.return_mean, one.return_min, one.return_p10) == pytest.approx(
        (other.return_mean, other.return_min, other.return_p10)
    )


@pytest.mark.parametrize(
    ("rows", "baseline", "message"),
    [
        ([], None, "exactly one driver, got none"),
        ([row(), row(driver="two")], None, r"exactly one driver, got \['one', 'two'\]"),
        ([row(1), row(2)], [row(1)], "same tracks"),
        ([row(1)], [row(1), row(2)], "same tracks"),
        ([row(1), row(2), row(2)], None, r"as many for every track, got \(track, rows\) \[\(2, 2\), \(1, 1\)\]"),
    ],
)
def test_rows_that_cannot_be_compared_are_refused(rows, baseline, message):
    with pytest.raises(ValueError, match=message):
        summarise(rows, baseline)
