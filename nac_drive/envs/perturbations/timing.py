"""Lost frames and late actions on recorded sequences."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nac_drive.envs.perturbations.base import Perturbation

BLACK = -1
"""In `Timing.shown`: a black frame."""


@dataclass(frozen=True)
class Timing:
    """The n queries along a recorded sequence of T frames."""

    rows: NDArray[np.int64]
    """(n,) frame at which each query comes, increasing."""
    shown: NDArray[np.int64]
    """(n,) frame that the driver sees, or `BLACK`."""
    labels: NDArray[np.int64]
    """(n,) frame whose label the query gets."""

    @classmethod
    def of(cls, length: int) -> Timing:
        """Return the timing of an undisturbed sequence of `length` frames."""
        rows = np.arange(length)
        return cls(rows, rows, rows)

    def lose(self, lost: NDArray[np.bool_], missing: str) -> Timing:
        """Return the queries if some frames do not arrive.

        Args:
            lost: (n,) bool, False for the first.
            missing: Replacement of a lost frame, see `FrameLoss`.
        """
        if missing == "skip":
            return Timing(self.rows[~lost], self.shown[~lost], self.labels[~lost])
        if missing == "zero":
            return Timing(self.rows, np.where(lost, BLACK, self.shown), self.labels)
        last = np.maximum.accumulate(np.where(lost, 0, np.arange(len(lost))))
        return Timing(self.rows, self.shown[last], self.labels)

    def delay(self, queries: int) -> Timing:
        """Return the timing if actions come `queries` queries later.

        The label is the label of the query that comes then. Queries whose action would come after the end are left out.
        """
        count = max(len(self.rows) - queries, 0)
        return Timing(self.rows[:count], self.shown[:count], self.labels[queries:])

    def seconds(self, dt: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the seconds (n,) since the previous query.

        Seconds between the frames are (T,).
        """
        passed = np.cumsum(dt, dtype=np.float64)[self.rows]
        return np.diff(passed, prepend=passed[:1] - dt[self.rows[:1]]).astype(dt.dtype)


class TimedPerturbation(Perturbation):
    """Perturbation in time that recorded sequences can have, too."""

    @abstractmethod
    def retime(self, timing: Timing, rng: np.random.Generator) -> Timing:
        """Return the queries under this perturbation.

        Args:
            timing: The queries under the perturbations before it; at least one is left.
            rng: Source of all randomness.
        """
