"""Figures of closed-loop driving as pure functions of what happened. Definitions: docs/metrics.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nac_drive.envs import FRAMES_PER_SECOND, Episode, Step

SOLVED_RETURN = 900.0
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
    """None for a episode that was not finished."""
    off_road_events: int
    off_road_fraction: float
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
        if not step.info["zooming"] and step.expert_action is not None:
            self.agreed.append(agrees(step.action, step.expert_action))

    def result(
        self, driver: str, episode: Episode, *, crash_mode: str, perturbation: str = "", renderer: str = "gymnasium"
    ) -> EpisodeResult:
        outcome = episode.outcome
        seconds = sum(self.frames) / FRAMES_PER_SECOND
        off_road_fraction = float(self._per_frame(self.off_road).mean())
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
            off_road_fraction=off_road_fraction,
            crashes=outcome["crashes"],
            crash_kinds=[kind for _, kind in self.crashes],
            first_crash_time=self.crashes[0][0] / FRAMES_PER_SECOND if self.crashes else None,
            interventions=outcome["interventions"],
            autonomy=autonomy(outcome["interventions"], seconds),
            driving_score=driving_score(outcome["completion"], outcome["crashes"], off_road_fraction),
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
    """The steering command in [-1, 1] of a continuous action (steer, gas, brake) or of one of the discrete actions."""
    return float(action[0]) if np.ndim(action) else float(_DISCRETE_STEERING[int(action)])


def agrees(action: Any, expert_action: Any) -> bool:
    """Whether two actions are the same: equal (discrete actions), or within 0.1 in steering (continuous)."""
    if np.ndim(action):
        return abs(steering_of(action) - steering_of(expert_action)) <= _STEER_TOLERANCE
    return int(action) == int(expert_action)


def driving_score(completion: float, crashes: int, off_road_fraction: float) -> float:
    """100 x completion x 0.65^crashes x (1 - off-road share)."""
    return 100.0 * completion * CRASH_FACTOR**crashes * (1.0 - off_road_fraction)


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
