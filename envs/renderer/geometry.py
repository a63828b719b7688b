"""Shared constants of the renderer, and the colours that gymnasium's scaling makes."""

from __future__ import annotations

from typing import Any

from gymnasium.envs.box2d import car_racing
from gymnasium.envs.box2d.car_racing import STATE_H, STATE_W, WINDOW_H, WINDOW_W

PIXEL_W, PIXEL_H = WINDOW_W / STATE_W, WINDOW_H / STATE_H
"""A pixel of the frame in pixels of the window: 10.4 x 8.3."""
HULL_X, HULL_Y = WINDOW_W / 2, WINDOW_H / 4
FULL_ZOOM = car_racing.ZOOM * car_racing.SCALE
"""Window pixels per unit when the zoom-in of the first second is over."""
BAR_TOP = STATE_H - STATE_H * 5 // 40
"""First row of the status bar."""
SHIFT = 4
"""Bits after the point in the corners given to OpenCV."""


def shrunk(color: Any) -> tuple[int, ...]:
    """Return the colour of a flat area after smoothscale, which truncates twice: 102 becomes 100."""
    return tuple(max(int(channel) - 2, 0) for channel in color)
