"""A camera behind the windscreen, drawn with OpenCV.

It looks as CarRacing's seat does (envs/native/seat.c): the same place of the horizon, width of the view, colours of
sky, grass and asphalt, and the same bar for the speed. Here a unit is a metre.

The ground is flat: x, y in metres. In the camera's frame a point has the coordinates right, ahead and up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np

from nac_drive.envs.metadrive import cars
from nac_drive.envs.metadrive.lanes import LINE_WIDTH
from nac_drive.envs.metadrive.situation import RoadMap, Situation
from nac_drive.envs.seat import BAND
from nac_drive.envs.views import bar_rows

EYE, AHEAD = 2.0, 0.6
"""Height of the eye above the road, and its place before the middle of the car, metres."""
PITCH = math.radians(5)
HALF_VIEW = math.radians(40)
HORIZON, HILLS = 0.27, 1.2 / 84
"""Row of the horizon and height of the hills, as fractions of the rows of the view."""
NEAR, FAR = 0.8, 150.0
"""Metres ahead between which the road is drawn; grass reaches the horizon."""
FULL_SPEED = 25.0
"""Metres per second that fill the bar."""
SAMPLES = 3
"""Drawn samples of a pixel, along each axis."""
_SHIFT = 4
"""Bits after the point in the corners given to OpenCV."""
_SKY_TOP, _SKY_LOW, _HILL = (92, 148, 222), (206, 224, 240), (70, 128, 88)
_GRASS = ((92, 190, 86), (112, 214, 104))
_PATCH = 3.75
"""Side of a patch of grass, metres."""
_ROAD, _WHITE, _YELLOW = np.array((103.0, 103, 103)), np.array((245.0, 245, 245)), np.array((250.0, 200, 30))
_GREYS = np.array((-3.5, 0.0, 3.5))
"""Differences of the greys of pieces of asphalt."""
_NEEDLE = (255, 160, 0)
_LONGEST = 6.0
"""Metres of the longest car."""
REGIONS = ("grass", "far road", "near road", "lines", "cars", "horizon", "sky", "status bar")
"""Names of the labels 0, 1, 2, ... The road is the asphalt without its lines; the far road is further ahead than
`FAR_ROAD`. The cars are the others, with their shadows. The horizon is a band of rows around the line between ground
and sky, without road and cars."""
FAR_ROAD = 20.0
"""Metres ahead from which a road is far."""
_GRASS_REGION, _FAR_ROAD, _NEAR_ROAD, _LINES, _CARS, _HORIZON_BAND, _SKY, _BAR = range(len(REGIONS))


@dataclass(frozen=True)
class _Eye:
    x: float
    y: float
    cos: float
    sin: float

    @classmethod
    def of(cls, situation: Situation) -> _Eye:
        """Return the eye of a driver."""
        cos, sin = math.cos(situation.heading), math.sin(situation.heading)
        return cls(situation.x + AHEAD * cos, situation.y + AHEAD * sin, cos, sin)

    def seen(self, points: np.ndarray) -> np.ndarray:
        """Return right and ahead (..., 2) of points (..., 2)."""
        turn = np.array(((self.sin, self.cos), (-self.cos, self.sin)), points.dtype)
        return (points - np.array((self.x, self.y), points.dtype)) @ turn


class Camera:
    """Draws frames of a map.

    Args:
        width: Columns of a frame.
        height: Rows of a frame, the bar among them.
    """

    def __init__(self, width: int = 96, height: int = 96) -> None:
        self._width, self._height, self._bar = width, height, bar_rows((width, height))
        self._rows = height - self._bar
        self._focal = SAMPLES * width / 2 / math.tan(HALF_VIEW)
        self._horizon = HORIZON * self._rows
        self._canvas = np.empty((SAMPLES * self._rows, SAMPLES * width, 4), np.uint8)
        self._behind = _sky(width, self._rows, self._horizon)
        first = math.ceil(self._horizon)
        rows, columns = np.mgrid[first : self._rows, 0:width]
        down = SAMPLES * (rows + 0.5 - self._horizon)
        depth = self._focal / math.cos(PITCH) * EYE / down
        self._first = first
        self._right = SAMPLES * (columns + 0.5 - width / 2) * depth / self._focal
        self._ahead = (depth - EYE * math.sin(PITCH)) / math.cos(PITCH)
        across = SAMPLES * depth / self._focal  # metres of a pixel, across and along
        along = depth * depth * SAMPLES * math.cos(PITCH) / (self._focal * EYE)
        self._sharpness = _PATCH / np.maximum(across, along)

    def begin(self, road: RoadMap) -> None:
        """Take the map of an episode."""
        self._polygons = np.concatenate((road.surface, road.lines))
        self._is_line = np.arange(len(self._polygons)) >= len(road.surface)
        paint = np.where(road.yellow[:, None], _YELLOW, _WHITE)
        greys = _ROAD + _GREYS[np.arange(len(road.surface)) % len(_GREYS), None]  # so that the driver sees them pass
        self._colors = np.concatenate((greys, paint))
        self._middles = self._polygons.mean(axis=1)
        self._reach = np.abs(self._polygons - self._middles[:, None]).max(axis=(1, 2)) * math.sqrt(2)

    def draw(self, situation: Situation) -> np.ndarray:
        """Return the frame (height, width, 3) uint8 of a situation."""
        eye = _Eye.of(situation)
        self._canvas[:] = 0
        self._draw_road(eye)
        self._draw_traffic(eye, situation.traffic)
        frame = np.zeros((self._height, self._width, 3), np.uint8)
        self._behind[self._first :] = self._grass(eye)
        scene = cv2.resize(self._canvas, (self._width, self._rows), interpolation=cv2.INTER_AREA).astype(np.float32)
        frame[: self._rows] = scene[..., :3] + self._behind * (1 - scene[..., 3:] / 255)
        self._draw_bar(frame[self._rows :], situation)
        return frame

    def regions(self, situation: Situation) -> np.ndarray:
        """Label the pixels of the frame of a situation.

        A pixel has the label of its middle.

        Returns:
            (height, width) uint8, indices of `REGIONS`.
        """
        eye = _Eye.of(situation)
        canvas = np.full(self._canvas.shape[:2], _GRASS_REGION, np.uint8)
        chosen, polygons, _ = self._road(eye)
        for polygon, is_line in zip(polygons, self._is_line[chosen].tolist(), strict=True):
            if len(polygon):
                cv2.fillConvexPoly(canvas, polygon, _LINES if is_line else _NEAR_ROAD, cv2.LINE_8, _SHIFT)
        for polygon, _ in self._cars(eye, situation.traffic):
            cv2.fillConvexPoly(canvas, polygon, _CARS, cv2.LINE_8, _SHIFT)
        view = canvas[SAMPLES // 2 :: SAMPLES, SAMPLES // 2 :: SAMPLES]
        ground = view[self._first :]
        ground[(ground == _NEAR_ROAD) & (self._ahead > FAR_ROAD)] = _FAR_ROAD
        above = self._horizon - np.arange(self._rows)[:, None] - 0.5  # of the middles of the rows
        view[(view == _GRASS_REGION) & (above > -BAND * self._rows)] = _HORIZON_BAND
        view[(view == _HORIZON_BAND) & (above > BAND * self._rows)] = _SKY
        return np.concatenate((view, np.full((self._bar, self._width), _BAR, np.uint8)))

    def _draw_road(self, eye: _Eye) -> None:
        chosen, polygons, cover = self._road(eye)
        colors = (_ROAD + cover[:, None] * (self._colors[chosen] - _ROAD)).tolist()
        for polygon, color in zip(polygons, colors, strict=True):
            if len(polygon):
                cv2.fillConvexPoly(self._canvas, polygon, (*color, 255), cv2.LINE_8, _SHIFT)

    def _road(self, eye: _Eye) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
        """Return the visible polygons of the road.

        They are numbers, corners on the canvas, and the cover of paint.
        """
        middles, reach = eye.seen(self._middles), self._reach
        right, ahead = middles[:, 0], middles[:, 1]
        visible = (ahead > NEAR - reach) & (ahead < FAR + reach)
        visible &= np.abs(right) < (np.abs(ahead) + 2) * math.tan(HALF_VIEW) * 1.1 + reach
        chosen = np.flatnonzero(visible)
        points = eye.seen(self._polygons[chosen])
        depth = np.maximum(ahead[chosen], NEAR)
        pixels = LINE_WIDTH * self._focal / depth  # OpenCV draws at least one sample: thin paint fades instead
        cover = np.where(self._is_line[chosen], pixels / (pixels + 0.5), 1.0)
        corners = [*self._pixels(points, 0.0)]
        for place in np.flatnonzero(np.any(points[..., 1] < NEAR, axis=1)).tolist():
            corners[place] = self._pixels(_clipped(points[place]), 0.0)
        return chosen, corners, cover

    def _draw_traffic(self, eye: _Eye, traffic: np.ndarray) -> None:
        for polygon, color in self._cars(eye, traffic):
            cv2.fillConvexPoly(self._canvas, polygon, (*color.tolist(), 255), cv2.LINE_8, _SHIFT)

    def _cars(self, eye: _Eye, traffic: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the parts of other cars, far ones first.

        A part is its corners on the canvas and its colour. A side that faces away is not drawn.
        """
        ahead = eye.seen(traffic[:, :2].astype(float))[:, 1]
        order = np.argsort(-ahead)
        corners, colors = cars.polygons(traffic[order[(ahead[order] > NEAR - _LONGEST) & (ahead[order] < FAR)]])
        points = np.concatenate((eye.seen(corners[..., :2]), corners[..., 2:]), axis=-1)
        pixels = self._pixels(points[..., :2], points[..., 2])
        x, y = np.moveaxis(pixels.astype(float), -1, 0)
        facing = (x * np.roll(y, -1, axis=-1) - y * np.roll(x, -1, axis=-1)).sum(axis=-1) < 0  # rows count downwards
        cut = np.any(points[..., 1] < NEAR, axis=-1)
        for car, part in np.argwhere(facing | cut).tolist():
            shape = pixels[car, part]
            if cut[car, part]:
                rest = _clipped(points[car, part])
                shape = self._pixels(rest[:, :2], rest[:, 2])
            if len(shape):
                yield shape, colors[car, part]

    def _pixels(self, points: np.ndarray, up: np.ndarray | float) -> np.ndarray:
        """Return places on the canvas, with bits after the point.

        Points (..., 2) are right and ahead.
        """
        right, ahead = points[..., 0], points[..., 1]
        below = EYE - up
        depth = np.maximum(ahead * math.cos(PITCH) + below * math.sin(PITCH), 0.1)
        down = self._focal * (below * math.cos(PITCH) - ahead * math.sin(PITCH)) / depth
        places = np.stack((SAMPLES * self._width / 2 + self._focal * right / depth,
                           SAMPLES * self._horizon + self._focal * math.tan(PITCH) + down), axis=-1)  # fmt: skip
        return np.rint((places - 0.5) * (1 << _SHIFT)).clip(-(2**28), 2**28).astype(np.int32)

    def _grass(self, eye: _Eye) -> np.ndarray:
        """Return the rows below the horizon without the road.

        They are a chequerboard, which fades where its patches are smaller than pixels.
        """
        x = eye.x + self._right * eye.sin + self._ahead * eye.cos
        y = eye.y - self._right * eye.cos + self._ahead * eye.sin
        board = np.sin(x * (math.pi / _PATCH)) * np.sin(y * (math.pi / _PATCH)) * self._sharpness
        share = 0.5 + 0.5 * np.clip(board, -1, 1) * np.clip(self._sharpness - 1, 0, 1)
        dark, light = np.array(_GRASS, np.float32)
        return dark + share[..., None].astype(np.float32) * (light - dark)

    def _draw_bar(self, bar: np.ndarray, situation: Situation) -> None:
        """Draw the speed, and below it the turn."""
        margin, rows = self._width // 24, len(bar)
        length = (self._width - 2 * margin) * min(max(situation.speed, 0.0) / FULL_SPEED, 1.0)
        whole = int(length)
        speed = bar[rows // 4 : rows - rows // 4]
        speed[:, margin : margin + whole] = 255
        speed[:, margin + whole] = round(255 * (length - whole))
        if situation.turn is not None:
            share = min(max(-situation.turn / (math.pi / 2), -1.0), 1.0)
            half = max(self._width // 32, 1)
            column = round(self._width / 2 + share * (self._width / 2 - margin - half))
            bar[rows - rows // 4 :, column - half : column + half] = _NEEDLE


def _clipped(polygon: np.ndarray) -> np.ndarray:
    """Return the part of a polygon far enough ahead.

    Its corners are (N, 2) or (N, 3).
    """
    if (polygon[:, 1] >= NEAR).all():
        return polygon
    corners = []
    for here, after in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        if here[1] >= NEAR:
            corners.append(here)
        if (here[1] >= NEAR) != (after[1] >= NEAR):
            corners.append(here + (NEAR - here[1]) / (after[1] - here[1]) * (after - here))
    return np.array(corners).reshape(-1, polygon.shape[1])


def _sky(width: int, rows: int, horizon: float) -> np.ndarray:
    """Return the view (rows, width, 3) without the ground."""
    middle = np.minimum((np.arange(rows) + 0.5) / horizon, 1.0)[:, None] ** 1.5
    lines = np.array(_SKY_TOP) * (1 - middle) + np.array(_SKY_LOW) * middle
    top = np.arange(rows)
    hidden = np.clip(np.minimum(top + 1, horizon) - np.maximum(top, horizon - HILLS * rows), 0, 1)[:, None]
    lines = lines * (1 - hidden) + np.array(_HILL) * hidden
    return np.repeat(lines[:, None], width, axis=1).astype(np.float32)
