"""The other cars as boxes with windows and lights."""

from __future__ import annotations

import numpy as np

_PAINTS = np.array(
    [(196, 40, 40), (40, 70, 180), (235, 235, 230), (70, 70, 78), (150, 155, 160), (200, 150, 40), (40, 110, 80)], float
)
_WINDOW, _LIGHT, _SHADOW = (45, 55, 65), (230, 30, 30), (62, 62, 62)
_LOW = 0.12
"""Height of the lower edge of a side, as a fraction of the height of the car."""

_CORNERS = {
    "rear": lambda across, up: (-0.5, 0.5 - across, up),
    "front": lambda across, up: (0.5, across - 0.5, up),
    "left": lambda across, up: (0.5 - across, 0.5, up),
    "right": lambda across, up: (across - 0.5, -0.5, up),
    "top": lambda across, up: (up - 0.5, 0.5 - across, 1.0),
    "ground": lambda across, up: (up - 0.5, 0.5 - across, 0.0),
}
"""Side -> function of two fractions, from its left and lower edge as seen from outside, to a point of the car: along,
to the left and up, as fractions of its length, width and height."""


def _part(side: str, left: float, right: float, bottom: float, top: float) -> list[tuple[float, float, float]]:
    """Return a rectangle of a side, anticlockwise from outside."""
    corners = ((left, bottom), (right, bottom), (right, top), (left, top))
    return [_CORNERS[side](*corner) for corner in corners]


_FACES = {"rear": 0.9, "front": 0.8, "left": 0.65, "right": 0.65}
"""Side -> shade of its paint."""
_PARTS = [
    (_part("ground", 0, 1, 0, 1), 0.0, _SHADOW),
    *((_part(side, 0, 1, _LOW, 1), shade, (0, 0, 0)) for side, shade in _FACES.items()),
    (_part("top", 0, 1, 0, 1), 1.0, (0, 0, 0)),
    *((_part(side, 0.1, 0.9, 0.55, 0.9), 0.0, _WINDOW) for side in _FACES),
    *((_part("rear", left, left + 0.18, 0.3, 0.45), 0.0, _LIGHT) for left in (0.04, 0.78)),
]
"""Rectangle, shade of the car's paint and colour of its own, in the order in which they are drawn."""
_SHAPES = np.array([shape for shape, *_ in _PARTS], float)
_SHADES = np.array([shade for _, shade, _ in _PARTS], float)
_OWN = np.array([color for *_, color in _PARTS], float)


def polygons(traffic: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the parts of cars.

    Args:
        traffic: (N, 7), see `Situation.traffic`.

    Returns:
        Corners (N, P, 4, 3), x, y and up in metres, anticlockwise as seen from outside, and colours (N, P, 3) 0-255. A
        later part of a car hides an earlier one.
    """
    cars = np.asarray(traffic, float)
    along, left, up = np.moveaxis(_SHAPES * cars[:, None, None, 3:6], -1, 0)
    cos, sin = (turn(cars[:, 2])[:, None, None] for turn in (np.cos, np.sin))
    x, y = (cars[:, axis, None, None] for axis in (0, 1))
    corners = np.stack((x + along * cos - left * sin, y + along * sin + left * cos, up), axis=-1)
    paints = _PAINTS[cars[:, 6].astype(int) % len(_PAINTS)]
    return corners, _SHADES[:, None] * paints[:, None] + _OWN
