"""The metrics of an episode, as a row of rows.jsonl.

A subscriber of the rollout measures them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Self

import msgspec
import numpy as np

from nac_drive.envs import ENVIRONMENTS, LARGEST_SEED, EnvSpec, Episode, Step
from nac_drive.evaluation.metrics import METRICS
from nac_drive.evaluation.trace import EpisodeTrace
from nac_drive.markdown import number_text
from nac_drive.storage.read import read_json_lines


class MetricValues:
    """A record whose `metrics` can be read as attributes.

    `row.crashes` is `row.metrics["crashes"]`.

    A subclass names the attributes and their types, for editors and type checkers.
    """

    metrics: dict[str, Any]

    if not TYPE_CHECKING:  # a type checker would take every other attribute for a metric of any type

        def __getattr__(self, name: str) -> Any:
            if name != "metrics" and not name.startswith("_") and name in self.metrics:
                return self.metrics[name]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute or metric {name!r}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.metrics]

    def with_metrics(self, **changed: Any) -> Self:
        """Return a copy in which some metrics have other values."""
        return replace(self, metrics={**self.metrics, **changed})  # type: ignore[type-var]


class EpisodeMetrics(MetricValues):
    """The type of every metric of an episode. None where the environment does not report what it needs.

    METRICS has the same order, and says what they are.
    """

    episode_return: float
    solved: bool | None
    length: int
    completion: float | None
    lap_finished: bool | None
    lap_time: float | None
    crashes: int | None
    crash_kinds: list[str] | None
    first_crash_time: float | None
    interventions: int | None
    autonomy: float | None
    off_road_events: int | None
    off_road_fraction: float | None
    wrong_way: float | None
    recovered: float | None
    driving_score: float | None
    lateral_mean: float | None
    lateral_rms: float | None
    lateral_p95: float | None
    heading_rms: float | None
    steering_rate_rms: float | None
    steering_reversals: float | None
    agreement: float | None
    steering_mae: float | None
    steering_mse: float | None
    latency_ms: float


@dataclass(frozen=True)
class EpisodeResult(EpisodeMetrics):
    """One driver on one track: the conditions, and the value of every metric."""

    driver: str
    seed: int
    """Seed of the track."""
    crash_mode: str
    perturbation: str | None
    """Specification of the perturbation, see `envs.perturb`; None for none."""
    run: int | None = None
    """Seed of the driver's training, where a driver has several; None for a driver that is there already."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Name of a metric -> value, see METRICS. They are attributes, too."""

    def __repr__(self) -> str:
        shortened = f"{self.driver}, track {self.seed}: return {number_text(self.episode_return, '.1f')}"
        return f"EpisodeResult({shortened}, {self.crashes} crash(es))"

    def to_dict(self) -> dict[str, Any]:
        """A flat, JSON-able row of rows.jsonl."""
        return {**{name: getattr(self, name) for name in _CONDITIONS}, **self.metrics}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> EpisodeResult:
        """Return the result that `to_dict` made a row of."""
        metrics = {name: value for name, value in row.items() if name not in _CONDITIONS}
        return cls(**{name: row[name] for name in _CONDITIONS}, metrics=metrics)


_CONDITIONS = tuple(item.name for item in fields(EpisodeResult) if item.name != "metrics")


def row_type() -> Any:
    """Return the type of a row of rows.jsonl.

    It has the conditions, and every metric of METRICS with its kind.
    """
    return _row_type(tuple(METRICS))


@cache
def _row_type(names: tuple[str, ...]) -> Any:
    seed: Any = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_SEED)]
    conditions: list[Any] = [
        ("driver", str), ("seed", seed), ("crash_mode", str), ("perturbation", str | None), ("run", seed | None)
    ]  # fmt: skip
    metrics = [(name, METRICS[name].kind) for name in names]
    return msgspec.defstruct("EpisodeRow", [*conditions, *metrics], forbid_unknown_fields=True)


def episode_of(row: Mapping[str, Any]) -> EpisodeResult:
    """Return the result that a row of rows.jsonl holds.

    Raises:
        msgspec.ValidationError: Unless it has all conditions and metrics, of their kinds.
    """
    return EpisodeResult.from_dict(msgspec.structs.asdict(msgspec.convert(row, row_type())))


def read_results(path: str | os.PathLike[str]) -> list[EpisodeResult]:
    """Read the rows.jsonl of an evaluation, a stress test or a comparison.

    Raises:
        FileError: Unless every row has all metrics of METRICS, of their kinds.
    """
    fix = "pass the plug-in of a metric of your own, or evaluate into another folder"
    rows, _ = read_json_lines(path, row_type(), "an episode of an evaluation", fix)
    return [EpisodeResult.from_dict(msgspec.structs.asdict(row)) for row in rows]


class EpisodeMeter:
    """Subscribes to a rollout and measures the episode."""

    def __init__(self, spec: EnvSpec = ENVIRONMENTS["car-racing"]) -> None:
        self._spec = spec
        self._steps: list[Step] = []

    def __call__(self, step: Step) -> None:
        self._steps.append(replace(step, observation=np.empty(0)))  # 27 kB less

    def result(
        self, driver: str, episode: Episode, *, crash_mode: str, perturbation: str | None = None, run: int | None = None
    ) -> EpisodeResult:
        """The metrics of the episode that was driven.

        Args:
            driver: Name of the driver.
            episode: The end of the episode, from `rollout`.
            crash_mode: The effect of a crash.
            perturbation: As `envs.perturb` takes it.
            run: Seed of the driver's training, where it has several.

        Returns:
            The result, with a value of every metric in METRICS.
        """
        trace = EpisodeTrace(self._steps, episode, self._spec)
        metrics = {name: metric.of(trace) for name, metric in METRICS.items()}
        return EpisodeResult(driver, episode.seed, crash_mode, perturbation, run, metrics)
