"""The spread of a paired difference, where it is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from nac_drive.evaluation.spread import LEVEL, Spread, error_of, holm, mean_squares, spread_of

EXPERIMENTS = 1000


def test_one_run_each_is_the_paired_t_test():
    one, two = np.random.default_rng(0).normal(size=(2, 1, 9))
    variance, degrees = error_of(mean_squares(one, two), (1, 1), 9)
    theirs: Any = stats.ttest_rel(one[0], two[0])
    assert (one.mean() - two.mean()) / math.sqrt(variance) == pytest.approx(theirs.statistic)
    assert degrees == pytest.approx(theirs.df)


def test_without_an_effect_of_tracks_it_is_the_test_of_welch():
    rng = np.random.default_rng(1)
    one, two = rng.normal(size=(4, 1)), rng.normal(size=(6, 1), scale=3)
    variance, degrees = error_of(mean_squares(one.repeat(5, 1), two.repeat(5, 1)), (4, 6), 5)
    theirs: Any = stats.ttest_ind(one[:, 0], two[:, 0], equal_var=False)
    assert (one.mean() - two.mean()) / math.sqrt(variance) == pytest.approx(theirs.statistic)
    assert degrees == pytest.approx(theirs.df)


def test_components_by_hand():
    """Runs differ by 8, tracks by 6, corners by 1."""
    one = np.array([[1.0, 5.0], [7.0, 15.0]])
    squares = mean_squares(one, np.zeros((1, 2)))
    assert (squares.tracks, squares.runs, squares.residuals) == (18.0, (32.0, 0.0), (4.0, 0.0))
    assert spread_of(squares, (2, 1), 2) == Spread(18.0 - 4 / 2, (32.0 - 4 / 2, 0.0), (4.0, 0.0))
    assert spread_of(mean_squares(one * 0, one * 0), (2, 2), 2) == Spread(0.0, (0.0, 0.0), (0.0, 0.0))


def test_sizes_of_the_textbook():
    """Cohen, Statistical Power Analysis, 1988: half a deviation."""
    assert Spread(1.0, (0.0, 0.0), (0.0, 0.0)).tracks_needed(0.5, (1, 1)) == 34
    assert Spread(0.0, (1.0, 1.0), (0.0, 0.0)).runs_needed(0.5, (2, 2), 5) == 64


def test_more_tracks_do_not_replace_runs_nor_runs_tracks():
    runs_alone, tracks_alone = Spread(0.0, (9.0, 9.0), (0.0, 0.0)), Spread(9.0, (0.0, 0.0), (0.0, 0.0))
    assert runs_alone.tracks_needed(5.0, (2, 2)) is None
    assert tracks_alone.runs_needed(1.0, (2, 2), 5) is None
    assert runs_alone.both_needed(5.0, (2, 2), 5) == (runs_alone.runs_needed(5.0, (2, 2), 5), 18)
    mixed = Spread(4.0, (4.0, 4.0), (4.0, 4.0))
    assert mixed.both_needed(1e-4, (1, 1), 5) is None
    for runs, tracks in (((10, 10), 5), ((4, 4), 2), ((10, 1), 3)):  # two runs would have one track
        number, needed = mixed.both_needed(20.0, runs, tracks) or (0, 0)
        assert number >= 2, "several runs stay several"
        assert needed >= max(2, number * tracks / max(runs))
        assert mixed.power(20.0, tuple(min(of, number) for of in runs), needed) >= 0.8
    sizes = [mixed.power(3.0, (4, 4), tracks) for tracks in (3, 6, 12, 24)]
    assert sizes == sorted(sizes)
    needed = mixed.tracks_needed(6.0, (4, 4))
    assert needed is not None
    assert mixed.power(6.0, (4, 4), needed - 1) < 0.8 <= mixed.power(6.0, (4, 4), needed)


def drawn(spread: Spread, runs: tuple[int, int], tracks: int, difference: float, rng: np.random.Generator) -> NDArray:
    """t and its degrees of freedom in one experiment."""
    shared = rng.normal(0, 100, tracks)
    grids = [
        shared + rng.normal(0, math.sqrt(run), (number, 1)) + rng.normal(0, math.sqrt(residual), (number, tracks))
        for run, residual, number in zip(spread.runs, spread.residuals, runs, strict=True)
    ]
    grids[0] = grids[0] + difference + rng.normal(0, math.sqrt(spread.track), tracks)
    variance, degrees = error_of(mean_squares(*grids), runs, tracks)
    return np.array([(grids[0].mean() - grids[1].mean()) / math.sqrt(variance), degrees])


@pytest.mark.parametrize(
    ("spread", "runs", "tracks", "difference"),
    [
        (Spread(100.0, (0.0, 0.0), (0.0, 0.0)), (1, 1), 8, 11.0),
        (Spread(100.0, (2500.0, 2500.0), (100.0, 100.0)), (5, 5), 10, 90.0),
        (Spread(1e4, (2500.0, 2500.0), (1e4, 1e4)), (3, 3), 20, 150.0),
        (Spread(2500.0, (1e4, 0.0), (2500.0, 0.0)), (5, 1), 10, 150.0),
    ],
    ids=["tracks", "runs", "both", "a given baseline"],
)
def test_experiments_of_known_spread(spread: Spread, runs: tuple[int, int], tracks: int, difference: float):
    """Wrong in at most 5 %, right as planned."""
    rng = np.random.default_rng(2)
    null = np.array([drawn(spread, runs, tracks, 0.0, rng) for _ in range(EXPERIMENTS)]).T
    wrong = int((2 * stats.t.sf(abs(null[0]), null[1]) < 0.05).sum())
    assert stats.binomtest(wrong, EXPERIMENTS, 0.05, alternative="greater").pvalue > 0.01
    real = np.array([drawn(spread, runs, tracks, difference, rng) for _ in range(EXPERIMENTS)]).T
    seen = float((2 * stats.t.sf(real[0], real[1]) < 0.05).mean())
    planned = spread.power(difference, runs, tracks)
    error = stats.norm.isf(0.005) * math.sqrt(planned * (1 - planned) / EXPERIMENTS)
    approximation = 0.0 if runs == (1, 1) else 0.05  # Satterthwaite's degrees of freedom are one
    assert abs(seen - planned) < error + approximation
    assert 0.3 < planned < 0.95, "a plan at either end could not be wrong"


def test_components_are_estimated_without_bias():
    """A negative estimate is rare at these sizes."""
    rng, true = np.random.default_rng(3), Spread(400.0, (900.0, 100.0), (200.0, 50.0))
    found = []
    for _ in range(EXPERIMENTS):
        grids = [
            rng.normal(0, run**0.5, (6, 1)) + rng.normal(0, residual**0.5, (6, 12))
            for run, residual in zip(true.runs, true.residuals, strict=True)
        ]
        grids[0] = grids[0] + rng.normal(0, 20, 12)
        spread = spread_of(mean_squares(*grids), (6, 6), 12)
        found.append([spread.track, *spread.runs, *spread.residuals])
    expected = [true.track, *true.runs, *true.residuals]
    deviations = np.std(found, axis=0) / math.sqrt(EXPERIMENTS)
    assert np.all(np.abs(np.mean(found, axis=0) - expected) < 3.5 * deviations)


def test_the_correction_of_holm_by_hand():
    """4 x 0.005, 3 x 0.01, 2 x 0.03, 0.06."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


def test_a_plan_for_corrected_comparisons_sees_the_difference_in_4_of_5_experiments():
    """One of seven paired t-tests has an effect, of 0.5."""
    spread, comparisons = Spread(1.0, (0.0, 0.0), (0.0, 0.0)), 7
    tracks = spread.tracks_needed(0.5, (1, 1), LEVEL / comparisons)
    assert tracks == 54
    differences = np.random.default_rng(0).normal(size=(2000, comparisons, tracks))
    differences[:, 0] += 0.5
    theirs: Any = stats.ttest_1samp(differences, 0, axis=-1)
    seen = [holm(experiment)[0] < LEVEL for experiment in theirs.pvalue.tolist()]
    assert 0.78 < np.mean(seen) < 0.84
