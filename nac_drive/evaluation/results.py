"""The metrics of an episode: measured by a subscriber of the rollout, written as a row of rows.jsonl."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Self

import msgspec
import numpy as np

from nac_drive.envs import ENVIRONMENTS, LARGEST_SEED, EnvSpec, Episode, Step
from nac_drive.evaluation.metrics import METRICS
from nac_drive.evaluation.trace import EpisodeTrace
from nac_drive.storage.read import read_json_lines


class MetricValues:
    """A record whose `metrics` can be read as attributes: `row.crashes` is `row.metrics["crashes"]`.

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
    """The type of every metric of an episode, in the order of METRICS, which says what they are."""

    episode_return: float
    length: int
    completion: float
    lap_finished: bool
    lap_time: float | None
    crashes: int
    crash_kinds: list[str]
    first_crash_time: float | None
    interventions: int
    autonomy: float
    off_road_events: int
    off_road_fraction: float
    wrong_way: float
    recovered: float | None
    driving_score: float
    lateral_mean: float
    lateral_rms: float
    lateral_p95: float
    heading_rms: float
    steering_rate_rms: float
    steering_reversals: float
    agreement: float | None
    latency_ms: float


@dataclass(frozen=True)
class EpisodeResult(EpisodeMetrics):
    """One driver on one track: the conditions, and the value of every metric."""

    driver: str
    seed: int
    """Seed of the track."""
    crash_mode: str
    perturbation: str
    """Specification of the perturbation, see `envs.perturb`; empty for none."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Name of a metric -> value, see METRICS. They are attributes, too."""

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
    """Return the type of a row of rows.jsonl: the conditions, and every metric of METRICS with its kind."""
    kinds = {"seed": Annotated[int, msgspec.Meta(ge=0, le=LARGEST_SEED)]}
    conditions = [(name, kinds.get(name, str)) for name in _CONDITIONS]
    metrics = [(name, metric.kind) for name, metric in METRICS.items()]
    return msgspec.defstruct("Row", [*conditions, *metrics], forbid_unknown_fields=True)


def results_of(rows: Sequence[msgspec.Struct]) -> list[EpisodeResult]:
    """Return the results that rows of `row_type` hold."""
    return [EpisodeResult.from_dict(msgspec.structs.asdict(row)) for row in rows]


def read_results(path: str | os.PathLike[str]) -> tuple[list[EpisodeResult], bool]:
    """Read a rows.jsonl.

    Returns:
        The results, and whether the last row is cut off; it is left out.

    Raises:
        FileError: A whole row does not have all metrics of METRICS, of their kinds, as in an older version.
    """
    rows, cut_off = read_json_lines(path, row_type(), "an episode of an evaluation", "evaluate into another folder")
    return results_of(rows), cut_off


class EpisodeMeter:
    """Subscribes to a rollout and measures the episode."""

    def __init__(self, spec: EnvSpec = ENVIRONMENTS["car-racing"]) -> None:
        self._spec = spec
        self._steps: list[Step] = []

    def __call__(self, step: Step) -> None:
        self._steps.append(replace(step, observation=np.empty(0)))  # 27 kB less

    def result(self, driver: str, episode: Episode, *, crash_mode: str, perturbation: str = "") -> EpisodeResult:
        """The metrics of the episode that was driven.

        Args:
            driver: Name of the driver.
            episode: The end of the episode, from `rollout`.
            crash_mode: The effect of a crash.
            perturbation: As `envs.perturb` takes it.

        Returns:
            The result, with a value of every metric in METRICS.
        """
        trace = EpisodeTrace(self._steps, episode, self._spec)
        metrics = {name: metric.per_episode(trace) for name, metric in METRICS.items()}
        return EpisodeResult(driver, episode.seed, crash_mode, perturbation, metrics)
