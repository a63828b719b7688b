"""Lost frames and late actions on a recorded sequence, as a choice of its rows: training under broken time."""

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
    """The n queries of a driver along a recorded sequence of T frames."""

    rows: NDArray[np.int64]
    """(n,) frame at which each query comes, increasing."""
    shown: NDArray[np.int64]
    """(n,) frame that the driver sees, or `BLACK`."""
    labels: NDArray[np.int64]
    """(n,) frame whose label the query gets."""

    @classmethod
    def of(cls, length: int) -> Timing:
        """Return that of a sequence of `length` frames that nothing disturbs."""
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

    def delay(self, frames: int, length: int) -> Timing:
        """Return the queries if an action is executed `frames` later: the label is that of the frame it is executed in.

        Queries whose action would come after the end of the `length` frames are left out.
        """
        late = self.labels + frames
        known = late < length
        return Timing(self.rows[known], self.shown[known], late[known])

    def seconds(self, dt: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the seconds (n,) since the previous query, from those between the frames (T,)."""
        passed = np.cumsum(dt, dtype=np.float64)[self.rows]
        return np.diff(passed, prepend=passed[:1] - dt[self.rows[:1]]).astype(dt.dtype)


class TimedPerturbation(Perturbation):
    """Perturbation in time that recorded sequences can be put under, too."""

    @abstractmethod
    def retime(self, timing: Timing, length: int, rng: np.random.Generator) -> Timing:
        """Return the queries under this perturbation.

        Args:
            timing: The queries under the perturbations before it; at least one is left.
            length: Frames of the sequence, T.
            rng: Source of all randomness.
        """
