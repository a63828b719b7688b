"""Metrics of closed-loop driving, one `Metric` each.

A metric leads from an episode's steps to the tables and to docs/metrics.md.

A new metric is one more `Metric` in METRICS: it is then in rows.jsonl, and in summary.json and the tables as it says.
`EpisodeMetrics` and `SummaryMetrics` repeat its keys with their types, for type checkers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from nac_drive.evaluation import of_trace
from nac_drive.evaluation.formulas import (
    agrees,
    autonomy,
    steering_rate_rms,
    steering_reversals,
)
from nac_drive.evaluation.metric import (
    EMPTY,
    Aggregate,
    Count,
    Fraction,
    Metric,
    NotNegative,
    TableColumn,
    mean,
    mean_of,
    number,
    number_column,
    sample_sd,
)
from nac_drive.markdown import markdown_table
from nac_drive.registry import Registry

# Aggregates


def _minimum(values: Sequence[float]) -> float:
    return float(np.min(values))


def _tenth_percentile(values: Sequence[float]) -> float:
    return float(np.percentile(values, 10))


# Cells, of an `Evaluation`: that class needs METRICS, so it cannot be imported here


def _return_cell(evaluation: Any) -> str:
    mean, sd = (evaluation.summary.metrics[key] for key in ("return_mean", "return_sd"))
    if sd is None or sd < 0.05:  # one episode, or equal ones
        return number(mean, 0)
    return f"{number(mean, 0)} ± {number(sd, 0 if sd >= 0.5 else 1)}"


def _difference_cell(evaluation: Any) -> str:
    interval = evaluation.summary.return_difference
    if interval is None:
        return EMPTY
    return f"{interval.text('+.0f')}{' *' if evaluation.verdict is not None and evaluation.verdict.apart else ''}"


def _interventions_cell(evaluation: Any) -> str:
    intervening = evaluation.rows[0].crash_mode == "intervene"
    return number(evaluation.summary.interventions_per_episode, 2) if intervening else EMPTY


# Values of an episode


_SHIPPED: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "episode_return",
            lambda trace: trace.episode.episode_return,
            (
                Aggregate(
                    "return_mean", mean, "mean",
                    TableColumn("return ± sd", _return_cell, "Mean return ± standard deviation over episodes"),
                ),
                Aggregate("return_sd", sample_sd, "sample standard deviation"),
                Aggregate(
                    "return_min", _minimum, "smallest",
                    number_column("min", "return_min", 0, doc="Return of the worst episode."),
                ),
                Aggregate("return_p10", _tenth_percentile, "10th percentile"),
            ),
            unit="points",
            doc="Sum of native rewards: -0.1 a frame, +1000/N for each of the N tiles of the track.",
            difference="return_difference",
            difference_column=TableColumn(
                "vs baseline [95 %]", _difference_cell,
                "Mean difference of returns from the baseline on the same tracks, with its 95 % bootstrap interval. A "
                "star marks a difference that is there after Holm's correction for all comparisons of the table.",
            ),
        ),
        Metric(
            "solved",
            of_trace.solved,
            mean_of(
                "solved",
                number_column(
                    "solved %", "solved", 0, 100, "Percentage of episodes with a return of at least 900 (CarRacing)."
                ),
            ),
            kind=bool | None,
            unit="true or false",
            doc="Whether the return reached the threshold of the environment, 900 in CarRacing; null without one.",
        ),
        Metric(
            "length", lambda trace: trace.episode.length, unit="decisions", doc="Decisions of the driver.", kind=Count
        ),
        Metric(
            "completion",
            of_trace.outcome("completion"),
            mean_of("completion", number_column("completion %", "completion", 1, 100)),
            kind=Fraction | None,
            needs=("completion",),
            unit="fraction",
            doc="Visited tiles / N at the end of the episode.",
            difference="progress_difference",
        ),
        Metric(
            "lap_finished",
            of_trace.outcome("lap_finished"),
            mean_of("laps_finished"),
            kind=bool | None,
            needs=("lap_finished",),
            unit="true or false",
            doc="True if the lap was finished, see the events above.",
        ),
        Metric(
            "lap_time",
            lambda trace: trace.seconds_until(lambda step: step.outcome["lap_finished"]),
            mean_of("lap_time"),
            kind=NotNegative | None,
            needs=("lap_finished",),
            unit="s",
            doc="Time until the lap was finished; null where it was not.",
        ),
        Metric(
            "crashes",
            of_trace.outcome("crashes"),
            mean_of("crashes_per_episode", number_column("crashes/episode", "crashes_per_episode", 2)),
            kind=Count | None,
            needs=("crashes",),
            doc="Number of crashes.",
        ),
        Metric(
            "crash_kinds",
            lambda trace: [kind for kind in of_trace.crashes(trace) if kind],
            kind=list[str] | None,
            needs=("crash",),
            doc="Kind of each crash: outside, off_road or heading.",
        ),
        Metric(
            "first_crash_time",
            lambda trace: trace.seconds_until(lambda step: step.outcome["crash"]),
            kind=NotNegative | None,
            needs=("crash",),
            unit="s",
            doc="Time until the first crash; null without one.",
        ),
        Metric(
            "interventions",
            of_trace.outcome("interventions"),
            mean_of(
                "interventions_per_episode",
                TableColumn(
                    "interventions/episode", _interventions_cell,
                    "Restarts on the road after a crash; only where `crash` is intervene.",
                ),
            ),
            kind=Count | None,
            needs=("interventions",),
            doc="Restarts on the road after a crash.",
        ),
        Metric(
            "autonomy",
            lambda trace: autonomy(trace.episode.outcome["interventions"], trace.seconds),
            mean_of("autonomy"),
            kind=Fraction | None,
            needs=("interventions",),
            unit="fraction",
            doc="1 - 6 s x interventions / time, at least 0 (Bojarski et al., arXiv 1604.07316, section 7.1).",
        ),
        Metric(
            "off_road_events",
            of_trace.outcome("off_road_events"),
            mean_of("off_road_events_per_episode"),
            kind=Count | None,
            needs=("off_road_events",),
            doc="Number of off-road events.",
        ),
        Metric(
            "off_road_fraction",
            of_trace.off_road_fraction,
            mean_of("off_road_fraction", number_column("off road %", "off_road_fraction", 1, 100)),
            kind=Fraction | None,
            needs=("off_road",),
            unit="fraction",
            doc="Fraction of frames inside an off-road event.",
        ),
        Metric(
            "wrong_way",
            of_trace.wrong_way,
            mean_of("wrong_way"),
            kind=NotNegative | None,
            needs=("heading_error", "speed"),
            unit="s",
            doc="Time in which the car drives along the road the other way round: heading error above 90 degrees, "
            "faster than 5 units/s.",
        ),
        Metric(
            "recovered",
            of_trace.recovered,
            mean_of("recovered"),
            kind=Fraction | None,
            needs=("crash", "wheels_off_road", "heading_error", "speed"),
            unit="fraction",
            doc="Fraction of crashes and mishaps after which the car drives on the road in its direction for a second; "
            "null without one.",
        ),
        Metric(
            "driving_score",
            of_trace.driving_score,
            mean_of("driving_score", number_column("driving score", "driving_score", 1)),
            kind=NotNegative | None,
            needs=("completion", "crashes", "off_road"),
            doc="100 x completion x 0.65^crashes x (1 - off-road fraction).",
        ),
        Metric(
            "lateral_mean",
            lambda trace: float(of_trace.lateral(trace).mean()),
            kind=NotNegative | None,
            needs=("lateral_offset",),
            unit="half-widths of the road",
            doc="Mean distance from the centre line; 1 is the edge of the road.",
        ),
        Metric(
            "lateral_rms",
            lambda trace: of_trace.rms(of_trace.lateral(trace)),
            mean_of("lateral_rms"),
            kind=NotNegative | None,
            needs=("lateral_offset",),
            unit="half-widths of the road",
            doc="Root mean square of the distance from the centre line.",
        ),
        Metric(
            "lateral_p95",
            lambda trace: float(np.percentile(of_trace.lateral(trace), 95)),
            kind=NotNegative | None,
            needs=("lateral_offset",),
            unit="half-widths of the road",
            doc="95th percentile of the distance from the centre line.",
        ),
        Metric(
            "heading_rms",
            lambda trace: of_trace.rms(of_trace.heading(trace)),
            kind=NotNegative | None,
            needs=("heading_error",),
            unit="rad",
            doc="Root mean square of the heading error against the road.",
        ),
        Metric(
            "steering_rate_rms",
            of_trace.of_steering(steering_rate_rms),
            mean_of("steering_rate_rms"),
            kind=NotNegative | None,
            unit="1/s",
            doc="Root mean square of the change of the steering command per second.",
        ),
        Metric(
            "steering_reversals",
            of_trace.of_steering(steering_reversals),
            mean_of("steering_reversals"),
            kind=NotNegative | None,
            unit="1/s",
            doc="Changes of the sign of the steering command per second.",
        ),
        Metric(
            "agreement",
            lambda trace: of_trace.against_expert(trace, partial(agrees, spec=trace.spec)),
            mean_of("agreement", number_column("agreement %", "agreement", 1, 100)),
            kind=Fraction | None,
            unit="fraction",
            doc="Fraction of the driver's own frames where the expert would do the same (discrete: the same action; "
            "continuous: steering within 0.1; where the steering is not known, every number within a twentieth of its "
            "range); null without an expert.",
        ),
        Metric(
            "steering_mae",
            lambda trace: of_trace.steering_error(trace, 1),
            mean_of("steering_mae", number_column("steering error", "steering_mae", 3)),
            kind=NotNegative | None,
            doc="Mean absolute difference between the driver's and the expert's steering, of -1 to 1, on the frames of "
            "`agreement`.",
        ),
        Metric(
            "steering_mse",
            lambda trace: of_trace.steering_error(trace, 2),
            mean_of("steering_mse", number_column("squared", "steering_mse", 4)),
            kind=NotNegative | None,
            doc="Mean squared difference between the driver's and the expert's steering, on the same frames.",
        ),
        Metric(
            "latency_ms",
            lambda trace: 1000 * float(np.median([step.latency for step in trace.steps if step.latency is not None])),
            mean_of("latency_ms", number_column("ms/act", "latency_ms", 2)),
            kind=NotNegative,
            unit="ms",
            doc="Median time of one `act` for one car on one thread; of a batch, every 64th decision of a car is made "
            "alone and timed. `compare` measures one episode with nothing else running.",
        ),
    )
}  # fmt: skip


def _require_metric(name: str, metric: Any) -> None:
    """Check what a user adds.

    Raises:
        ValueError: It is no metric of that name.
    """
    if not isinstance(metric, Metric):
        raise ValueError(
            f"metric {name!r}: must be a Metric, got {type(metric).__name__}; pass Metric({name!r}, function of the "
            "trace of an episode)."
        )
    if metric.name != name:
        raise ValueError(f"metric {name!r}: the name of the Metric must be the same, got {metric.name!r}.")


METRICS: Registry[Metric] = Registry("metric", _SHIPPED, check=_require_metric)
"""All metrics by their names, in the order of the tables."""


def columns() -> list[TableColumn]:
    """Return the columns of all metrics.

    A column without its own sentence has its metric's.
    """
    return [replace(column, doc=column.doc or metric.doc) for metric in METRICS.values() for column in metric.columns]


def metrics_table() -> str:
    """All metrics as a GitHub markdown table, as docs/metrics.md shows it."""
    rows = []
    for metric in METRICS.values():
        keys = [f"`{aggregate.name}` ({aggregate.doc})" for aggregate in metric.aggregate]
        if metric.difference:
            keys.append(f"`{metric.difference}` (paired difference from the baseline)")
        headings = ", ".join(column.heading for column in metric.columns)
        rows.append((f"`{metric.name}`", metric.unit, metric.doc, ", ".join(keys), headings))
    names = ("key of a row", "unit", "meaning", "keys of the summary", "columns")
    return markdown_table(names, rows, "lllll") + "\n"
