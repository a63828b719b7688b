"""Statistics of a driver under stress, paired on tracks: pure functions of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nac_drive.evaluation.results import EpisodeResult
from nac_drive.evaluation.statistics import Interval, Point, bootstrap, clearly_positive

RESAMPLES = 10_000
_LEAST_MEAN = 1e-6
"""Points; a ratio to less may overflow, and says nothing."""


@dataclass(frozen=True)
class Paired:
    """A driver against another one under the same perturbation, on the same tracks."""

    difference: Interval
    """Mean difference of returns with its 95 % bootstrap interval."""
    p_value: float | None
    """Of the paired t-test, two-sided; None where all differences are equal."""
    effect_size: float | None
    """Cohen's d of the differences: mean over standard deviation; None where all are equal."""
    win_rate: float
    """Fraction of tracks with the larger return; a draw counts one half."""


@dataclass(frozen=True)
class Cell:
    """One driver under one perturbation."""

    driver: str
    perturbation: str
    """Specification; empty for the undisturbed world."""
    tracks: int
    return_mean: Interval
    return_min: float
    fraction_kept: Interval | None
    """Mean return over the driver's own mean return undisturbed, with its 95 % bootstrap interval; None unless the
    latter is `clearly_positive`."""
    degradation: Interval
    """Own return undisturbed - return (PDNA, Eq. 7, of returns in place of accuracies)."""
    crashes_per_episode: float
    interventions_per_episode: float
    crash_free: float
    """Fraction of episodes without a crash."""
    first_crash_time: float | None
    """Median seconds until the first crash, of the episodes with one; None without any."""
    versus: Paired | None
    """Against the first driver; None for the first driver itself."""


def cell(
    rows: Sequence[EpisodeResult], clean: Sequence[EpisodeResult], baseline: Sequence[EpisodeResult] | None
) -> Cell:
    """Summarise one driver under one perturbation.

    Args:
        rows: Its episodes, one for each track.
        clean: Its episodes in the undisturbed world.
        baseline: Those of the first driver under the same perturbation; None for the first driver itself.
    """
    tracks = sorted(row.seed for row in rows)
    returns, undisturbed = (returns_of(part, tracks) for part in (rows, clean))
    first_crashes = [row.first_crash_time for row in rows if row.first_crash_time is not None]
    return Cell(
        driver=rows[0].driver,
        perturbation=rows[0].perturbation,
        tracks=len(tracks),
        return_mean=bootstrap(returns[None]),
        return_min=float(returns.min()),
        fraction_kept=ratio(returns, undisturbed),
        degradation=bootstrap(undisturbed[None], returns[None]),
        crashes_per_episode=float(np.mean([row.crashes for row in rows])),
        interventions_per_episode=float(np.mean([row.interventions for row in rows])),
        crash_free=1.0 - len(first_crashes) / len(rows),
        first_crash_time=float(np.median(first_crashes)) if first_crashes else None,
        versus=None if baseline is None else paired(returns, returns_of(baseline, tracks)),
    )


def returns_of(rows: Sequence[EpisodeResult], tracks: Sequence[int]) -> NDArray[np.float64]:
    """Return the returns on some tracks, in their order.

    Raises:
        ValueError: Unless every track has exactly one row.
    """
    found = {row.seed: row.episode_return for row in rows}
    if len(found) != len(rows) or set(found) != set(tracks):
        raise ValueError("rows must hold one episode for each track: the comparison is paired.")
    return np.array([found[track] for track in tracks], dtype=np.float64)


def ratio(returns: NDArray[np.float64], reference: NDArray[np.float64]) -> Interval | None:
    """Return the ratio of the means with its 95 % percentile bootstrap interval; tracks are resampled in pairs.

    Resamples whose mean of the reference is not positive, at most 2.5 % of them, are left out.

    Returns:
        None unless the mean of the reference is `clearly_positive`, and at least `_LEAST_MEAN`.
    """
    if reference.mean() < _LEAST_MEAN or not clearly_positive(reference):
        return None
    value = float(returns.mean() / reference.mean())
    if len(returns) == 1 or np.array_equal(returns, reference):
        return Point(value, value, value)
    drawn = np.random.default_rng(0).integers(len(returns), size=(RESAMPLES, len(returns)))
    means = reference[drawn].mean(axis=1)
    whole = means >= _LEAST_MEAN
    ratios = returns[drawn].mean(axis=1)[whole] / means[whole]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return Interval(value, float(low), float(high))


def paired(returns: NDArray[np.float64], baseline: NDArray[np.float64]) -> Paired:
    """Compare returns with those of a baseline on the same tracks."""
    from scipy import stats  # slow to import

    differences = returns - baseline
    spread = float(differences.std(ddof=1)) if len(differences) > 1 else 0.0
    return Paired(
        difference=bootstrap(returns[None], baseline[None]),
        p_value=float(stats.ttest_rel(returns, baseline).pvalue) if spread > 0 else None,
        effect_size=float(differences.mean()) / spread if spread > 0 else None,
        win_rate=float(((differences > 0) + 0.5 * (differences == 0)).mean()),
    )


def area_under_curve(fractions: Sequence[float]) -> float:
    """Return the mean fraction kept over levels 0 to L, by the trapezoidal rule: 1 for a driver that loses nothing.

    Args:
        fractions: Fraction kept at level 1 to L; at level 0 it is 1.
    """
    return float(np.trapezoid([1.0, *fractions]) / len(fractions))


def survival(first_crash_times: Sequence[float | None], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the fraction of episodes without a crash until each of the times (n,).

    An episode that ends without a crash survives, as the track is finished then or the time is over.
    """
    crashed = np.array([np.inf if time is None else time for time in first_crash_times])
    return (crashed[None] > times[:, None]).mean(axis=1)
