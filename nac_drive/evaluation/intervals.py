"""Means, ratios and correlations with intervals.

Intervals are 95 % bootstrap intervals. Pure functions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from nac_drive.markdown import number_text

_RESAMPLES = 10_000
_LEAST_MEAN = 1e-6
"""Points; a ratio to less may overflow, and says nothing."""


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    def text(self, spec: str, scale: float = 1.0) -> str:
        """Return the value and the ends as text, such as "+3 [-1, +7]".

        Args:
            spec: Format of the numbers, such as "+.0f".
            scale: Factor of the numbers.
        """
        mean, low, high = (number_text(scale * value, spec) for value in (self.mean, self.low, self.high))
        return f"{mean} [{low}, {high}]"


class Point(Interval):
    """Return an interval of a single value.

    Nothing could be resampled: both ends are the value.
    """

    def text(self, spec: str, scale: float = 1.0) -> str:
        """Return the value alone as text."""
        return number_text(scale * self.mean, spec)


def resampled(statistic: Callable[..., NDArray[np.float64]], sizes: Sequence[int]) -> Interval:
    """Return a statistic of samples with its interval.

    It is the 95 % percentile bootstrap interval.

    Samples of more than one unit are resampled, each by itself; 10,000 resamples, fixed seed. A resample for which the
    statistic is NaN is left out.

    Args:
        statistic: Maps one index array (..., size) per sample to values (...).
        sizes: Number of units of each sample.

    Returns:
        The statistic of the whole samples and the ends of its interval; a `Point` where nothing can be resampled.
    """
    whole = [np.arange(size) for size in sizes]
    drawable = [size > 1 for size in sizes]
    value = float(statistic(*whole))
    if not any(drawable) or np.isnan(value):
        return Point(value, value, value)
    from scipy import stats  # slow to import, and not every process resamples

    def of_drawn(*drawn: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
        indices = iter(drawn)
        return statistic(
            *(next(indices).astype(int) if able else unit for able, unit in zip(drawable, whole, strict=True))
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # of resamples that are left out
        distribution = stats.bootstrap(
            tuple(compress(whole, drawable)), of_drawn, n_resamples=_RESAMPLES, method="percentile",
            rng=np.random.default_rng(0),
        ).bootstrap_distribution  # fmt: skip
    low, high = np.nanpercentile(distribution, [2.5, 97.5])
    return Interval(value, float(low), float(high))


def bootstrap(grid: NDArray[np.float64], baseline: NDArray[np.float64] | None = None) -> Interval:
    """Return the mean of a metric with its interval.

    With a baseline, it is the difference from it.

    Tracks are resampled for both grids together, which pairs them. Runs are resampled for each grid, where there are
    several (the pigeonhole bootstrap: Owen, Annals of Applied Statistics 1(2), 2007).

    Args:
        grid: (runs, tracks) a metric of every run on every track.
        baseline: (runs, tracks) the metric of the baseline on the same tracks; its mean is subtracted.

    Returns:
        The mean and the ends of its interval; a `Point` where nothing can be resampled.
    """
    grids = [grid] if baseline is None else [grid, baseline]

    def difference(tracks: NDArray, *runs: NDArray) -> NDArray[np.float64]:
        means = [
            values[rows[..., None], tracks[..., None, :]].mean(axis=(-2, -1))
            for values, rows in zip(grids, runs, strict=True)
        ]
        return means[0] if baseline is None else means[0] - means[1]

    return resampled(difference, [grid.shape[1], *map(len, grids)])


def clearly_positive(values: NDArray[np.float64]) -> bool:
    """Return whether the mean of some values may divide others.

    A ratio to a mean near 0, or below it, says nothing. The mean is clearly positive if its 95 % bootstrap interval
    lies above 0; a single value, if it is above 0.

    Args:
        values: (N,), such as the returns of a driver on every track.
    """
    return bool(values.min() > 0 or (values.mean() > 0 and bootstrap(values[None]).low > 0))


def ratio(returns: NDArray[np.float64], reference: NDArray[np.float64]) -> Interval | None:
    """Return the ratio of the means with its interval.

    Tracks are resampled in pairs.

    Resamples whose mean of the reference is not positive, at most 2.5 % of them, are left out.

    Args:
        returns: (runs, tracks).
        reference: (runs, tracks) of the same runs on the same tracks.

    Returns:
        None unless the mean of the reference is `clearly_positive`, and at least `_LEAST_MEAN`.
    """
    if reference.mean() < _LEAST_MEAN or not clearly_positive(reference.mean(axis=0)):
        return None
    if np.array_equal(returns, reference):
        return Point(1.0, 1.0, 1.0)

    def of_means(tracks: NDArray, runs: NDArray) -> NDArray[np.float64]:
        over, under = (
            values[runs[..., None], tracks[..., None, :]].mean(axis=(-2, -1)) for values in (returns, reference)
        )
        return np.divide(over, under, out=np.full(np.shape(over), np.nan), where=under >= _LEAST_MEAN)

    return resampled(of_means, returns.shape[::-1])


def spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Spearman's rank correlation along the last axis.

    It is NaN where all values of a side are equal.
    """
    from scipy.stats import rankdata

    ranks = [rankdata(values, axis=-1) for values in (a, b)]
    x, y = (rank - rank.mean(axis=-1, keepdims=True) for rank in ranks)
    with np.errstate(invalid="ignore"):
        return (x * y).sum(axis=-1) / np.sqrt((x * x).sum(axis=-1) * (y * y).sum(axis=-1))


def rank_correlation(*pairs: NDArray[np.float64]) -> Interval:
    """Return the mean rank correlation with its interval.

    The pairs of each sample are resampled.

    Args:
        *pairs: (2, N) each, both sides of a sample.

    Returns:
        The mean of `spearman`; NaN where all values of a side are equal.
    """

    def mean(*drawn: NDArray) -> NDArray[np.float64]:
        return np.mean([spearman(*pair[:, indices]) for pair, indices in zip(pairs, drawn, strict=True)], axis=0)

    return resampled(mean, [pair.shape[1] for pair in pairs])


def area_under_curve(fractions: Sequence[float]) -> float:
    """Return the mean fraction kept over levels 0 to L.

    The trapezoidal rule gives 1 for a driver that loses nothing.

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
