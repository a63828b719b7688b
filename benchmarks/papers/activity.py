"""Measures of the activity of neurons over an episode, and of how it differs between manoeuvres.

Shapes: T frames, N neurons.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MANOEUVRES = ("left", "straight", "right")
STRAIGHT = 0.012
"""Largest curvature of a straight, in radians per unit: a radius of 83 units."""


def lipschitz(activity: np.ndarray, dt: np.ndarray | float = 1.0) -> np.ndarray:
    """The steepest change of every neuron (thesis, Algorithm 15).

    The algorithm as it is printed takes the largest difference with its sign; here it is the difference of absolute
    values, which bounds the slope.

    Args:
        activity: (T, N), T at least 2.
        dt: Seconds between two frames, (T - 1,) or one number; 1 as in the thesis.

    Returns:
        (N,): max over t of |x(t + 1) - x(t)| / dt.
    """
    steps = np.abs(np.diff(activity, axis=0))
    return (steps / np.reshape(dt, (-1, 1))).max(axis=0)


@dataclass(frozen=True)
class Components:
    """Principal components of an activity."""

    explained: np.ndarray
    """(K,) fraction of the variance that each component explains, the largest first."""
    directions: np.ndarray
    """(K, N) unit vectors."""
    scores: np.ndarray
    """(T, K) the activity along them."""


def principal_components(activity: np.ndarray) -> Components:
    """Principal components of neurons over an episode (thesis, section 6.4.6).

    Args:
        activity: (T, N); the mean of every neuron is subtracted, its scale stays.

    Returns:
        K = min(T, N) components. Without any variance all explain 0.
    """
    centred = activity - activity.mean(axis=0)
    left, singular, directions = np.linalg.svd(centred, full_matrices=False)
    variance = singular**2
    total = variance.sum()
    return Components(variance / total if total > 0 else variance, directions, left * singular)


def manoeuvres(curvatures: np.ndarray) -> np.ndarray:
    """Label curvatures (T,): indices of `MANOEUVRES`, left being positive."""
    return np.where(curvatures > STRAIGHT, 0, np.where(curvatures < -STRAIGHT, 2, 1))


@dataclass(frozen=True)
class Separation:
    """A quantity in bends to the left, on straights and in bends to the right."""

    means: tuple[float, float, float]
    """Mean on each of `MANOEUVRES`; nan where there is none."""
    deviations: tuple[float, float, float]
    explained: float
    """Fraction of its variance between the manoeuvres (eta squared): 0 tells nothing, 1 tells them apart."""
    left_or_right: float
    """Probability that it is greater in a bend to the left than in one to the right: 0.5 tells nothing."""


def separation(values: np.ndarray, labels: np.ndarray) -> Separation:
    """How well a quantity tells manoeuvres apart.

    Args:
        values: (T,).
        labels: (T,) indices of `MANOEUVRES`.

    Returns:
        Means, deviations and two measures; nan where a manoeuvre is missing.
    """
    from scipy.stats import mannwhitneyu  # slow to import

    groups = [values[labels == label] for label in range(len(MANOEUVRES))]
    means = [float(group.mean()) if len(group) else float("nan") for group in groups]
    deviations = [float(group.std()) if len(group) else float("nan") for group in groups]
    total = float(((values - values.mean()) ** 2).sum())
    between = sum(len(g) * (m - values.mean()) ** 2 for g, m in zip(groups, means, strict=True) if len(g))
    left, _, right = groups
    greater = float("nan")
    if len(left) and len(right):
        greater = float(mannwhitneyu(left, right).statistic) / (len(left) * len(right))
    return Separation(
        (means[0], means[1], means[2]), (deviations[0], deviations[1], deviations[2]),
        float(between) / total if total > 0 else 0.0, greater,
    )  # fmt: skip
