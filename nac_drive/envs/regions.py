"""Regions of a CarRacing frame, from the track's geometry."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from gymnasium.envs.box2d.car_racing import STATE_H, STATE_W, WINDOW_H, WINDOW_W

from nac_drive.envs.spec import EnvSpec
from nac_drive.envs.wrappers import BAR_TOP

REGIONS = EnvSpec.region_names
"""Names of the labels 0, 1, 2, ... A verge lies on both sides of an edge of the road. The far road is that in the upper
third of the frame above the status bar, the near road the rest of that ahead of the car."""
VERGE = 2.0
"""Units on each side of an edge of the road that count as verge; the road is 13.3 units wide."""
FAR = BAR_TOP // 3
"""Rows above this one show the far road."""
_CAR_LEFT, _CAR_RIGHT, _CAR_TOP, _CAR_BOTTOM = 45, 51, 66, 78
"""The car lies inside these columns and rows of every frame."""
_HULL_X, _HULL_Y = WINDOW_W / 2, WINDOW_H / 4
"""The place of the hull in gymnasium's window, in pixels from its left and lower edge."""
_PIXEL_W, _PIXEL_H = WINDOW_W / STATE_W, WINDOW_H / STATE_H
"""A pixel of the frame in pixels of the window: 10.4 x 8.3."""
_SHIFT = 4
"""Bits after the point in the corners given to OpenCV."""


def regions(env: Any) -> np.ndarray:
    """Label the pixels of the present frame.

    Args:
        env: A `CarRacing`, under wrappers or not.

    Returns:
        (96, 96) uint8, indices of `REGIONS`.
    """
    simulator = env.unwrapped
    hull, zoom = simulator.car.hull, simulator.zoom
    road = _road(simulator.road_vertices, hull.position, hull.angle, zoom)
    reach = [max(round(VERGE * zoom / size), 1) for size in (_PIXEL_W, _PIXEL_H)]
    ellipse = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * reach[0] + 1, 2 * reach[1] + 1))
    outer, inner = cv2.dilate(road, ellipse), cv2.erode(road, ellipse, borderValue=1)  # type: ignore[call-overload]
    labels = np.where(outer > 0, np.uint8(1), np.uint8(0))
    ahead = np.full((STATE_H, 1), 4, np.uint8)
    ahead[:_CAR_TOP], ahead[:FAR] = 3, 2
    labels = np.where(inner > 0, ahead, labels)
    labels[_CAR_TOP:_CAR_BOTTOM, _CAR_LEFT:_CAR_RIGHT] = 5
    labels[BAR_TOP:] = 6
    return labels


def _road(polygons: np.ndarray, position: Any, angle: float, zoom: float) -> np.ndarray:
    """Return 1 where a frame (96, 96) shows the road.

    Args:
        polygons: (P, 4, 2) corners in simulator units.
        position: The hull's.
        angle: The hull's, in radians.
        zoom: Window pixels per unit.
    """
    away = (polygons - np.array((position[0], position[1]))) * zoom
    cos, sin = np.cos(angle), np.sin(angle)
    right = _HULL_X + away[..., 0] * cos + away[..., 1] * sin  # (P, 4) in the window
    up = _HULL_Y + away[..., 1] * cos - away[..., 0] * sin
    places = np.stack((right / _PIXEL_W - 0.5, (WINDOW_H - up) / _PIXEL_H - 0.5), axis=-1)  # pixel centres are whole
    near = (np.abs(places - (STATE_W / 2, STATE_H / 2)) < 2 * STATE_W).all(axis=(1, 2))
    mask = np.zeros((STATE_H, STATE_W), np.uint8)
    for corners in np.rint(places[near] * (1 << _SHIFT)).astype(np.int32):
        cv2.fillConvexPoly(mask, corners, 1, cv2.LINE_8, _SHIFT)  # type: ignore[call-overload]
    return mask
