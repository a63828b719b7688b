"""Metrics of an episode counted by hand, and a new metric that needs nothing but its `Metric`."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any, assert_type, get_args, get_type_hints

import cloudpickle
import numpy as np
import pytest

from nac_drive.data_collection.controller.controller import Controller
from nac_drive.envs import EnvConfig, Episode, Step
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.evaluation.formulas import recovered_fraction
from nac_drive.evaluation.intervals import Interval
from nac_drive.evaluation.metric import Aggregate, Count, Fraction, Metric, NotNegative, Number, mean, number_column
from nac_drive.evaluation.metrics import METRICS, metrics_table
from nac_drive.evaluation.results import EpisodeMeter, EpisodeMetrics, EpisodeResult, episode_of
from nac_drive.evaluation.statistics import SummaryMetrics, summarise
from nac_drive.experiments.leaderboard import RankedDriver, leaderboard, save_results, training_columns_table
from nac_drive.registry import pickled_additions
from tests.nac_drive.evaluation.rows import CONDITIONS, row

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"

STEPS = [
    # action, expert_action, zooming, lateral, heading, off_road, crash, speed, wheels_off_road
    (1, 1, True, 9.0, 9.0, False, None, 20.0, 0),
    (1, 1, False, 0.3, 0.0, False, None, 20.0, 0),
    (2, 1, False, -0.4, 0.1, False, "heading", 20.0, 4),
    (2, 2, False, 0.0, -0.2, True, None, 6.0, 2),
    (0, 4, False, 0.0, 0.0, True, "off_road", 4.0, 2),
]


def test_a_meter_counts_an_episode_by_hand():
    meter = EpisodeMeter()
    for index, (action, expert_action, zooming, lateral, heading, off_road, crash, speed, wheels) in enumerate(STEPS):
        outcome = {
            "lateral_offset": lateral, "heading_error": heading, "off_road": off_road, "crash": crash, "dt": 0.02,
            "lap_finished": False, "speed": speed, "wheels_off_road": wheels,
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
    assert result.wrong_way == 1 / 50
    assert result.recovered == 0, "two frames are no second"
    assert result.driving_score == pytest.approx(100 * 0.5 * 0.65**2 * 0.6)
    assert result.agreement == pytest.approx(2 / 4)
    assert (result.steering_mae, result.steering_mse) == pytest.approx((1.2 / 4, 1.2**2 / 4)), "left in place of right"
    assert result.lateral_mean == pytest.approx(0.7 / 4)
    assert result.lateral_rms == pytest.approx(np.sqrt(0.25 / 4))
    assert result.lateral_p95 == pytest.approx(0.3 + 0.85 * 0.1)  # 0.95 of the way along 0, 0, 0.3, 0.4
    assert result.heading_rms == pytest.approx(np.sqrt(0.05 / 4))
    assert result.steering_reversals == pytest.approx(1 * 50 / 5)
    assert result.steering_rate_rms == pytest.approx(50 * np.sqrt((1.2**2 + 0.6**2) / 4))
    assert result.latency_ms == pytest.approx(3.0)


def test_an_episode_that_ends_in_the_zoom_and_a_finished_lap_are_counted():
    meter = EpisodeMeter()
    outcome = {
        "lateral_offset": 1.0,
        "heading_error": 1.0,
        "off_road": False,
        "crash": None,
        "dt": 20.0,
        "lap_finished": True,
        "speed": 30.0,
        "wheels_off_road": 0,
    }
    meter(Step(0, np.zeros(1), {"zooming": True}, 0.0, 3, 3, None, 1.0, False, False, outcome, 0.0))
    end = {"completion": 1.0, "lap_finished": True, "off_road_events": 0, "crashes": 0, "interventions": 1}
    result = meter.result("driver", Episode(7, 5.0, 1, True, end), crash_mode="intervene")
    assert (result.lateral_mean, result.heading_rms, result.agreement, result.steering_mae) == (0.0, 0.0, None, None)
    assert result.lap_time == 20.0
    assert result.autonomy == pytest.approx(0.7)


def test_a_step_of_several_frames_counts_like_as_many_frames():
    """Length and the expert's metrics alone count decisions."""
    durations = [1, 3, 2, 1, 4]
    end = {"completion": 1.0, "lap_finished": True, "off_road_events": 1, "crashes": 2, "interventions": 0}
    results = []
    for expanded in (False, True):
        meter = EpisodeMeter()
        for facts, frames in zip(STEPS, durations, strict=True):
            action, _, zooming, lateral, heading, off_road, crash, speed, wheels = facts
            for i in range(frames if expanded else 1):
                kind = crash if not expanded or i == frames - 1 else None
                outcome = {
                    "lateral_offset": lateral, "heading_error": heading, "off_road": off_road, "crash": kind,
                    "speed": speed, "wheels_off_road": wheels,
                }  # fmt: skip
                outcome["dt"] = 0.02 if expanded else frames * 0.02
                outcome["lap_finished"] = (action, lateral) == (2, 0.0) and (not expanded or i == frames - 1)
                meter(Step(0, np.zeros(1), {"zooming": zooming}, 0.0, action, action, None, 1.0, False, False, outcome,
                           0.003))  # fmt: skip
        results.append(meter.result("driver", Episode(7, 5.0, 5, True, end), crash_mode="ignore"))
    assert results[0] == results[1]
    assert (results[0].lap_time, results[0].first_crash_time) == (7 / 50, 6 / 50)
    assert results[0].off_road_fraction == pytest.approx(5 / 11)
    assert results[0].steering_reversals == pytest.approx(50 / 11)


# The registry


def top_speed(trace: Any) -> float:
    return max(step.outcome["speed"] for step in trace.steps)


TOY = Metric(
    "top_speed",
    top_speed,
    (
        Aggregate("top_speed_mean", mean, "mean", number_column("top speed", "top_speed_mean", 1)),
        Aggregate("top_speed_max", max, "max"),
    ),
    unit="units/s",
    doc="The highest speed.",
)


def test_a_new_metric_is_in_rows_summary_and_table(monkeypatch, tmp_path):
    monkeypatch.setitem(METRICS, "top_speed", TOY)
    evaluation = evaluate(Controller(), [5, 6], name="me", env=EnvConfig(max_steps=60))
    speeds = [row.metrics["top_speed"] for row in evaluation.rows]
    assert evaluation.rows[0].top_speed == speeds[0]  # type: ignore[attr-defined]
    assert min(speeds) > 1
    assert evaluation.summary.metrics["top_speed_mean"] == pytest.approx(np.mean(speeds))
    save_results(tmp_path, [RankedDriver(evaluation)])
    row = evaluation.rows[0].to_dict()
    assert row["top_speed"] == speeds[0]
    assert episode_of(row) == evaluation.rows[0]
    assert f'"top_speed_max": {max(speeds)}' in (tmp_path / "results.json").read_text()
    table = leaderboard([RankedDriver(evaluation)])
    assert dict(zip(table.headings, table.rows[0], strict=True))["top speed"] == f"{np.mean(speeds):.1f}"
    (line,) = [line for line in metrics_table().splitlines() if "top_speed" in line]
    assert "units/s | The highest speed. | `top_speed_mean` (mean), `top_speed_max` (max) | top speed |" in line


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        (lambda trace: trace.nothing, float, r"failed: test_metrics.py:\d+: AttributeError: .*'nothing'"),
        (
            lambda trace: None,
            float,
            "returned None: Expected `float`, got `null`; return another value, or",
        ),
        (lambda trace: np.ones(3), float, r"returned array\(\[1., 1., 1.\]\): Expected `float`"),
        (lambda trace: float("nan"), float, "returned nan; return None where it cannot be measured"),
    ],
)
def test_a_metric_of_ones_own_that_goes_wrong_is_named(function, kind, message, monkeypatch):
    monkeypatch.setitem(METRICS, "mine", Metric("mine", function, kind=kind))
    with pytest.raises(ValueError, match=f"metric 'mine', track 5: its function {message}"):
        evaluate(Controller(), [5], env=EnvConfig(max_steps=60))


def test_a_metric_of_ones_own_reaches_other_processes(monkeypatch):
    """The limits of its kind could not be pickled."""
    monkeypatch.setitem(METRICS, "top_speed", TOY)
    (sent,) = cloudpickle.loads(pickled_additions()["metric"]).values()
    assert (sent.name, sent.kind, sent.doc) == (TOY.name, Number, TOY.doc)


def test_a_number_of_numpy_is_a_number(monkeypatch, tmp_path):
    monkeypatch.setitem(METRICS, "mine", Metric("mine", lambda trace: np.float32(0.5)))
    evaluation = evaluate(Controller(), [5], env=EnvConfig(max_steps=60))
    assert json.loads(json.dumps(evaluation.rows[0].to_dict()))["mine"] == 0.5


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (top_speed, "metric 'mine': must be a Metric, got function; pass Metric\\('mine'"),
        (TOY, "metric 'mine': the name of the Metric must be the same, got 'top_speed'"),
    ],
)
def test_what_is_no_metric_is_refused_where_it_is_added(metric, message):
    with pytest.raises(ValueError, match=message):
        METRICS["mine"] = metric


def test_a_result_is_its_row_and_can_be_sent_to_another_process():
    result = row(7, crashes=2)
    assert set(result.to_dict()) == {*CONDITIONS, *METRICS}
    assert EpisodeResult.from_dict(result.to_dict()) == result
    assert pickle.loads(pickle.dumps(result)) == result
    assert (result.crashes, result.with_metrics(crashes=3).crashes, result.crashes) == (2, 3, 2)
    assert "crashes" in dir(result)
    with pytest.raises(AttributeError, match="'EpisodeResult' object has no attribute or metric 'crushes'"):
        _ = result.crushes  # type: ignore[attr-defined]


def test_every_metric_has_a_type_and_every_typed_attribute_is_a_metric():
    """METRICS says what the values are; these classes say it to editors and type checkers."""
    kinds = {Count: int, Number: float, Fraction: float, NotNegative: float, bool: bool, list[str]: list[str]}
    kinds |= {kind | None: of | None for kind, of in kinds.items()}
    types = get_type_hints(EpisodeMetrics)
    del types["metrics"]
    assert types == {name: kinds[metric.kind] for name, metric in METRICS.items()}
    assert list(types) == list(METRICS)
    assert_type(row().crashes, int | None)  # pyright sees it, too
    assert_type(row().lap_time, float | None)


def test_every_aggregate_has_a_type_that_says_whether_it_may_be_none():
    types = get_type_hints(SummaryMetrics)
    del types["metrics"]
    empty: dict[str, Any] = {name: None for name, metric in METRICS.items() if type(None) in get_args(metric.kind)}
    summary = summarise([row(**empty)])
    optional = {name for name, value in {**summary.metrics, **summary.differences}.items() if value is None}
    assert list(types) == [*summary.metrics, *summary.differences]
    assert optional == {name for name, kind in types.items() if type(None) in get_args(kind)}
    assert {name for name, kind in types.items() if kind == Interval | None} == {*summary.differences}
    assert_type(summary.return_mean, float)
    assert_type(summary.return_difference, Interval | None)


def test_names_and_headings_are_unique_and_everything_is_explained():
    keys = [each.name for metric in METRICS.values() for each in metric.aggregate]
    headings = [column.heading for metric in METRICS.values() for column in metric.columns]
    assert len(keys) == len(set(keys))
    assert len(headings) == len(set(headings))
    for name, metric in METRICS.items():
        assert metric.name == name
        assert re.fullmatch(r".+\.", metric.doc), name


def test_the_page_shows_the_metrics_as_they_are():
    page = DOCS.read_text()
    assert metrics_table() in page
    assert training_columns_table() in page


@pytest.mark.parametrize(
    ("falls", "on_course", "expected"),
    [
        ([], "111", None), ([0], "111", 1), ([1], "111", 0), ([1], "1111", 1), ([1, 3], "0010111", 1),
        ([1, 5], "0010111", 1 / 2), ([0], "1101101", 0), ([0], "11", 0),
    ],
)  # fmt: skip
def test_recovered_is_three_frames_in_a_row_on_course(falls, on_course, expected):
    assert recovered_fraction(falls, np.array(list(on_course)) == "1", 3) == expected
