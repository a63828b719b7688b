"""The verdict on two drivers that drove the same tracks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nac_drive.evaluation.intervals import Interval, bootstrap
from nac_drive.evaluation.spread import LEVEL, Spread, error_of, holm, mean_squares, spread_of
from nac_drive.markdown import number_text
from nac_drive.notebook import paragraph

ALIKE = 0.02
"""Fraction of the baseline's mean return. Drivers are alike if their difference is surely smaller."""
_MANY = 10_000
"""Tracks or runs; a sentence names no larger number."""

Judgement = Literal["more", "less", "alike", "open"]
"""The driver scores more or less than the baseline, or as much, or the experiment cannot tell."""


@dataclass(frozen=True)
class Verdict:
    """A driver against a baseline on the same tracks."""

    driver: str
    baseline: str
    difference: Interval
    """Mean difference of returns with its 95 % bootstrap interval."""
    p_value: float | None
    """Of the two-sided test in `spread`; None for a single track, and where all differences are equal."""
    p_alike: float | None
    """Of the two one-sided tests that the difference lies outside the margin (Schuirmann, Journal of Pharmacokinetics
    and Biopharmaceutics 15(6), 1987); None where `p_value` is None."""
    margin: float
    """Points within which drivers are alike: `ALIKE` of the baseline's mean return."""
    effect_size: float | None
    """Cohen's d of the differences: mean over standard deviation; None where all are equal."""
    win_rate: float
    """Fraction of tracks with the larger return; a draw counts one half."""
    runs: tuple[int, int]
    """Runs of the driver and the baseline."""
    trained: tuple[bool, bool]
    """Whether the runs are trainings, of which there could be others; a given driver has one and is this one."""
    tracks: int
    spread: Spread
    """Variance of the difference by its source."""
    comparisons: int = 1
    """Number of comparisons that were made together."""
    p_holm: float | None = None
    """`p_value` with Holm's correction for all of them."""

    @cached_property
    def outcome(self) -> Judgement:
        """More or less: by the interval, and the corrected test. Alike: by the interval, and the tests of the margin.

        A certain difference within the margin is alike.
        """
        if self.tracks == 1:
            return "open"
        within = max(abs(self.difference.low), abs(self.difference.high)) <= self.margin
        if within and (self.p_alike is None or self.p_alike < LEVEL):
            return "alike"
        return "open" if not self.apart else ("more" if self.difference.mean > 0 else "less")

    @property
    def apart(self) -> bool:
        """A difference that is surely not zero, after Holm's correction."""
        excludes_zero = self.difference.low > 0 or self.difference.high < 0
        return self.tracks > 1 and excludes_zero and (self.p_holm is None or self.p_holm < LEVEL)

    @property
    def goal(self) -> float:
        """The difference to plan for.

        It is the measured one, and the margin if that is larger.
        """
        return max(abs(self.difference.mean), self.margin)

    @property
    def level(self) -> float:
        """Level of a plan: one of `comparisons` corrected tests."""
        return LEVEL / self.comparisons

    @cached_property
    def tracks_needed(self) -> int | None:
        """Tracks that tell `goal` apart; None if no number does."""
        return None if self.tracks == 1 else self.spread.tracks_needed(self.goal, self.runs, self.level)

    @cached_property
    def runs_needed(self) -> int | None:
        """Runs that tell `goal` apart; None if no number does."""
        several = max(self.runs) > 1 and self.tracks > 1
        return self.spread.runs_needed(self.goal, self.runs, self.tracks, self.level) if several else None

    def __repr__(self) -> str:
        return f"Verdict({self.sentence})"

    def _repr_html_(self) -> str:
        return paragraph(self.sentence)

    def to_dict(self) -> dict[str, Any]:
        """The verdict as JSON-able values."""
        derived = ("outcome", "tracks_needed", "runs_needed", "sentence")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}

    @property
    def sentence(self) -> str:
        """The verdict in one plain sentence."""
        if self.tracks == 1:
            return f"{self._difference('')}: one track says nothing about others."
        text = f"{self._difference(' on average')}: {self._judgement()}"
        single = [number == 1 for number, is_run in zip(self.runs, self.trained, strict=True) if is_run]
        return f"{text}; other runs may differ." if single and all(single) else f"{text}."

    def _difference(self, where: str) -> str:
        size = number_text(abs(self.difference.mean), ".0f")
        interval = self.difference.text("+.0f").partition(" ")[2]
        interval = f" {interval}" if interval else ""
        if size == "0":
            return f"{self.driver} scores as much as {self.baseline}{where}{interval}"
        more = "more" if self.difference.mean > 0 else "less"
        return f"{self.driver} scores {size} {more} than {self.baseline}{where}{interval}"

    def _judgement(self) -> str:
        size, chance = self._size(), self._chance()
        if self.outcome == "alike":
            small = "a difference, but a small one" if self.apart else "alike"
            return f"{small}, within {points(self.margin)} points ({100 * ALIKE:.0f} %), with {size}"
        if self.apart:
            return f"a difference, with {size}{chance}"
        return f"not distinguishable with {size}{chance}; {self.needed}"

    def _chance(self) -> str:
        """Return the p-values in brackets."""
        if self.p_value is None:
            return ""
        notes = [f"p = {self.p_value:.2g}" if self.p_value >= 0.001 else "p < 0.001"]
        if self.comparisons > 1 and self.p_holm is not None:
            corrected = f"{self.p_holm:.2g}" if self.p_holm >= 0.001 else "less than 0.001"
            notes.append(f"{corrected} with Holm's correction for {self.comparisons} comparisons")
        if self.p_value >= LEVEL and (self.difference.low > 0 or self.difference.high < 0):
            notes.append("so few make the interval too narrow")
        return f" ({'; '.join(notes)})"

    def _size(self) -> str:
        tracks = f"{self.tracks} tracks"
        numbers = sorted({number for number, is_run in zip(self.runs, self.trained, strict=True) if is_run})
        if not numbers:
            return tracks
        return f"{' and '.join(map(str, numbers))} {_plural('run', numbers[-1])} x {tracks}"

    @property
    def needed(self) -> str:
        """The experiment that would tell, as a clause."""
        goal, tracks, runs = points(self.goal), self.tracks_needed, self.runs_needed
        several = max(self.runs) > 1
        if tracks is not None and tracks <= self.tracks:
            return f"4 of 5 such experiments tell a difference of {goal} apart"
        start = f"to tell a difference of {goal} apart you need about"
        with_runs = f"no number of tracks suffices with {max(self.runs)} runs"
        if tracks is not None and runs is not None:
            return f"{start} {_about(tracks, 'track')} or {_about(runs, 'run')}"
        if tracks is not None:
            note = f" (no number of runs suffices with {self.tracks} tracks)" if several else ""
            return f"{start} {_about(tracks, 'track')}{note}"
        if runs is not None:
            return f"{start} {_about(runs, 'run')} ({with_runs})"
        both = self.spread.both_needed(self.goal, self.runs, self.tracks, self.level) if several else None
        if both is None:
            return f"no experiment tells a difference of {goal} apart"
        return f"{start} {_about(both[0], 'run')} x {_about(both[1], 'track')} ({with_runs})"


def paired(
    returns: NDArray[np.float64],
    baseline: NDArray[np.float64],
    names: tuple[str, str] = ("driver", "baseline"),
    trained: tuple[bool, bool] = (False, False),
    difference: Interval | None = None,
) -> Verdict:
    """Compare returns with a baseline's on the same tracks.

    Args:
        returns: (runs, tracks) of the driver.
        baseline: (runs, tracks).
        names: Names of the driver and the baseline.
        trained: Whether the runs of each are trainings.
        difference: `bootstrap(returns, baseline)`, where it is known already.
    """
    from scipy import stats  # slow to import

    sizes, tracks = (len(returns), len(baseline)), returns.shape[1]
    differences = returns.mean(axis=0) - baseline.mean(axis=0)
    difference = difference or bootstrap(returns, baseline)
    margin = ALIKE * abs(float(baseline.mean()))
    spread, p_value, p_alike = Spread(0.0, (0.0, 0.0), (0.0, 0.0)), None, None
    if tracks > 1:
        squares = mean_squares(returns, baseline)
        spread = spread_of(squares, sizes, tracks)
        variance, degrees = error_of(squares, sizes, tracks)
        if variance > 0:
            size = abs(float(differences.mean()))
            p_value = float(2 * stats.t.sf(size / math.sqrt(variance), degrees))
            p_alike = float(stats.t.sf((margin - size) / math.sqrt(variance), degrees))
    deviation = float(differences.std(ddof=1)) if tracks > 1 else 0.0
    return Verdict(
        *names, difference, p_value, p_alike, margin,
        effect_size=float(differences.mean()) / deviation if deviation > 0 else None,
        win_rate=float(((differences > 0) + 0.5 * (differences == 0)).mean()),
        runs=sizes, trained=trained, tracks=tracks, spread=spread, p_holm=p_value,
    )  # fmt: skip


def corrected(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return verdicts with Holm's correction for all of them."""
    tested = [verdict.p_value for verdict in verdicts if verdict.p_value is not None]
    p_values = iter(holm(tested))
    return [
        replace(
            verdict, comparisons=len(tested) or 1, p_holm=None if verdict.p_value is None else next(p_values)
        )
        for verdict in verdicts
    ]  # fmt: skip


def points(value: float) -> str:
    """Return points of a return, with two digits if they are few."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _about(number: int, noun: str) -> str:
    """Return a number of two digits, and its noun."""
    if number > _MANY:
        return f"more than {_MANY:,} {noun}s"
    unit = 10 ** max(0, len(str(number)) - 2)
    return f"{-(-number // unit) * unit:,} {_plural(noun, number)}"


def _plural(noun: str, number: int) -> str:
    return noun if number == 1 else f"{noun}s"
