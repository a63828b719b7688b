"""Drawing of CarRacing-v3's `state_pixels` with numpy and OpenCV instead of pygame (docs/renderer.md).

gymnasium draws every polygon into a 1000x800 window at every step and shrinks the window to 96x96. Here the ground is
painted once per episode into a texture, from which one affine warp takes each frame; the car, the status bar and the
score come on top. The frames are close to gymnasium's, not equal. Physics, rewards and random numbers are not touched.

Coordinates: *world*, in simulator units, y up. *Window*, in the pixels of gymnasium's 1000x800 window, y up before it
flips the image, the hull at (500, 200) and pointing up. *Frame*, in the pixels of the 96x96 image, y down.
In both, pixel n covers [n, n + 1] and its centre is n + 0.5.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.envs.box2d.car_racing import STATE_H, STATE_W

from nac_drive.envs.renderer.car import draw_car
from nac_drive.envs.renderer.geometry import BAR_TOP
from nac_drive.envs.renderer.ground import Ground
from nac_drive.envs.renderer.status_bar import SCORE_W, StatusBar, score

__all__ = ["Renderer"]


class Renderer:
    """Renderer of the frames of one environment, one episode after another.

    Args:
        background: Colour of the playfield, RGB 0-255.
        grass: Colour of its patches, RGB 0-255.
    """

    def __init__(self, background: Any, grass: Any):
        self.ground = Ground(background, grass)
        self.bar = StatusBar()

    def begin(self, polygons: np.ndarray, colors: np.ndarray) -> None:
        """Paint the ground of a new episode, in some milliseconds.

        Args:
            polygons: (P, 4, 2) corners of gymnasium's `road_poly`, in its drawing order, in simulator units.
            colors: (P, 3) colours of the polygons. They are read again at every frame, because gymnasium changes the
                colour of a tile when the car touches it.
        """
        self.ground.begin(polygons, colors)

    def draw(self, car: Any, zoom: float, reward: float) -> np.ndarray:
        """Draw one frame.

        The camera follows the hull, which has the same place in every frame and points up.

        Args:
            car: gymnasium's `Car`, which is only read.
            zoom: Window pixels per simulator unit.
            reward: The score.

        Returns:
            (96, 96, 3) uint8, a new array.
        """
        frame = np.empty((STATE_H, STATE_W, 3), np.uint8)
        x, y = car.hull.position
        self.ground.draw(frame[:BAR_TOP], x, y, car.hull.angle, zoom)
        draw_car(frame, car, zoom)
        self.bar.draw(frame[BAR_TOP:], car)
        frame[BAR_TOP:, :SCORE_W] = score(f"{reward:04.0f}")
        return frame
