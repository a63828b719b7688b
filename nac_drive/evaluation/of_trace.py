"""Functions of an episode's steps, for `METRICS`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from nac_drive.evaluation import formulas
from nac_drive.evaluation.formulas import is_on_course, is_wrong_way, recovered_fraction, steering_of
from nac_drive.evaluation.trace import EpisodeTrace


def outcome(key: str) -> Callable[[EpisodeTrace], Any]:
    """Return a function for what the environment reports."""
    return lambda trace: trace.episode.outcome[key]


def steers(trace: EpisodeTrace) -> bool:
    """Return whether it is known what steers."""
    return trace.spec.steers("continuous" if np.ndim(trace.steps[0].action) else "discrete")


def of_steering(function: Callable[[np.ndarray, int], float]) -> Callable[[EpisodeTrace], float | None]:
    """A function of all steering commands and the frame rate.

    The value is None if it is not known what steers.
    """

    def value(trace: EpisodeTrace) -> float | None:
        if not steers(trace):
            return None
        steering = trace.per_frame(lambda step: steering_of(step.action, trace.spec))
        return function(steering, trace.spec.frames_per_second)

    return value


def solved(trace: EpisodeTrace) -> bool | None:
    """Return whether the return reached the environment's threshold.

    None without one.
    """
    least = trace.spec.solved_return
    return None if least is None else trace.episode.episode_return >= least


def lateral(trace: EpisodeTrace) -> np.ndarray:
    """Return distances from the centre line, (N,), after the zoom.

    The unit is half the road's width.
    """
    return np.abs(trace.after_zoom(lambda step: step.outcome["lateral_offset"]))


def heading(trace: EpisodeTrace) -> np.ndarray:
    """Return heading errors in radians, (N,), after the zoom."""
    return np.abs(trace.after_zoom(lambda step: step.outcome["heading_error"]))


def rms(values: np.ndarray) -> float:
    """Return the root mean square."""
    return float(np.sqrt((values**2).mean()))


def off_road_fraction(trace: EpisodeTrace) -> float:
    """Return the fraction of frames inside an off-road event."""
    return float(trace.per_frame(lambda step: step.outcome["off_road"]).mean())


def driving_score(trace: EpisodeTrace) -> float:
    """Return `formulas.driving_score` of an episode."""
    reported = trace.episode.outcome
    return formulas.driving_score(reported["completion"], reported["crashes"], off_road_fraction(trace))


def wrong_way(trace: EpisodeTrace) -> float:
    """Return the seconds of driving the other way round."""
    wrong = trace.per_frame(lambda step: is_wrong_way(step.outcome["heading_error"], step.outcome["speed"]))
    return int(wrong.sum()) / trace.spec.frames_per_second


def crashes(trace: EpisodeTrace) -> list[str | None]:
    """Return the kind of crash that begins in each step.

    It may last, as a car stands at a wall.
    """
    kinds = [None, *(step.outcome["crash"] for step in trace.steps)]
    return [None if before else now for before, now in pairwise(kinds)]


def recovered(trace: EpisodeTrace) -> float | None:
    """Return the fraction of falls that the car recovers from.

    A fall is a crash or a mishap.
    """
    mishaps = [0, *(step.outcome.get("mishaps", 0) for step in trace.steps)]
    ends = trace.frames.cumsum().tolist()
    falls = [
        end
        for end, crash, (before, count) in zip(ends, crashes(trace), pairwise(mishaps), strict=True)
        if crash or count > before
    ]
    on_course = trace.per_frame(
        lambda step: is_on_course(*(step.outcome[name] for name in ("wheels_off_road", "heading_error", "speed")))
    )
    return recovered_fraction(falls, on_course, trace.spec.frames_per_second)


def against_expert(trace: EpisodeTrace, value: Callable[[Any, Any], float]) -> float | None:
    """Return the mean of a function of both actions."""
    values = [
        value(step.action, step.expert_action)
        for step in trace.steps
        if not step.info["zooming"] and step.expert_action is not None
    ]
    return float(np.mean(values)) if values else None


def steering_error(trace: EpisodeTrace, power: int) -> float | None:
    """Return the mean power of the steering error."""
    if not steers(trace):
        return None
    return against_expert(
        trace,
        lambda action, label: abs(steering_of(action, trace.spec) - steering_of(label, trace.spec)) ** power,
    )
