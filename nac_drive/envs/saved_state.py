"""The saved state of a `CarRacing`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nac_drive.envs.native.library import CAR


@dataclass(frozen=True)
class CarState:
    """Exact copy of everything that an episode's next frames need.

    It holds the numbers from which the track is built, so any `CarRacing` with the same control takes it. It can be
    pickled, in about three kilobytes.

    Raises:
        ValueError: If it was saved by a simulator of another version.
    """

    car: bytes = field(repr=False)
    """The car, the tiles and all counts: the struct `Car` of envs/native/carracing.h."""
    track: bytes = field(repr=False)
    """(24,) float64, random numbers of the track."""
    colors: bytes = field(repr=False)
    """(3, 3) float64, colours of road, background and grass patches."""
    lap_complete_percent: float
    """As in `CarRacing`."""
    grip: float
    """Friction of the tiles."""
    wheel_angle: float
    """The angle that the control `pulsed` reckons with, in radians."""
    generator: dict[str, Any] = field(repr=False)
    """State of the random numbers that the next track is drawn from."""

    def __post_init__(self) -> None:
        if len(self.car) != CAR.itemsize:
            raise ValueError(
                f"car must hold {CAR.itemsize} bytes, got {len(self.car)}: another version of nac-drive saved it."
            )

    def __setstate__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)
        self.__post_init__()

    @property
    def frame(self) -> int:
        """Steps since the reset."""
        return int(np.frombuffer(self.car, CAR)["frame"][0])

    @property
    def random_numbers(self) -> np.ndarray:
        """(24,) random numbers of the track."""
        return np.frombuffer(self.track)

    @property
    def color_numbers(self) -> np.ndarray:
        """(3, 3) colours of road, background and grass patches."""
        return np.frombuffer(self.colors).reshape(3, 3)
