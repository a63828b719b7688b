"""Drawing of the status bar: seven indicators and the score."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import pygame
from gymnasium.envs.box2d.car_racing import STATE_H, STATE_W, WINDOW_H, WINDOW_W

from nac_drive.envs.renderer.geometry import BAR_TOP, PIXEL_W

_BAR_WINDOW_H = WINDOW_H * 5 // 40
_COLUMN, _ROW = WINDOW_W // 40, WINDOW_H // 40
"""gymnasium's grid for the indicators, in pixels of the window."""


def _running(count: int, pixels: int) -> np.ndarray:
    """Return (pixels + 1, count): in row n the fraction of each frame pixel that the first n window pixels cover."""
    edges = np.clip(np.arange(pixels + 1)[:, None] * (count / pixels) - np.arange(count), 0, 1)
    return edges.astype(np.float32)


_ROWS_BEFORE = _running(STATE_H - BAR_TOP, _BAR_WINDOW_H)
_COLUMNS_BEFORE = _running(STATE_W, WINDOW_W)
_UPRIGHT = ((5, (255, 255, 255)), (7, (0, 0, 255)), (8, (0, 0, 255)), (9, (51, 0, 255)), (10, (51, 0, 255)))
"""Column of the grid and colour of the indicators that grow upwards: speed and the four wheels."""
_SPEED, _WHEELS, _SHARED, _STEER, _GYRO = 0, slice(1, 5), slice(5, 8), 8, 9
"""Rows of the indicators in the product: speed; the wheels; the window columns that two wheels share, which show the
higher one; and the two that grow sideways, the joint angle of the first wheel, green, and the turning rate, red."""
_TRUNCATED = 1.5
"""Mean loss by smoothscale's truncation, in levels of 255."""


class StatusBar:
    """The seven indicators as one product: (rows covered by each) times (columns covered by each, in its colour)."""

    def __init__(self):
        self._rows = np.zeros((STATE_H - BAR_TOP, _GYRO + 1), np.float32)  # (12, 10)
        self._columns = np.zeros((_GYRO + 1, STATE_W, 3), np.float32)  # (10, 96, 3)
        for i, (place, color) in enumerate(_UPRIGHT):
            first, last = place * _COLUMN, (place + 1) * _COLUMN  # the last column is filled, too
            self._columns[i] = _across(first + (i > _WHEELS.start), last + (i in (_SPEED, _WHEELS.stop - 1)), color)
            if i > _WHEELS.start:
                self._columns[_SHARED.start + i - 2] = _across(first, first + 1, color)
        top, bottom = _BAR_WINDOW_H - 4 * _ROW, _BAR_WINDOW_H - 2 * _ROW
        self._rows[:, [_STEER, _GYRO]] = (_ROWS_BEFORE[bottom + 1] - _ROWS_BEFORE[top])[:, None]

    def draw(self, out: np.ndarray, car: Any) -> None:
        """Draw gymnasium's indicators of a car, without the score.

        Args:
            out: (12, 96, 3) uint8, the rows of the bar, filled in place.
            car: gymnasium's `Car`, which is only read.
        """
        speed, omegas = math.hypot(*car.hull.linearVelocity), [wheel.omega for wheel in car.wheels]
        tips = [_tip(0.02, speed), *(_tip(0.01, omega) for omega in omegas)]
        self._rows[:, : len(tips)] = _UPRIGHT_ROWS[tips].T
        wheels = self._rows[:, _WHEELS]
        np.maximum(wheels[:, :-1], wheels[:, 1:], out=self._rows[:, _SHARED])
        joint, turn = car.wheels[0].joint.angle, car.hull.angularVelocity
        steer = _sideways(20, -10.0 * joint) if abs(joint) > _LEAST else (0, 0)
        gyro = _sideways(30, -0.8 * turn) if abs(turn) > _LEAST else (WINDOW_W, WINDOW_W)
        if steer[1] > gyro[0]:  # the red bar lies over the green one
            steer = (min(steer[0], gyro[0]), gyro[0])
        self._columns[_STEER, :, 1] = 255 * (_COLUMNS_BEFORE[steer[1]] - _COLUMNS_BEFORE[steer[0]])
        self._columns[_GYRO, :, 0] = 255 * (_COLUMNS_BEFORE[gyro[1]] - _COLUMNS_BEFORE[gyro[0]])
        light = self._rows @ self._columns.reshape(_GYRO + 1, -1)  # (12, 96 * 3)
        out[:] = (np.maximum(light, _TRUNCATED) - _TRUNCATED).reshape(out.shape)


def _across(start: int, stop: int, color: tuple[int, int, int]) -> np.ndarray:
    """Return the light (96, 3) of this colour from the window columns start to stop - 1."""
    return (_COLUMNS_BEFORE[stop] - _COLUMNS_BEFORE[start])[:, None] * np.array(color, np.float32)


_LEAST = 1e-4
"""gymnasium draws no indicator of a smaller value."""


def _tip(scale: float, value: float) -> int:
    """Return the window row of the bar in which the upright indicator of scale * value ends; 100 for none."""
    if abs(value) <= _LEAST:
        return _BAR_WINDOW_H
    row = int(WINDOW_H - (_ROW + _ROW * (scale * value))) - (WINDOW_H - _BAR_WINDOW_H)
    return min(max(row, 0), _BAR_WINDOW_H - 1)


def _upright(tip: int) -> np.ndarray:
    """Return the fraction (12,) of each row of the bar that an upright indicator covers."""
    foot = _BAR_WINDOW_H - _ROW
    return _ROWS_BEFORE[max(tip, foot) + 1] - _ROWS_BEFORE[min(tip, foot)]


_UPRIGHT_ROWS = np.array([*map(_upright, range(_BAR_WINDOW_H)), np.zeros(STATE_H - BAR_TOP)], np.float32)  # (101, 12)


def _sideways(place: int, value: float) -> tuple[int, int]:
    """Return start and stop of the window columns that an indicator of this value covers."""
    foot = place * _COLUMN
    tip = min(max(int((place + value) * _COLUMN), 0), WINDOW_W - 1)
    return min(tip, foot), max(tip, foot) + 1


SCORE_W = 12
_SCORE_WINDOW_W = round(SCORE_W * PIXEL_W)


@lru_cache(maxsize=4096)
def score(text: str) -> np.ndarray:
    """Draw the score with gymnasium's font and scaling.

    Args:
        text: The score, such as "0123".

    Returns:
        (12, 12, 3) uint8, the left end of the bar.
    """
    try:
        image = _font().render(text, True, (255, 255, 255), (0, 0, 0))
    except pygame.error:  # closing a window has shut pygame down
        _font.cache_clear()
        image = _font().render(text, True, (255, 255, 255), (0, 0, 0))
    place = image.get_rect()
    place.center = (60, int(WINDOW_H - WINDOW_H * 2.5 / 40.0) - (WINDOW_H - _BAR_WINDOW_H))
    surface = pygame.Surface((_SCORE_WINDOW_W, _BAR_WINDOW_H))
    surface.blit(image, place)
    small = pygame.transform.smoothscale(surface, (SCORE_W, STATE_H - BAR_TOP))
    return pygame.surfarray.array3d(small).transpose(1, 0, 2)


@lru_cache(maxsize=1)
def _font() -> pygame.font.Font:
    pygame.font.init()
    return pygame.font.Font(pygame.font.get_default_font(), 42)
