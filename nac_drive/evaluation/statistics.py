"""Summaries of the episodes of a driver, with paired differences. Pure functions of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nac_drive.evaluation.intervals import Interval, bootstrap
from nac_drive.evaluation.metrics import METRICS
from nac_drive.evaluation.results import EpisodeResult, MetricValues


class SummaryMetrics(MetricValues):
    """The type of every aggregate and difference in METRICS."""

    return_mean: float
    return_sd: float | None
    return_min: float
    return_p10: float
    solved: float | None
    completion: float | None
    laps_finished: float | None
    lap_time: float | None
    crashes_per_episode: float | None
    interventions_per_episode: float | None
    autonomy: float | None
    off_road_events_per_episode: float | None
    off_road_fraction: float | None
    wrong_way: float | None
    recovered: float | None
    driving_score: float | None
    lateral_rms: float | None
    steering_rate_rms: float | None
    steering_reversals: float | None
    agreement: float | None
    steering_mae: float | None
    steering_mse: float | None
    latency_ms: float
    return_difference: Interval | None
    progress_difference: Interval | None


@dataclass(frozen=True)
class Summary(SummaryMetrics):
    """One driver over all tracks of an evaluation."""

    driver: str
    tracks: int
    """Number of episodes."""
    metrics: dict[str, Any]
    """Numbers over all episodes, see METRICS and docs/metrics.md. They are attributes, too: `summary.return_mean`."""
    return_interval: Interval
    """Mean return with its interval over tracks and runs."""
    run_returns: list[float]
    """Mean return of each run."""
    versus: str | None = None
    """The baseline: the driver that differences are taken against, on the same tracks."""
    differences: dict[str, Interval | None] = field(default_factory=dict)
    """Paired differences from the baseline, see METRICS; None without a baseline. They are attributes, too."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_") and name != "differences" and name in self.differences:
                return self.differences[name]
            return super().__getattr__(name)

    @property
    def _facts(self) -> str:
        """The driver, its return and its episodes, in a line."""
        return f"{self.driver}: return {self.return_interval.text('.0f')} in {self.tracks} episodes"

    def __repr__(self) -> str:
        return f"Summary({self._facts})"

    def to_dict(self) -> dict[str, Any]:
        """A flat, JSON-able entry of summary.json."""
        flat = asdict(self)
        metrics, differences = flat.pop("metrics"), flat.pop("differences")
        return {"driver": flat.pop("driver"), "tracks": flat.pop("tracks"), **metrics, **flat, **differences}


def summarise(rows: Sequence[EpisodeResult], baseline: Sequence[EpisodeResult] | None = None) -> Summary:
    """Aggregate the metrics of one driver.

    Args:
        rows: Its episodes. A driver may have several rows for a track, one for each run (training), in the same order
            on all tracks: the intervals then hold for other runs too.
        baseline: Episodes of another driver on the same tracks, that paired differences are taken against.

    Returns:
        The summary.

    Raises:
        ValueError: Without rows, for rows of several drivers, for tracks with more rows than others, or when the tracks
            differ from the baseline's.
    """
    drivers = {row.driver for row in rows}
    if len(drivers) != 1:
        raise ValueError(f"rows must come from exactly one driver, got {sorted(drivers) or 'none'}.")
    episodes = Counter(row.seed for row in rows)
    if len(set(episodes.values())) > 1:
        raise ValueError(f"rows must be as many for every track, got (track, rows) {episodes.most_common()}.")
    if baseline and {row.seed for row in rows} != {row.seed for row in baseline}:
        raise ValueError("baseline must hold the same tracks: the comparison is paired.")
    returns = grid(rows, "episode_return")
    return Summary(
        driver=rows[0].driver,
        tracks=len(rows),
        metrics={
            each.name: each.over([row.metrics[metric.name] for row in _by_track(rows)])
            for metric in METRICS.values()
            for each in metric.aggregate
        },
        return_interval=bootstrap(returns),
        run_returns=returns.mean(axis=1).tolist(),
        versus=baseline[0].driver if baseline else None,
        differences={
            metric.difference: _difference(metric.name, rows, baseline) if baseline else None
            for metric in METRICS.values()
            if metric.difference
        },
    )


def _difference(name: str, rows: Sequence[EpisodeResult], baseline: Sequence[EpisodeResult]) -> Interval | None:
    """Return the paired difference of a metric. None where an episode has no value."""
    if any(row.metrics[name] is None for row in (*rows, *baseline)):
        return None
    return bootstrap(grid(rows, name), grid(baseline, name))


def grid(rows: Sequence[EpisodeResult], name: str) -> np.ndarray:
    """Return a metric of every run and track, (runs, tracks).

    Tracks have the order of their seeds.
    """
    tracks = sorted({row.seed for row in rows})
    return np.array([[row.metrics[name] for row in rows if row.seed == track] for track in tracks]).T


def _by_track(rows: Sequence[EpisodeResult]) -> list[EpisodeResult]:
    """Run by run, each in the order of the tracks' seeds: sums do not depend on the order of the tracks."""
    runs: Counter[int] = Counter()
    keyed = []
    for row in rows:
        keyed.append((runs[row.seed], row.seed, row))
        runs[row.seed] += 1
    return [row for _, _, row in sorted(keyed, key=lambda each: each[:2])]
