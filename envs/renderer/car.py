"""Drawing of the car: four wheels with their stripes, and the hull."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
from gymnasium.envs.box2d import car_dynamics
from gymnasium.envs.box2d.car_dynamics import SIZE, WHEEL_R, WHEEL_W
from gymnasium.envs.box2d.car_racing import WINDOW_H

from nac_drive.envs.renderer.geometry import HULL_X, HULL_Y, PIXEL_H, PIXEL_W, SHIFT, shrunk

CAR_LEFT, CAR_RIGHT, CAR_TOP, CAR_BOTTOM = 45, 51, 66, 78
"""The car lies inside these columns and rows of every frame."""
FINE = 10
"""Samples per pixel of the frame along each axis while the car is drawn."""
_HULL = (car_dynamics.HULL_POLY1, car_dynamics.HULL_POLY2, car_dynamics.HULL_POLY3, car_dynamics.HULL_POLY4)
_HULL_COLOR = shrunk((int(0.8 * 255), 0, 0))
_TO_FINE = np.array([FINE / PIXEL_W, -FINE / PIXEL_H]) * (1 << SHIFT)
_FINE_ORIGIN = (
    np.array([0.5 / PIXEL_W - CAR_LEFT, (WINDOW_H - 0.5) / PIXEL_H - CAR_TOP]) * FINE - 0.5
) * (1 << SHIFT)  # fmt: skip
_RED = np.full(((CAR_BOTTOM - CAR_TOP) * FINE, (CAR_RIGHT - CAR_LEFT) * FINE, 3), _HULL_COLOR, np.uint8)


def draw_car(frame: np.ndarray, car: Any, zoom: float) -> None:
    """Draw four wheels with their turning white stripes, then the hull, over the ground in `frame`.

    Args:
        frame: (96, 96, 3) uint8, changed in place.
        car: gymnasium's `Car`, which is only read.
        zoom: Window pixels per simulator unit.
    """
    part = frame[CAR_TOP:CAR_BOTTOM, CAR_LEFT:CAR_RIGHT]
    fine = cv2.resize(part, (_RED.shape[1], _RED.shape[0]), interpolation=cv2.INTER_NEAREST)
    (x, y), angle, scale = car.hull.position, car.hull.angle, SIZE * zoom
    cos, sin = math.cos(angle), math.sin(angle)
    tyres, stripes = [], []
    for wheel in car.wheels:
        dx, dy = wheel.position
        dx, dy = (dx - x) * zoom, (dy - y) * zoom
        centre_x, centre_y = HULL_X + dx * cos + dy * sin, HULL_Y + dy * cos - dx * sin
        steer = wheel.angle - angle
        right, up = math.cos(steer) * scale, math.sin(steer) * scale
        side_x, side_y, along_x, along_y = WHEEL_W * right, WHEEL_W * up, -WHEEL_R * up, WHEEL_R * right
        for polygons, (low, high) in ((tyres, (-1.0, 1.0)), (stripes, _stripe(wheel.phase))):
            if low != high:
                low_x, low_y = centre_x + low * along_x, centre_y + low * along_y
                high_x, high_y = centre_x + high * along_x, centre_y + high * along_y
                polygons.append((
                    (low_x - side_x, low_y - side_y), (low_x + side_x, low_y + side_y),
                    (high_x + side_x, high_y + side_y), (high_x - side_x, high_y - side_y),
                ))  # fmt: skip
    corners = _fine(np.array(tyres + stripes))
    cv2.fillPoly(fine, corners[: len(tyres)], _BLACK, cv2.LINE_8, SHIFT)  # type: ignore[call-overload]
    if stripes:
        cv2.fillPoly(fine, corners[len(tyres) :], _WHITE, cv2.LINE_8, SHIFT)  # type: ignore[call-overload]
    cv2.copyTo(_RED, _hull_mask(zoom), fine)
    part[:] = cv2.resize(fine, (CAR_RIGHT - CAR_LEFT, CAR_BOTTOM - CAR_TOP), interpolation=cv2.INTER_AREA)


_BLACK, _WHITE = shrunk(car_dynamics.WHEEL_COLOR), shrunk(car_dynamics.WHEEL_WHITE)


def _stripe(phase: float) -> tuple[float, float]:
    """Return start and end of a wheel's visible stripe, in radii; equal if it is hidden. gymnasium's own rule."""
    start, end = math.cos(phase), math.cos(phase + 1.2)
    start_hidden, end_hidden = math.sin(phase) > 0, math.sin(phase + 1.2) > 0
    if start_hidden and end_hidden:
        return 0.0, 0.0
    return (math.copysign(1.0, start) if start_hidden else start), (math.copysign(1.0, end) if end_hidden else end)


def _fine(corners: np.ndarray) -> np.ndarray:
    """Return window coordinates, rounded down to pixels as pygame does, as fixed-point coordinates of fine samples."""
    return np.rint(np.floor(corners) * _TO_FINE + _FINE_ORIGIN).astype(np.int32)


@lru_cache(maxsize=64)
def _hull_mask(zoom: float) -> np.ndarray:
    """Return the mask of the hull. It never moves in the frame, and every episode has the same zooms."""
    mask = np.zeros(_RED.shape[:2], np.uint8)
    for polygon in _HULL:
        corners = np.array(polygon) * (SIZE * zoom) + (HULL_X, HULL_Y)
        cv2.fillConvexPoly(mask, _fine(corners), 255, cv2.LINE_8, SHIFT)
    return mask
