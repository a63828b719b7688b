"""Formulas of the metrics, as pure functions. Definitions: docs/metrics.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nac_drive.envs import ENVIRONMENTS, EnvSpec
from nac_drive.envs.telemetry import CRASH_HEADING, OFF_ROAD_WHEELS

INTERVENTION_SECONDS = 6.0
"""Time that one intervention costs in autonomy (Bojarski et al., arXiv 1604.07316, section 7.1)."""
CRASH_FACTOR = 0.65
"""Factor of the driving score for each crash."""
STEER_TOLERANCE = 0.1
"""Continuous actions agree when their steering differs by no more than this."""
CAR_RACING = ENVIRONMENTS["car-racing"]


def steering_of(action: Any, spec: EnvSpec = CAR_RACING) -> float:
    """The steering command of an action.

    Args:
        action: A continuous action such as (steer, gas, brake), or the number of a discrete one.
        spec: The environment, which says what steers; see `EnvSpec.steers`.

    Returns:
        The command in [-1, 1], positive to the right.
    """
    if not np.ndim(action):
        assert spec.steering is not None
        return spec.steering[int(action)]
    return float(steering_commands(np.asarray(action), spec))


def steering_commands(actions: NDArray[Any], spec: EnvSpec = CAR_RACING) -> NDArray[Any]:
    """Return the steering commands of continuous actions.

    Args:
        actions: The actions, (..., K).
        spec: The environment, which says what steers.

    Returns:
        (...,) in [-1, 1], positive to the right.
    """
    assert spec.steering_part is not None
    return actions[..., spec.steering_part] / max(map(abs, spec.part_ranges[spec.steering_part]))


def agrees(action: Any, expert_action: Any, spec: EnvSpec = CAR_RACING) -> bool:
    """Return whether two actions are the same.

    Discrete ones are equal, continuous ones within 0.1 in steering. Where it is not known what steers, all numbers are
    within a twentieth of their ranges.
    """
    if not np.ndim(action):
        return int(action) == int(expert_action)
    if spec.steering_part is not None:
        return abs(steering_of(action, spec) - steering_of(expert_action, spec)) <= STEER_TOLERANCE
    low, high = np.array(spec.part_ranges).T
    differences = np.abs(np.asarray(action, float) - np.asarray(expert_action, float))
    return bool((differences <= STEER_TOLERANCE / 2 * (high - low)).all())


def driving_score(completion: float, crashes: int, off_road_fraction: float) -> float:
    """100 x completion x 0.65^crashes x (1 - off-road fraction)."""
    return 100.0 * completion * CRASH_FACTOR**crashes * (1.0 - off_road_fraction)


def autonomy(interventions: int, seconds: float) -> float:
    """Return the fraction of time without a human driver.

    It is 1 - 6 s x interventions / time, at least 0.
    """
    return max(0.0, 1.0 - INTERVENTION_SECONDS * interventions / seconds)


def steering_rate_rms(steering: Sequence[float] | np.ndarray, frames_per_second: int = 50) -> float:
    """Return the root mean square of the steering rate.

    It is the command's change per second, from one command per frame.
    """
    return float(np.sqrt(np.mean(np.square(np.diff(steering))))) * frames_per_second if len(steering) > 1 else 0.0


def steering_reversals(steering: Sequence[float] | np.ndarray, frames_per_second: int = 50) -> float:
    """Return how often the steering command changes its sign.

    It counts changes per second, from one command per frame.

    Frames without steering keep the last sign.
    """
    signs = np.sign(steering)
    signs = signs[signs != 0]
    return float(np.sum(signs[1:] != signs[:-1])) * frames_per_second / len(steering) if len(steering) else 0.0


DRIVING_SPEED = 5.0
"""Units per second above which a car counts as driving."""


def is_wrong_way(heading_error: float, speed: float) -> bool:
    """Return whether the car drives the wrong way round.

    Args:
        heading_error: Radians from the direction of the road.
        speed: Units per second.
    """
    return abs(heading_error) > CRASH_HEADING and speed > DRIVING_SPEED


def is_on_course(wheels_off_road: int, heading_error: float, speed: float) -> bool:
    """Return whether the car drives on the road in its direction.

    Args:
        wheels_off_road: Number of wheels that touch no tile, 0 to 4.
        heading_error: Radians from the direction of the road.
        speed: Units per second.
    """
    return wheels_off_road < OFF_ROAD_WHEELS and abs(heading_error) < CRASH_HEADING and speed > DRIVING_SPEED


def recovered_fraction(falls: Sequence[int], on_course: np.ndarray, frames: int) -> float | None:
    """Return the fraction of falls that the car recovers from.

    It is on course for some time afterwards. None without a fall.

    Args:
        falls: Frames after which the car has to recover.
        on_course: (F,) bool: the car drives on the road in its direction.
        frames: Consecutive frames on course that count as recovered.
    """
    if not len(falls):
        return None
    so_far = np.concatenate([[0], np.cumsum(on_course)])
    whole = np.flatnonzero(so_far[frames:] - so_far[:-frames] == frames)  # frames from which on it stays on course
    last = whole[-1] if len(whole) else -1
    return sum(fall <= last for fall in falls) / len(falls)
