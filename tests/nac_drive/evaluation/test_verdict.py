"""The verdict on two drivers: every outcome, in a sentence."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from nac_drive.evaluation.evaluate import Evaluation, with_holm
from nac_drive.evaluation.intervals import bootstrap
from nac_drive.evaluation.verdict import corrected, paired
from nac_drive.experiments.headline import headline, over_baseline, over_worlds
from nac_drive.experiments.leaderboard import RankedDriver, leaderboard
from nac_drive.markdown import number_text
from tests.nac_drive.evaluation.rows import row

NAMES, TRAINED = ("mingru", "lstm"), (True, True)


def grid(runs: list[float], tracks: list[float]) -> NDArray[np.float64]:
    """Returns: effects of run and track, added."""
    return 800.0 + np.array(runs)[:, None] + np.array(tracks)


def evaluation(name: str, returns: list[float], baseline: Evaluation | None = None, run: int | None = 0) -> Evaluation:
    rows = [row(seed, driver=name, episode_return=value, run=run) for seed, value in enumerate(returns)]
    return Evaluation.of(rows, baseline.rows if baseline else None)


def test_the_interval_is_the_bootstrap_interval():
    one, two = np.random.default_rng(0).normal(800, 50, size=(2, 3, 6))
    verdict = paired(one, two, NAMES, TRAINED)
    assert verdict.difference == bootstrap(one, two)
    assert paired(one, two, NAMES, TRAINED, verdict.difference) == verdict


def test_what_cannot_be_told_names_the_size_that_could():
    one, two = grid([0.0, 138.0], [-140.0, 90.0, 0.0, 80.0, -30.0]), grid([-40.0, 40.0], [0.0] * 5)
    verdict = paired(one, two, NAMES, TRAINED)
    assert verdict.outcome == "open"
    assert verdict.tracks_needed is None
    assert verdict.sentence == (
        f"mingru scores 69 more than lstm on average {verdict.difference.text('+.0f').split(' ', 1)[1]}: not "
        f"distinguishable with 2 runs x 5 tracks (p = {verdict.p_value:.2g}); to tell a difference of 69 apart you "
        "need about 28 runs x 70 tracks (no number of tracks suffices with 2 runs)."
    )
    same_runs = paired(one - one.mean(axis=1, keepdims=True) + 869, two * 0 + 800, NAMES, TRAINED)
    needed = same_runs.tracks_needed
    assert needed is not None
    assert f"you need about {needed} tracks (no number of runs suffices with 5 tracks)" in same_runs.sentence


def test_a_difference_a_small_one_and_none():
    noise = [3.0, -2.0, 1.0, -4.0, 2.0, 0.0]
    large = paired(grid([100.0, 101.0, 99.0], noise), grid([0.0, 1.0, 2.0], noise[::-1]), NAMES, TRAINED)
    assert (large.outcome, large.apart) == ("more", True)
    assert large.sentence.startswith("mingru scores 99 more than lstm on average [")
    assert large.sentence.endswith("]: a difference, with 3 runs x 6 tracks (p < 0.001).")
    small = paired(grid([9.0], noise), grid([0.0], noise[::-1]), NAMES, (False, False))
    assert (small.outcome, small.apart) == ("alike", True)
    assert "a difference, but a small one, within 16 points (2 %), with 6 tracks." in small.sentence
    none = paired(grid([0.0], noise), grid([0.0], noise[::-1]), NAMES, TRAINED)
    assert (none.outcome, none.apart) == ("alike", False)
    assert none.sentence.startswith("mingru scores as much as lstm on average [")
    assert none.sentence.endswith("alike, within 16 points (2 %), with 1 run x 6 tracks; other runs may differ.")
    less = paired(grid([0.0, 2.0, 1.0], noise[::-1]), grid([100.0], noise), ("a", "b"), (True, False))
    assert (less.outcome, less.sentence.split(" on ")[0]) == ("less", "a scores 99 less than b")


def test_few_tracks_are_not_alike_because_nothing_was_shown():
    """No difference in the mean, a spread beyond the margin."""
    verdict = paired(grid([0.0], [60.0, -60.0, 0.0]), grid([0.0], [0.0, 0.0, 0.0]), NAMES)
    assert verdict.p_value == pytest.approx(1.0)
    assert verdict.outcome == "open"
    assert "to tell a difference of 16 apart you need about 120 tracks." in verdict.sentence


def test_one_track_and_equal_differences():
    one = paired(np.array([[923.0]]), np.array([[900.0]]), NAMES)
    assert one.sentence == "mingru scores 23 more than lstm: one track says nothing about others."
    assert (one.outcome, one.p_value, one.tracks_needed) == ("open", None, None)
    constant = paired(grid([50.0], [0.0, 3.0]), grid([0.0], [0.0, 3.0]), NAMES)
    assert (constant.outcome, constant.p_value) == ("more", None)
    same = paired(grid([0.0], [0.0, 3.0]), grid([0.0], [0.0, 3.0]), NAMES)
    assert same.outcome == "alike"
    assert same.sentence.startswith("mingru scores as much as lstm on average [0, 0]: alike")


def test_two_runs_that_vary_far_more_than_tracks_prove_nothing():
    """The interval of two runs is too narrow."""
    verdict = paired(grid([60.0, 150.0], [0.0, 1.0, 2.0, 1.0]), grid([-40.0, 50.0], [0.0] * 4), NAMES, TRAINED)
    assert verdict.difference.low > 0
    assert verdict.outcome == "open"
    assert "; so few make the interval too narrow)" in verdict.sentence


def test_the_correction_decides_and_the_table_marks_what_is_left():
    tracks = [0.0, 40.0, -30.0, 10.0, 20.0, -10.0]
    baseline = evaluation("lstm", [800.0 + value for value in tracks])
    noise = {"a": [30, 90, -10, 60, 40, 30], "b": [100, 104, 96, 101, 99, 100], "c": [50, -40, 30, -60, 20, -5]}
    others = [evaluation(name, [800.0 + t + d for t, d in zip(tracks, by, strict=True)], baseline)
              for name, by in noise.items()]  # fmt: skip
    assert [each.verdict and each.verdict.apart for each in others] == [True, True, False]
    drivers = [RankedDriver(each) for each in with_holm([baseline, *others])]
    verdicts = [driver.evaluation.verdict for driver in drivers]
    assert verdicts[0] is None
    assert [verdict and verdict.comparisons for verdict in verdicts[1:]] == [3, 3, 3]
    assert [verdict and verdict.outcome for verdict in verdicts[1:]] == ["open", "more", "open"]
    assert verdicts[1] is not None
    assert "with Holm's correction for 3 comparisons);" in verdicts[1].sentence
    table = leaderboard(drivers)
    cells = [line[table.headings.index("vs baseline [95 %]")] for line in table.rows]
    assert [cell.endswith(" *") for cell in cells] == [False, False, True, False]
    assert table.legend.endswith("*: a difference with Holm's correction for 3 comparisons.")
    assert headline(drivers) == "b scores more than lstm; a and c are not distinguishable from lstm."
    trained = [replace(driver, runs=2) for driver in drivers]
    a, b, c = (f"{each.driver} ({each.difference.text('+.0f')})" for each in verdicts if each)
    assert over_baseline(trained, "a net") == (
        f"{b} scores more than lstm, a net; {a} and {c} are not distinguishable from lstm; intervals without zero did "
        "not pass the test."
    )
    assert over_baseline([trained[0], trained[3]], "a net") == f"no driver is distinguishable from lstm, a net: {c}."
    one = RankedDriver(evaluation("gru", [900.0], evaluation("lstm", [700.0])), runs=2)
    assert over_baseline([one], "a net") == "no driver is distinguishable from lstm, a net: gru (+200)."
    assert json.loads(json.dumps(drivers[1].evaluation.to_dict()))["verdict"]["sentence"] == verdicts[1].sentence


def test_all_drive_alike_only_if_every_pair_does():
    tracks = [0.0, 40.0, -30.0, 10.0, 20.0, -10.0]

    def drivers(*offsets: float, spread: float = 1.0) -> list[RankedDriver]:
        def returns(offset: float) -> list[float]:
            return [800 + track + offset + spread * ((7 * n) % 5 - 2) for n, track in enumerate(tracks)]

        baseline = evaluation("lstm", returns(0))
        others = [evaluation(f"core-{n}", returns(offset), baseline) for n, offset in enumerate(offsets)]
        for each in others:
            each.rows.reverse()
        found = [RankedDriver(each) for each in with_holm([baseline, *others])]
        return [found[0], *(RankedDriver(each.evaluation, has_memory=n != 0) for n, each in enumerate(found[1:]))]

    assert headline(drivers(4.0, -4.0)) == "All three drive alike, within 16 points (2 %). These tracks need no memory."
    apart = headline(drivers(12.0, -12.0))
    assert apart == "core-0 and core-1 score as much as lstm.", "24 points between them"
    assert headline(drivers(4.0)) == drivers(4.0)[1].evaluation.verdict.sentence  # type: ignore[union-attr]
    assert headline(drivers()) == ""


def test_verdicts_over_worlds():
    base = grid([0.0], [0.0, 3.0, -3.0, 1.0])
    effects = {"no perturbation": [0.5, -0.5, 0.2, -0.2], "gap:1": [300, 310, 290, 305], "fog:1": [90, -80, 40, 20]}
    found = corrected([paired(base + np.array(effect), base, NAMES) for effect in effects.values()])
    text = over_worlds(dict(zip(effects, found, strict=True)))
    assert text.startswith(
        "mingru scores more than lstm under gap:1, and scores as much as lstm under no perturbation, and is not "
        "distinguishable from lstm under fog:1 (4 tracks; Holm's correction for 3 comparisons). Under fog:1: to "
        "tell a difference of 18 apart you need about "
    )


def test_one_track_is_no_result():
    lstm = evaluation("lstm", [919.0])
    drivers = [RankedDriver(each) for each in with_holm([lstm, *(evaluation(name, [52.0], lstm) for name in "ab")])]
    assert headline(drivers) == "All drivers drove one track, which says nothing about others."
    worlds = dict.fromkeys(("no perturbation", "gap:1"), drivers[1].evaluation.verdict)
    assert over_worlds(worlds) == "a and lstm drove one track, which says nothing about others."  # type: ignore[arg-type]


def test_numbers_that_round_to_zero_have_no_sign():
    assert [number_text(value, "+.0f") for value in (-0.2, 0.2, 0.0, 3.0, -3.0)] == ["0", "0", "0", "+3", "-3"]
    assert (number_text(-0.001, ".2f"), number_text(-0.04, "+.1f"), number_text(-1e-9, "+.3g")) == (
        "0.00", "0.0", "-1e-09",
    )  # fmt: skip
    assert (number_text(-1234.0, ",.0f"), number_text(-0.1, ",.0f")) == ("-1,234", "0")
    equal, near = ([row(seed, episode_return=900 + spread * seed) for seed in range(3)] for spread in (0.0, 0.2))
    assert leaderboard([RankedDriver(Evaluation.of(equal))]).rows[0][1] == "900"
    assert leaderboard([RankedDriver(Evaluation.of(near))]).rows[0][1] == "900 ± 0.2"
