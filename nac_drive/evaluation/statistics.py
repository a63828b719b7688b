"""Statistics of episodes: summaries, paired differences and bootstrap intervals. Pure functions of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
from scipy import stats

from nac_drive.evaluation.metrics import SOLVED_RETURN, EpisodeResult


@dataclass(frozen=True)
class Interval:
    """A mean with the ends of its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


def bootstrap(grid: np.ndarray, baseline: np.ndarray | None = None) -> Interval:
    """Mean of `grid`, less that of `baseline` on the same tracks, with its percentile bootstrap interval (10 000
    resamples, fixed seed).

    Both (trainings, tracks). Tracks are drawn anew for both together, which pairs them, and trainings for each, where
    there are several (the pigeonhole bootstrap: Owen, Annals of Applied Statistics 1(2), 2007).
    """
    grids = [grid] if baseline is None else [grid, baseline]
    units = [np.arange(grid.shape[1]), *(np.arange(len(each)) for each in grids)]
    drawable = [len(unit) > 1 for unit in units]

    def difference(*drawn: np.ndarray, axis: int) -> np.ndarray:
        indices = iter(drawn)
        tracks, *rows = (
            next(indices).astype(int) if able else unit for able, unit in zip(drawable, units, strict=True)
        )
        means = [
            each[row[..., None], tracks[..., None, :]].mean(axis=(-2, -1))
            for each, row in zip(grids, rows, strict=True)
        ]
        return means[0] if baseline is None else means[0] - means[1]

    mean = float(grid.mean()) if baseline is None else float(grid.mean() - baseline.mean())
    if not any(drawable):
        return Interval(mean, mean, mean)
    interval = stats.bootstrap(
        tuple(compress(units, drawable)), difference, n_resamples=10_000, method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return Interval(mean, float(interval.low), float(interval.high))


@dataclass(frozen=True)
class Summary:
    """One driver over all tracks of an evaluation."""

    driver: str
    tracks: int
    return_mean: float
    return_sd: float
    return_min: float
    return_p10: float
    solved: float
    """Share of episodes with a return of at least 900."""
    completion: float
    laps_finished: float
    lap_time: float | None
    crashes_per_episode: float
    off_road_events_per_episode: float
    off_road_fraction: float
    interventions_per_episode: float
    autonomy: float
    driving_score: float
    lateral_rms: float
    steering_rate_rms: float
    steering_reversals: float
    agreement: float | None
    latency_ms: float
    return_interval: Interval
    run_returns: list[float]
    """Mean return of each training."""
    versus: str | None = None
    """The driver that the differences are taken against, on the same tracks."""
    return_difference: Interval | None = None
    progress_difference: Interval | None = None


def _grid(rows: Sequence[EpisodeResult], name: str) -> np.ndarray:
    """A figure of every training on every track (trainings, tracks), tracks in the order of their seeds."""
    tracks = sorted({row.seed for row in rows})
    return np.array([[getattr(row, name) for row in rows if row.seed == track] for track in tracks]).T


def summarise(rows: Sequence[EpisodeResult], baseline: Sequence[EpisodeResult] | None = None) -> Summary:
    """Mean figures of one driver's rows, and paired differences against the rows of `baseline` on the same tracks.

    A driver may have several rows for a track, one for each time it was trained, in the same order on all tracks: the
    intervals then hold for other trainings too. Raises ValueError without rows, for rows of several drivers, for tracks
    with more rows than others, or when the tracks differ.
    """
    drivers = {row.driver for row in rows}
    if len(drivers) != 1:
        raise ValueError(f"rows must come from exactly one driver, got {sorted(drivers) or 'none'}.")
    episodes = Counter(row.seed for row in rows)
    if len(set(episodes.values())) > 1:
        raise ValueError(f"rows must be as many for every track, got (track, rows) {episodes.most_common()}.")
    grid = _grid(rows, "episode_return")
    returns = grid.ravel()
    lap_times = [row.lap_time for row in rows if row.lap_time is not None]
    agreements = [row.agreement for row in rows if row.agreement is not None]

    def mean(name: str) -> float:
        return float(np.mean([getattr(row, name) for row in rows]))

    difference = progress = versus = None
    if baseline:
        if {row.seed for row in rows} != {row.seed for row in baseline}:
            raise ValueError("baseline must hold the same tracks: the comparison is paired.")
        versus = baseline[0].driver
        difference, progress = (
            bootstrap(_grid(rows, name), _grid(baseline, name)) for name in ("episode_return", "completion")
        )
    return Summary(
        driver=rows[0].driver,
        tracks=len(rows),
        return_mean=float(returns.mean()),
        return_sd=float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
        return_min=float(returns.min()),
        return_p10=float(np.percentile(returns, 10)),
        solved=float((returns >= SOLVED_RETURN).mean()),
        completion=mean("completion"),
        laps_finished=mean("lap_finished"),
        lap_time=float(np.mean(lap_times)) if lap_times else None,
        crashes_per_episode=mean("crashes"),
        off_road_events_per_episode=mean("off_road_events"),
        off_road_fraction=mean("off_road_fraction"),
        interventions_per_episode=mean("interventions"),
        autonomy=mean("autonomy"),
        driving_score=mean("driving_score"),
        lateral_rms=mean("lateral_rms"),
        steering_rate_rms=mean("steering_rate_rms"),
        steering_reversals=mean("steering_reversals"),
        agreement=float(np.mean(agreements)) if agreements else None,
        latency_ms=mean("latency_ms"),
        return_interval=bootstrap(grid),
        run_returns=grid.mean(axis=1).tolist(),
        versus=versus,
        return_difference=difference,
        progress_difference=progress,
    )
