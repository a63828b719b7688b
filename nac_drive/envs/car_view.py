"""Read access to the car, under gymnasium's names."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Vector(NamedTuple):
    """Two numbers, as Box2D's vectors."""

    x: float
    y: float


class BodyView:
    """A body of the car: the hull or a wheel. It is always the present one.

    Args:
        cars: (1,) structured array of `CAR`.
        row: 0 is the hull, 1 to 4 are the wheels.
    """

    def __init__(self, cars: np.ndarray, row: int):
        self._numbers = cars["body"][0, row : row + 1]
        """(1,): reads of an array of one row stay up to date; a scalar would be a copy."""

    @property
    def angle(self) -> float:
        """Angle in radians."""
        return self._numbers["angle"].item()

    @property
    def position(self) -> Vector:
        """Position in simulator units."""
        return Vector(self._numbers["x"].item(), self._numbers["y"].item())

    @property
    def linearVelocity(self) -> Vector:  # noqa: N802 (Box2D's name)
        """Velocity of the centre of mass in units per second."""
        return Vector(self._numbers["vx"].item(), self._numbers["vy"].item())

    @property
    def angularVelocity(self) -> float:  # noqa: N802
        """Turning rate in radians per second."""
        return self._numbers["spin"].item()

    @property
    def sin_cos(self) -> tuple[np.float32, np.float32]:
        """Sine and cosine of the simulator's angle."""
        return self._numbers["sin"][0], self._numbers["cos"][0]


class HullView(BodyView):
    """The hull. Its centre of mass lies beside its position."""

    def __init__(self, cars: np.ndarray):
        super().__init__(cars, 0)
        self._position = cars["position"]

    @property
    def position(self) -> Vector:
        return Vector(*self._position[0].tolist())


class JointView:
    """The joint of a wheel and the hull."""

    def __init__(self, hull: BodyView, wheel: BodyView):
        self._hull, self._wheel = hull._numbers, wheel._numbers

    @property
    def angle(self) -> float:
        """Angle of the wheel from the hull (rad, left positive)."""
        return float(self._wheel["angle"][0] - self._hull["angle"][0])  # a float32 difference, as in Box2D


class WheelView(BodyView):
    """A wheel.

    Args:
        cars: (1,) structured array of `CAR`.
        row: 0 front left, 1 front right, 2 rear left, 3 rear right.
        hull: The hull.
    """

    def __init__(self, cars: np.ndarray, row: int, hull: BodyView):
        super().__init__(cars, row + 1)
        self._wheel = cars["wheel"][0, row : row + 1]
        self.joint = JointView(hull, self)

    @property
    def steer(self) -> float:
        """Angle to be reached in radians, left positive."""
        return self._wheel["steer"].item()

    @property
    def gas(self) -> float:
        """Gas in [0, 1]."""
        return self._wheel["gas"].item()

    @property
    def brake(self) -> float:
        """Brake in [0, 1]."""
        return self._wheel["brake"].item()

    @property
    def omega(self) -> float:
        """Rotation in radians per second."""
        return self._wheel["omega"].item()

    @property
    def phase(self) -> float:
        """Rotation so far in radians."""
        return self._wheel["phase"].item()

    @property
    def tiles(self) -> list[int]:
        """Indices of the tiles that the wheel touches."""
        return sorted(self._wheel["tiles"][0, : self._wheel["touched"].item()].tolist())


class CarView:
    """The car: `hull` and `wheels` (front left, front right, rear ones).

    Args:
        cars: (1,) structured array of `CAR`, a view into the simulator's memory.
    """

    def __init__(self, cars: np.ndarray):
        self.hull = HullView(cars)
        self.wheels = [WheelView(cars, row, self.hull) for row in range(4)]
