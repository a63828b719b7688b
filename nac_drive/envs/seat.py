"""The view from the driver's seat: facts and regions.

The camera is the compiled drawing's (`native/seat.c`): a pinhole above a flat ground. Every row of pixels shows the
ground of one depth.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from nac_drive.envs.regions import VERGE
from nac_drive.envs.telemetry import TRACK_HALF_WIDTH
from nac_drive.envs.views import Size, bar_rows

SEAT_REGIONS = ("grass", "verge", "far road", "near road", "kerbs", "horizon", "sky", "status bar")
"""Names of the labels 0, 1, 2, ... A verge lies on both sides of an edge of the road, kerbs lie on it. The far road is
deeper in the view than 20 units, about as in the view from above. The horizon is a band of rows around the line between
ground and sky, without road, verge and kerbs."""
FAR = 20.0
"""Depth in units from which a road is far."""
BAND = 3 / 84
"""Height of the horizon above and below its line, as a part of the view's rows."""
_EYE_HEIGHT, _EYE_AHEAD, _PITCH, _HORIZON = 2.0, 0.6, math.radians(5), 0.27
_HALF_VIEW = math.tan(math.radians(40))
_ROAD_GONE, _KERB_GONE = 205.0, 100.0
"""Depths at which half of the colour has faded."""
_VIDEO: Size = (600, 400)
"""The size of gymnasium's images, and of videos from the seat."""
_GRASS, _VERGE, _FAR_ROAD, _NEAR_ROAD, _KERBS, _HORIZON_BAND, _SKY, _BAR = range(len(SEAT_REGIONS))


def seat_facts(size: Size) -> dict[str, Any]:
    """Return the fields of `EnvSpec` that the seat view changes."""
    width, height = size
    return {
        "frame_shape": (height, width, 3),
        "bar_top": height - bar_rows(size),
        "flipped_bar_columns": tuple(range(width)),  # the speed alone: the same in a mirror
        "regions": partial(seat_regions, size=size),
        "region_names": SEAT_REGIONS,
        "video_image": _seat_image,
    }


def _seat_image(simulator: Any) -> np.ndarray:
    return simulator.frame_from("seat", _VIDEO)


class _Camera:
    """The camera at the place of a car."""

    def __init__(self, size: Size, position: Any, angle: float) -> None:
        self.width, height = size
        self.rows = height - bar_rows(size)
        self.focal = self.width / 2 / _HALF_VIEW
        self.horizon = _HORIZON * self.rows
        self.right = np.array((math.cos(angle), math.sin(angle)))
        self.ahead = np.array((-math.sin(angle), math.cos(angle)))
        self.eye = np.array((position[0], position[1])) + _EYE_AHEAD * self.ahead
        below = np.arange(self.rows) + 0.5 - self.horizon  # of the middles of the rows
        self.depth = np.where(below > 0, _EYE_HEIGHT * self.focal / math.cos(_PITCH) / below, np.inf)
        """Depth of the ground in each row."""

    def fill(self, labels: np.ndarray, polygons: np.ndarray, label: int, farthest: float) -> None:
        """Label what polygons of the ground cover.

        Args:
            labels: (rows, width), changed in place where the middle of a pixel is covered.
            polygons: (P, 4, 2) corners.
            label: The label.
            farthest: Depth in units up to which polygons count.
        """
        top = int(np.argmax(self.depth < farthest))
        line = self.depth[top:]  # (R,)
        away = polygons - self.eye
        right, depth = away @ self.right, away @ self.ahead * math.cos(_PITCH) + _EYE_HEIGHT * math.sin(_PITCH)
        near = (depth.max(axis=1) > line[-1]) & (depth.min(axis=1) < line[0])
        right, depth = right[near, :, None], depth[near, :, None]  # (P, 4, 1), corners
        next_right, next_depth = np.roll(right, -1, axis=1), np.roll(depth, -1, axis=1)
        crosses = (depth <= line) != (next_depth <= line)  # (P, 4, R), sides and lines of equal depth
        fraction = np.divide(line - depth, next_depth - depth, out=np.zeros(crosses.shape), where=crosses)
        x = self.width / 2 + self.focal * (right + fraction * (next_right - right)) / line
        first, last = (
            np.clip(np.ceil(edge - 0.5), 0, self.width).astype(int)
            for edge in (np.where(crosses, x, np.inf).min(axis=1), np.where(crosses, x, -np.inf).max(axis=1))
        )
        for polygon, row in np.argwhere(first < last):
            labels[top + row, first[polygon, row] : last[polygon, row]] = label


def _across(tiles: np.ndarray, factor: float) -> np.ndarray:
    """Return tiles (P, 4, 2) that are wider by a factor."""
    beside = tiles[:, [1, 0, 3, 2]]  # the corner on the other side of the road
    middle = (tiles + beside) / 2
    return middle + factor * (tiles - middle)


def seat_regions(env: Any, size: Size) -> np.ndarray:
    """Label the pixels of the present frame from the seat.

    Args:
        env: A `CarRacing`, under wrappers or not.
        size: Width and height of the frame.

    Returns:
        (height, width) uint8, indices of `SEAT_REGIONS`.
    """
    simulator = env.unwrapped
    hull = simulator.car.hull
    camera = _Camera(size, hull.position, hull.angle)
    polygons, kerbs = simulator.road_vertices, simulator.kerbs
    tiles = polygons[~kerbs]
    view = np.full((camera.rows, camera.width), _GRASS, np.uint8)
    camera.fill(view, _across(tiles, 1 + VERGE / TRACK_HALF_WIDTH), _VERGE, _ROAD_GONE)
    camera.fill(view, _across(tiles, 1 - VERGE / TRACK_HALF_WIDTH), _NEAR_ROAD, _ROAD_GONE)
    camera.fill(view, polygons[kerbs], _KERBS, _KERB_GONE)
    view[(view == _NEAR_ROAD) & (camera.depth[:, None] > FAR)] = _FAR_ROAD
    above = camera.horizon - np.arange(camera.rows) - 0.5  # of the middles of the rows above the horizon
    view[(view == _GRASS) & (above[:, None] > -BAND * camera.rows)] = _HORIZON_BAND
    view[above > BAND * camera.rows] = _SKY
    bar = np.full((size[1] - camera.rows, camera.width), _BAR, np.uint8)
    return np.concatenate((view, bar))
