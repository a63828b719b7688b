"""Statistics under stress: exact answers, and scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from nac_drive.evaluation.intervals import (
    area_under_curve,
    bootstrap,
    clearly_positive,
    ratio,
    survival,
)
from nac_drive.evaluation.verdict import paired
from nac_drive.experiments.families import families
from nac_drive.experiments.stress import stress_cell
from tests.nac_drive.evaluation.rows import row

CLEAN, STRESSED, OTHER = [900.0, 800.0, 1000.0], [450.0, 300.0, 600.0], [500.0, 300.0, 100.0]


def rows(returns: list[float], **changed):
    return [row(seed, episode_return=value, **changed) for seed, value in enumerate(returns)]


def test_a_cell_by_hand():
    mine = rows(STRESSED, driver="mine", perturbation="gap:1", crashes=2, interventions=1)
    mine[1] = mine[1].with_metrics(first_crash_time=4.0)
    mine[2] = mine[2].with_metrics(first_crash_time=6.0)
    found = stress_cell(mine[::-1], rows(CLEAN, driver="mine"), rows(OTHER, driver="other"))
    assert (found.driver, found.perturbation, found.tracks) == ("mine", "gap:1", 3)
    assert (found.return_mean.mean, found.return_min) == (450.0, 300.0)
    assert found.fraction_kept is not None
    assert found.fraction_kept.mean == pytest.approx(0.5)
    assert 300 / 800 <= found.fraction_kept.low < 0.5 < found.fraction_kept.high <= 600 / 1000
    assert found.degradation.mean == 450.0
    assert (found.crashes_per_episode, found.interventions_per_episode) == (2.0, 1.0)
    assert found.crash_free == pytest.approx(1 / 3)
    assert found.first_crash_time == 5.0
    assert found.versus is not None
    assert found.versus.difference.mean == 150.0
    assert found.versus.win_rate == 0.5  # a loss, a draw and a win


@given(st.lists(st.tuples(st.floats(-100, 950), st.floats(-100, 950)), min_size=3, max_size=12))
def test_p_value_and_effect_size_belong_to_the_paired_t_test(pairs):
    one, two = np.array(pairs).T[:, None]  # a run each
    found = paired(one, two)
    if found.effect_size is None:
        assert found.p_value is None
        return
    t = found.effect_size * np.sqrt(one.size)
    if np.isfinite(t) and abs(t) < 1e6:
        assert found.p_value == pytest.approx(2 * stats.t.sf(abs(t), one.size - 1), abs=1e-9)
    reverse = paired(two, one)
    assert reverse.win_rate == pytest.approx(1 - found.win_rate)
    assert reverse.difference.mean == pytest.approx(-found.difference.mean)


def test_the_time_of_the_first_crash_is_the_median_of_the_episodes_with_one():
    """One early crash among late ones moves a mean."""
    mine = [row(seed, first_crash_time=time) for seed, time in enumerate([1.0, 8.0, 9.0, None])]
    assert stress_cell(mine, rows([900.0] * 4), None).first_crash_time == 8.0


def test_equal_returns_have_no_spread():
    same = np.array([[900.0, 910.0]])
    found = paired(same, same)
    assert (found.p_value, found.effect_size, found.win_rate, found.difference.mean) == (None, None, 0.5, 0.0)
    assert ratio(same, same) == ratio(same[:, :1], same[:, :1])


@given(st.lists(st.tuples(st.floats(-100, 950), st.floats(-100, 950, allow_subnormal=False)), min_size=1, max_size=12))
@example([(5.0, 0.0)] * 2 + [(5.0, 7.0)] * 3)  # a resample may consist of zeros
@example([(0.0, 1.0), (4.0, 2.3e-308)])  # or of numbers that are nearly zero
@example([(4.0, 2.3e-308)])
def test_a_ratio_to_a_mean_that_is_not_clearly_positive_is_none(pairs):
    returns, reference = np.array(pairs).T[:, None]
    with np.errstate(divide="raise", invalid="raise"):
        found = ratio(returns, reference)
    interval = bootstrap(reference)
    if reference.mean() < 1e-6 or interval.low <= 0:
        assert found is None
    else:
        assert found is not None
        assert found.mean == pytest.approx(returns.mean() / reference.mean())
        assert np.isfinite([found.low, found.high]).all()


def test_losses_do_not_grow_from_nothing():
    """A driver that falls from -42 to -85 keeps no 200 %, and one near 0 no 1033 %."""
    assert ratio(np.array([[-85.0, -85.0]]), np.array([[-42.0, -42.0]])) is None
    assert ratio(np.array([[93.0, 93.0]]), np.array([[-40.0, 58.0]])) is None
    assert ratio(np.array([[-85.0]]), np.array([[-42.0]])) is None
    assert clearly_positive(np.array([800.0, -10.0, 900.0, 850.0]))


def test_the_area_is_the_mean_over_the_levels():
    assert area_under_curve([1.0, 1.0, 1.0]) == 1.0
    assert area_under_curve([0.5]) == 0.75
    assert area_under_curve([0.8, 0.4]) == pytest.approx((0.9 + 0.6) / 2)


def test_survival_falls_at_every_first_crash_and_ends_with_the_episodes_that_have_none():
    found = survival([2.0, None, 5.0, 2.0], np.array([0.0, 1.99, 2.0, 4.0, 5.0, 99.0]))
    assert found.tolist() == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]


def test_words_stand_for_families_of_levels():
    found = {family.name: family.specs for family in families(["frame-drop:skip", "gap:2", "shadows", "gap:3+gap:0"])}
    assert found["frame-drop:skip"] == ("frame-drop:1:skip", "frame-drop:2:skip", "frame-drop:3:skip")
    assert found["gap:2"] == ("gap:2",)
    assert found["shadows"] == ("shadows:1", "shadows:2", "shadows:3")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "at least one perturbation is needed; choose from published-colour"),
        (["fog"], "each part must be NAME:LEVEL"),
        (["fog:1"], "perturbation 'fog' is unknown"),
        (["gap:0"], "'gap:0' names no perturbation"),
        (["shadows:hold"], "loses no frames"),
        (["gap", "gap:2"], "gap:2 comes twice"),
    ],
)
def test_bad_words_are_named(words, message):
    with pytest.raises(ValueError, match=message):
        families(words)
