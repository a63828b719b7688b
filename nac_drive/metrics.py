"""Figures of closed-loop driving as pure functions of what happened. Definitions: docs/metrics.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
from scipy import stats

from envs import FRAMES_PER_SECOND, Episode, Step

GOOD_LAP = 900.0
"""The return from which CarRacing counts as solved."""
INTERVENTION_SECONDS = 6.0
"""What one intervention costs in autonomy (Bojarski et al., arXiv 1604.07316, section 7.1)."""
CRASH_FACTOR = 0.65
_STEER_TOLERANCE = 0.1
_DISCRETE_STEERING = np.array([0.0, 0.6, -0.6, 0.0, 0.0])


@dataclass(frozen=True)
class EpisodeResult:
    """One driver on one track. Times in seconds, distances over the half-width of the road, angles in radians."""

    driver: str
    seed: int
    crash_mode: str
    perturbation: str
    """As `envs.perturb` takes it; empty for none."""
    renderer: str
    """Who drew the frames."""
    episode_return: float
    length: int
    """Decisions."""
    completion: float
    lap_finished: bool
    lap_time: float | None
    """None for a lap that was not finished."""
    off_road_events: int
    off_road_share: float
    crashes: int
    crash_kinds: list[str]
    first_crash_time: float | None
    interventions: int
    autonomy: float
    driving_score: float
    lateral_mean: float
    lateral_rms: float
    lateral_p95: float
    heading_rms: float
    steering_rate_rms: float
    steering_reversals: float
    agreement: float | None
    latency_ms: float


@dataclass
class EpisodeMeter:
    """Subscribes to a rollout and turns its steps into an `EpisodeResult`. Zoom-in frames count for no accuracy.

    A step that lasts several frames (`info["dt"]`: lost frames, repeated actions) counts as often in rates and shares.
    """

    frames: list[int] = field(default_factory=list)
    """Frames of the simulator that each step lasted."""
    steering: list[float] = field(default_factory=list)
    agreed: list[bool] = field(default_factory=list)
    lateral: list[float] = field(default_factory=list)
    heading: list[float] = field(default_factory=list)
    zooming: list[bool] = field(default_factory=list)
    off_road: list[bool] = field(default_factory=list)
    crashes: list[tuple[int, str]] = field(default_factory=list)
    """Frame, counted from 1, and kind."""
    lap_frames: int | None = None
    latency: list[float] = field(default_factory=list)

    def __call__(self, step: Step) -> None:
        outcome = step.outcome
        self.frames.append(round(outcome["dt"] * FRAMES_PER_SECOND))
        self.steering.append(steering_of(step.action))
        self.lateral.append(outcome["lateral_offset"])
        self.heading.append(outcome["heading_error"])
        self.zooming.append(step.info["zooming"])
        self.off_road.append(outcome["off_road"])
        self.latency.append(step.latency)
        if outcome["crash"]:
            self.crashes.append((sum(self.frames), outcome["crash"]))
        if outcome["lap_finished"] and self.lap_frames is None:
            self.lap_frames = sum(self.frames)
        if not step.info["zooming"] and step.advice is not None:
            self.agreed.append(agrees(step.action, step.advice))

    def result(
        self, driver: str, episode: Episode, *, crash_mode: str, perturbation: str = "", renderer: str = "gymnasium"
    ) -> EpisodeResult:
        outcome = episode.outcome
        seconds = sum(self.frames) / FRAMES_PER_SECOND
        off_road_share = float(self._per_frame(self.off_road).mean())
        zooming = self._per_frame(self.zooming)
        lateral, heading = (np.abs(self._per_frame(values))[~zooming] for values in (self.lateral, self.heading))
        if zooming.all():  # it ended before the zoom-in did
            lateral = heading = np.zeros(1)
        steering = self._per_frame(self.steering)
        return EpisodeResult(
            driver=driver,
            seed=episode.seed,
            crash_mode=crash_mode,
            perturbation=perturbation,
            renderer=renderer,
            episode_return=episode.episode_return,
            length=episode.length,
            completion=outcome["completion"],
            lap_finished=outcome["lap_finished"],
            lap_time=self.lap_frames / FRAMES_PER_SECOND if self.lap_frames else None,
            off_road_events=outcome["off_road_events"],
            off_road_share=off_road_share,
            crashes=outcome["crashes"],
            crash_kinds=[kind for _, kind in self.crashes],
            first_crash_time=self.crashes[0][0] / FRAMES_PER_SECOND if self.crashes else None,
            interventions=outcome["interventions"],
            autonomy=autonomy(outcome["interventions"], seconds),
            driving_score=driving_score(outcome["completion"], outcome["crashes"], off_road_share),
            lateral_mean=float(lateral.mean()),
            lateral_rms=float(np.sqrt((lateral**2).mean())),
            lateral_p95=float(np.percentile(lateral, 95)),
            heading_rms=float(np.sqrt((heading**2).mean())),
            steering_rate_rms=steering_rate_rms(steering),
            steering_reversals=steering_reversals(steering),
            agreement=float(np.mean(self.agreed)) if self.agreed else None,
            latency_ms=1000 * float(np.median(self.latency)),
        )

    def _per_frame(self, values: Sequence[Any]) -> np.ndarray:
        return np.repeat(values, self.frames)


def steering_of(action: Any) -> float:
    """The steering command in [-1, 1] of a continuous action (steer, gas, brake) or of one of the five actions."""
    return float(action[0]) if np.ndim(action) else float(_DISCRETE_STEERING[int(action)])


def agrees(action: Any, advice: Any) -> bool:
    """Whether two actions are the same: equal (five actions), or within 0.1 in steering (continuous)."""
    if np.ndim(action):
        return abs(steering_of(action) - steering_of(advice)) <= _STEER_TOLERANCE
    return int(action) == int(advice)


def driving_score(completion: float, crashes: int, off_road_share: float) -> float:
    """100 x completion x 0.65^crashes x (1 - off-road share)."""
    return 100.0 * completion * CRASH_FACTOR**crashes * (1.0 - off_road_share)


def autonomy(interventions: int, seconds: float) -> float:
    """1 - 6 s x interventions / time, at least 0: the share of time without a human at the wheel."""
    return max(0.0, 1.0 - INTERVENTION_SECONDS * interventions / seconds)


def steering_rate_rms(steering: Sequence[float] | np.ndarray) -> float:
    """Root mean square of the change of the steering command, given once a frame, per second."""
    return float(np.sqrt(np.mean(np.square(np.diff(steering))))) * FRAMES_PER_SECOND if len(steering) > 1 else 0.0


def steering_reversals(steering: Sequence[float] | np.ndarray) -> float:
    """Changes of the sign of the steering command, given once a frame, per second; frames without steering keep the
    last sign."""
    signs = np.sign(steering)
    signs = signs[signs != 0]
    return float(np.sum(signs[1:] != signs[:-1])) * FRAMES_PER_SECOND / len(steering) if len(steering) else 0.0


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
    good_laps: float
    """Share of laps with a return of at least 900."""
    completion: float
    laps_finished: float
    lap_time: float | None
    crashes_per_lap: float
    off_road_events_per_lap: float
    off_road_share: float
    interventions_per_lap: float
    autonomy: float
    driving_score: float
    lateral_rms: float
    steering_rate_rms: float
    steering_reversals: float
    agreement: float | None
    latency_ms: float
    return_interval: Interval
    training_returns: list[float]
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
    laps = Counter(row.seed for row in rows)
    if len(set(laps.values())) > 1:
        raise ValueError(f"rows must be as many for every track, got (track, rows) {laps.most_common()}.")
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
        good_laps=float((returns >= GOOD_LAP).mean()),
        completion=mean("completion"),
        laps_finished=mean("lap_finished"),
        lap_time=float(np.mean(lap_times)) if lap_times else None,
        crashes_per_lap=mean("crashes"),
        off_road_events_per_lap=mean("off_road_events"),
        off_road_share=mean("off_road_share"),
        interventions_per_lap=mean("interventions"),
        autonomy=mean("autonomy"),
        driving_score=mean("driving_score"),
        lateral_rms=mean("lateral_rms"),
        steering_rate_rms=mean("steering_rate_rms"),
        steering_reversals=mean("steering_reversals"),
        agreement=float(np.mean(agreements)) if agreements else None,
        latency_ms=mean("latency_ms"),
        return_interval=bootstrap(grid),
        training_returns=grid.mean(axis=1).tolist(),
        versus=versus,
        return_difference=difference,
        progress_difference=progress,
    )
