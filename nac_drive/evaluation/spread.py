"""Variance components of a paired difference of two drivers.

Every driver drives every track in every one of its runs. Tracks and runs are both drawn at random, and crossed:

    return of run r on track t = mean + track_t + run_r + residual_rt

The difference of two drivers on the same tracks keeps what tracks do to one driver and not to the other. Its variance
with T tracks, and R runs of each driver g, is

    track / T + sum over drivers of (run_g / R_g + residual_g / (R_g T)).

The parts come from the mean squares of the analysis of variance (Searle, Casella and McCulloch, Variance Components,
1992, section 4.3; negative estimates become 0).

The test divides the mean difference by the root of its estimated variance,

    (mean square of tracks) / T + sum over drivers of (mean square of runs) / R_g,

with Satterthwaite's degrees of freedom (Biometrics Bulletin 2(6), 1946). Both mean squares hold the residual, so the
estimate errs towards too much and is never negative. With one run of each driver it is the paired t-test, and without
an effect of tracks it is Welch's. Like Welch's it sees too many differences if one driver alone has two runs, and these
vary far more than the tracks: about 11 % instead of 5 % where nothing differs. The power of a plan is the noncentral t
distribution's, at the mean squares that the parts lead to. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.05
"""A difference counts where a test of this level sees it."""
POWER = 0.8
"""A plan is large enough if 4 of 5 experiments of its size see the difference."""
_MOST = 10**6
"""Tracks or runs; a plan that needs more is none."""


@dataclass(frozen=True)
class MeanSquares:
    """Mean squares of the returns of two drivers."""

    tracks: float
    """Variance over tracks of the difference; each driver's mean over its runs."""
    runs: tuple[float, ...]
    """Of each driver: variance over its runs of their mean over tracks; 0 for a single run."""
    residuals: tuple[float, ...]
    """Of each driver: mean square of what neither run nor track explains; 0 for a single run."""


@dataclass(frozen=True)
class Spread:
    """Variance components of a paired difference; see the module."""

    track: float
    """Variance between tracks of the difference, beyond the residuals."""
    runs: tuple[float, ...]
    """Of each driver: variance between its runs; 0 for a single run."""
    residuals: tuple[float, ...]
    """Of each driver: variance of one run on one track; 0 for a single run, which has it in `track`."""

    def power(self, difference: float, runs: Sequence[int], tracks: int, level: float = LEVEL) -> float:
        """Return the chance that an experiment sees a true difference.

        Args:
            difference: The true difference of the means.
            runs: Number of runs of each driver.
            tracks: Number of tracks, at least 2.
            level: Level of the test. Of m tests that are corrected together, `LEVEL` / m is Bonferroni's, and Holm's
                for the smallest p-value.
        """
        from scipy import stats  # slow to import

        residuals = tuple(value if of > 1 else 0.0 for value, of in zip(self.residuals, runs, strict=True))
        expected = MeanSquares(
            self.track + sum(value / of for value, of in zip(residuals, runs, strict=True)),
            tuple(run + value / tracks for run, value in zip(self.runs, residuals, strict=True)),
            residuals,
        )
        variance, degrees = error_of(expected, runs, tracks)
        if variance == 0:
            return 1.0
        limit = stats.t.isf(level / 2, degrees)
        return float(stats.nct.sf(limit, degrees, abs(difference) / math.sqrt(variance)))

    def tracks_needed(self, difference: float, runs: Sequence[int], level: float = LEVEL) -> int | None:
        """Return the smallest number of tracks that shows a difference.

        Args:
            difference: The true difference of the means.
            runs: Number of runs of each driver.
            level: See `power`.

        Returns:
            None if no number suffices, as the runs alone differ by too much.
        """
        return _smallest(lambda tracks: self.power(difference, runs, tracks, level))

    def runs_needed(self, difference: float, runs: Sequence[int], tracks: int, level: float = LEVEL) -> int | None:
        """Return the smallest number of runs that shows a difference.

        Args:
            difference: The true difference of the means.
            runs: Number of runs of each driver; a single run stays one.
            tracks: Number of tracks.
            level: See `power`.

        Returns:
            None if no number suffices, as the tracks alone differ by too much.
        """
        return _smallest(lambda number: self.power(difference, _grown(runs, number), tracks, level))

    def both_needed(
        self, difference: float, runs: Sequence[int], tracks: int, level: float = LEVEL
    ) -> tuple[int, int] | None:
        """Return the runs and tracks of the smallest enlarged plan.

        Both grow by the same factor; a single run stays one.

        Returns:
            (runs, tracks); None if no factor suffices.
        """

        def tracks_of(number: int) -> int:
            return max(2, math.ceil(number * tracks / max(runs)))

        number = _smallest(lambda number: self.power(difference, _grown(runs, number), tracks_of(number), level))
        return None if number is None else (number, tracks_of(number))


def mean_squares(grid: NDArray[np.float64], baseline: NDArray[np.float64]) -> MeanSquares:
    """Return the mean squares of two drivers.

    Args:
        grid: (runs, tracks), at least two tracks.
        baseline: (runs, tracks) on the same tracks; the number of runs may differ.
    """
    runs, residuals = [], []
    for values in (grid, baseline):
        several = len(values) > 1
        rest = values - values.mean(axis=0) - values.mean(axis=1, keepdims=True) + values.mean()
        runs.append(float(values.mean(axis=1).var(ddof=1)) if several else 0.0)
        residuals.append(float((rest**2).sum()) / ((len(values) - 1) * (rest.shape[1] - 1)) if several else 0.0)
    tracks = float((grid.mean(axis=0) - baseline.mean(axis=0)).var(ddof=1))
    return MeanSquares(tracks, tuple(runs), tuple(residuals))


def spread_of(squares: MeanSquares, runs: Sequence[int], tracks: int) -> Spread:
    """Return the variance components that mean squares estimate.

    Args:
        squares: Mean squares of an experiment.
        runs: Its number of runs of each driver.
        tracks: Its number of tracks.
    """
    shared = sum(value / of for value, of in zip(squares.residuals, runs, strict=True))
    return Spread(
        max(0.0, squares.tracks - shared),
        tuple(max(0.0, run - residual / tracks) for run, residual in zip(squares.runs, squares.residuals, strict=True)),
        squares.residuals,
    )


def error_of(squares: MeanSquares, runs: Sequence[int], tracks: int) -> tuple[float, float]:
    """Return the variance of a difference and its precision.

    Args:
        squares: Mean squares of an experiment, or the expected ones of a plan.
        runs: Number of runs of each driver.
        tracks: Number of tracks.

    Returns:
        Without any spread, variance 0 and the degrees of freedom of the tracks.
    """
    parts = [(squares.tracks / tracks, tracks - 1)]
    parts += [(run / number, number - 1) for run, number in zip(squares.runs, runs, strict=True) if number > 1]
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return 0.0, float(tracks - 1)
    return variance, 1 / sum((part / variance) ** 2 / degrees for part, degrees in parts)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number.

    A level holds then for all tests together (Holm, Scandinavian Journal of Statistics 6(2), 1979): the smallest is
    multiplied by their number m, the next by m - 1, and so on; none falls below the one before it.
    """
    order, highest = sorted(range(len(p_values)), key=lambda place: p_values[place]), 0.0
    corrected = [0.0] * len(p_values)
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = highest
    return corrected


def _grown(runs: Sequence[int], number: int) -> tuple[int, ...]:
    """Return the runs of a plan: one stays one."""
    return tuple(number if of > 1 else of for of in runs)


def _smallest(power: Callable[[int], float]) -> int | None:
    """Return the smallest number whose power is `POWER`."""
    if power(_MOST) < POWER:
        return None
    low, high = 1, 2
    while power(high) < POWER:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high
