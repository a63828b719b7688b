"""Draws CarRacing-v3's `state_pixels` with numpy and OpenCV instead of pygame (docs/renderer.md).

gymnasium draws every polygon into a 1000x800 window at every step and shrinks the window to 96x96. Here the ground is
painted once per episode into a texture, from which one affine warp takes each frame; the car, the status bar and the
score come on top. The frames are close to gymnasium's, not equal. Physics, rewards and random numbers are not touched.

Coordinates: *world*, in simulator units, y up. *Window*, in the pixels of gymnasium's 1000x800 window, y up before it
flips the picture, the hull at (500, 200) and pointing up. *Frame*, in the pixels of the 96x96 picture, y down.
Everywhere the pixel n covers [n, n + 1], its centre is n + 0.5.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import pygame
from gymnasium.envs.box2d import car_dynamics, car_racing
from gymnasium.envs.box2d.car_dynamics import SIZE, WHEEL_R, WHEEL_W
from gymnasium.envs.box2d.car_racing import PLAYFIELD, STATE_H, STATE_W, WINDOW_H, WINDOW_W

PIXEL_W, PIXEL_H = WINDOW_W / STATE_W, WINDOW_H / STATE_H
"""A pixel of the frame in pixels of the window: 10.4 x 8.3."""
HULL_X, HULL_Y = WINDOW_W / 2, WINDOW_H / 4
FULL_ZOOM = car_racing.ZOOM * car_racing.SCALE
"""Window pixels per unit when the zoom-in of the first second is over."""
BAR_TOP = STATE_H - STATE_H * 5 // 40
"""First row of the status bar."""


class Renderer:
    """Draws the frames of one environment, one episode after another.

    background, grass: colours of the playfield and of its patches.
    """

    def __init__(self, background: Any, grass: Any):
        self.ground = Ground(background, grass)
        self.bar = Bar()

    def begin(self, polygons: np.ndarray, colors: np.ndarray) -> None:
        """Paint the ground of a new episode; it takes some milliseconds.

        polygons: (P, 4, 2), gymnasium's `road_poly` in its drawing order, in units.
        colors: (P, 3), theirs, read again at every frame: gymnasium changes that of a tile when the car touches it.
        """
        self.ground.begin(polygons, colors)

    def draw(self, car: Any, zoom: float, reward: float) -> np.ndarray:
        """(96, 96, 3) uint8, a new array: gymnasium's `Car` seen at `zoom` window pixels per unit, `reward` as score.

        The car is only read. The camera follows the hull: it stands in the same place of every frame, pointing up.
        """
        frame = np.empty((STATE_H, STATE_W, 3), np.uint8)
        x, y = car.hull.position
        self.ground.draw(frame[:BAR_TOP], x, y, car.hull.angle, zoom)
        draw_car(frame, car, zoom)
        self.bar.draw(frame[BAR_TOP:], car)
        frame[BAR_TOP:, :SCORE_W] = score(f"{reward:04.0f}")
        return frame


def shrunk(color: Any) -> tuple[int, ...]:
    """What smoothscale makes of a flat area of this colour: it cuts fractions off twice, so a 102 comes out as 100."""
    return tuple(max(int(channel) - 2, 0) for channel in color)


# The ground

BLOCK_SIZE = 2 * car_racing.GRASS_DIM
"""Units along the side of a block, in which the texture is painted: the period of the grass patches."""
BLOCKS = round(2 * PLAYFIELD / BLOCK_SIZE)
BLOCK = 96
"""Texels per block, 2.88 per unit. A texel is the mean of its area, and a bilinear sample of such texels has nearly the
spread of the 0.64 x 0.51 units over which smoothscale takes its mean. Finer and coarser textures are less faithful."""
SUPER = 2
"""Painted texels per texel, along each axis."""
LEVELS = 5
"""The coarsest serves the first frames, in which most of the playfield is seen."""
GROW = 0.05
"""Units by which a grass patch reaches over its edge: gymnasium fills the window pixels of the edge, too."""
INSET = 0.05
"""Units by which road polygons are narrowed, as fillConvexPoly fills the painted texels of the edge, too."""
SHIFT = 4
"""Bits after the point in the corners given to OpenCV."""


class Ground:
    """The playfield as a texture with mip levels: level n has BLOCK / 2^n texels per block. Outside it is black.

    Texels have a fourth channel, which is never looked at: OpenCV warps four channels faster than three.
    """

    def __init__(self, background: Any, grass: Any):
        self._meadow = _meadow(shrunk(background), shrunk(grass))
        self._scratch = self._meadow.copy()
        self._polygons_in: dict[tuple[int, int], list[int]] = {}
        self._levels, bare = [], self._meadow
        for _ in range(LEVELS):
            bare = _half(bare)
            self._levels.append(np.tile(bare, (BLOCKS, BLOCKS, 1)))  # (BLOCKS * BLOCK / 2^n)^2 x 4

    def begin(self, polygons: np.ndarray, colors: np.ndarray) -> None:
        """Remove the last road and paint a new one."""
        road = list(self._polygons_in)
        across = polygons[:, [1, 0, 3, 2]] - polygons  # (P, 4, 2): corners come in the order left, right, right, left
        width = np.linalg.norm(across, axis=-1, keepdims=True)  # 0 for a kerb that gymnasium lays on a straight
        inset = polygons + across * (INSET / np.maximum(width, INSET))
        corners = (inset + PLAYFIELD) * (BLOCK * SUPER / BLOCK_SIZE) - 0.5  # (P, 4, 2) in painted texels
        self._corners = np.rint(corners * (1 << SHIFT)).astype(np.int32)
        self._low = np.floor(corners.min(axis=1)).astype(np.int64) - 1  # (P, 2): bounding boxes
        self._high = np.ceil(corners.max(axis=1)).astype(np.int64) + 2
        self._blocks_of, self._polygons_in = _blocks(self._low, self._high)
        self._colors, self._painted = colors, colors.copy()
        self._paints = [shrunk(color) for color in colors.tolist()]
        for block in {*road, *self._polygons_in}:
            self._paint(block, LEVELS)

    def draw(self, out: np.ndarray, x: float, y: float, angle: float, zoom: float) -> None:
        """Fill `out`, the frame down to the bar, with the ground around (x, y), the direction `angle` upwards.

        During the zoom-in every pixel is the mean of four samples, as no level has texels of the right size.
        """
        self.refresh()
        over, level = 1, 0
        if zoom < 0.999 * FULL_ZOOM:
            over, level = 2, min(int(math.log2(FULL_ZOOM / zoom)), LEVELS - 1)
        texels = BLOCK / BLOCK_SIZE / (1 << level)  # per unit
        cos, sin, unit = math.cos(angle), math.sin(angle), texels / zoom
        right, down = PIXEL_W / over * unit, PIXEL_H / over * unit  # one sample to the right, one down, in texels
        left, top = 0.5 * right - HULL_X * unit, (WINDOW_H - HULL_Y) * unit - 0.5 * down  # first sample from the hull
        samples_to_texels = np.array(
            [
                [cos * right, sin * down, cos * left - sin * top + (x + PLAYFIELD) * texels - 0.5],
                [sin * right, -cos * down, sin * left + cos * top + (y + PLAYFIELD) * texels - 0.5],
            ]
        )
        size, flags = (STATE_W * over, BAR_TOP * over), cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        frame = cv2.warpAffine(self._levels[level], samples_to_texels, size, flags=flags)
        cv2.cvtColor(_half(frame) if over == 2 else frame, cv2.COLOR_RGBA2RGB, dst=out)

    def refresh(self) -> None:
        """Paint level 0 anew where colours have changed. The coarser levels are seen for half a second: they wait."""
        changed = np.flatnonzero(self._colors[:, 0] != self._painted[:, 0]).tolist()
        if changed:
            self._painted[changed] = self._colors[changed]
            for i in changed:
                self._paints[i] = shrunk(self._painted[i])
            for i in changed:
                for block in self._blocks_of[i]:
                    self._repaint(block, i)

    def _paint(self, block: tuple[int, int], levels: int) -> None:
        """Paint one block of the finest levels: the grass, then its polygons in gymnasium's order."""
        (x, y), part = block, self._meadow.copy()
        if members := self._polygons_in.get(block):
            corners = self._corners[members] - np.array(block, np.int32) * (BLOCK * SUPER << SHIFT)
            for i, polygon in zip(members, corners, strict=True):
                cv2.fillConvexPoly(part, polygon, self._paints[i], cv2.LINE_8, SHIFT)
        for level in self._levels[:levels]:
            part = _half(part)
            level[y * len(part) : (y + 1) * len(part), x * len(part) : (x + 1) * len(part)] = part

    def _repaint(self, block: tuple[int, int], changed: int) -> None:
        """Paint level 0 of a block anew where one polygon lies; the texels become what `_paint` would make them."""
        origin = np.array(block) * (BLOCK * SUPER)
        members = np.array(self._polygons_in[block])
        low, high = self._low[changed], self._high[changed]
        near = members[((self._low[members] < high) & (self._high[members] > low)).all(axis=1)]
        left, top = np.maximum((low - origin) // SUPER, 0).tolist()
        right, bottom = np.minimum(-((origin - high) // SUPER), BLOCK).tolist()
        part, area = self._scratch, np.s_[top * SUPER : bottom * SUPER, left * SUPER : right * SUPER]
        part[area] = self._meadow[area]
        for i, polygon in zip(near.tolist(), self._corners[near] - (origin << SHIFT).astype(np.int32), strict=True):
            cv2.fillConvexPoly(part, polygon, self._paints[i], cv2.LINE_8, SHIFT)
        x, y = block[0] * BLOCK, block[1] * BLOCK
        self._levels[0][y + top : y + bottom, x + left : x + right] = _half(part[area])


@lru_cache(maxsize=2)
def _meadow(background: tuple[int, ...], grass: tuple[int, ...]) -> np.ndarray:
    """(S, S, 4): a block without road, a patch in its first quarter; S = BLOCK * SUPER painted texels."""
    size, grow = BLOCK * SUPER, GROW * BLOCK * SUPER / BLOCK_SIZE
    line = _covered(0, size / 2 + grow, size) + _covered(size - grow, size, size)  # (S,)
    share = (line[:, None] * line)[..., None]  # (S, S, 1)
    return np.rint(np.array((*background, 0)) * (1 - share) + np.array((*grass, 0)) * share).astype(np.uint8)


def _covered(low: float, high: float, count: int) -> np.ndarray:
    """(count,): the share of each [i, i + 1] that lies in [low, high]."""
    return np.diff(np.clip(np.arange(count + 1), low, high))


def _blocks(low: np.ndarray, high: np.ndarray) -> tuple[list[list[tuple[int, int]]], dict[tuple[int, int], list[int]]]:
    """The blocks that each of P polygons touches, from their (P, 2) bounding boxes; and the polygons of each block."""
    first = np.clip(low // (BLOCK * SUPER), 0, BLOCKS - 1).tolist()
    last = np.clip((high - 1) // (BLOCK * SUPER), 0, BLOCKS - 1).tolist()
    blocks_of: list[list[tuple[int, int]]] = []
    polygons_in: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, ((left, low), (right, high)) in enumerate(zip(first, last, strict=True)):
        blocks_of.append([(x, y) for x in range(left, right + 1) for y in range(low, high + 1)])
        for block in blocks_of[-1]:
            polygons_in[block].append(i)
    return blocks_of, polygons_in


def _half(image: np.ndarray) -> np.ndarray:
    """The image at half its size, every pixel the mean of four."""
    return cv2.resize(image, (image.shape[1] // 2, image.shape[0] // 2), interpolation=cv2.INTER_AREA)


# The car

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
    """Four wheels with their turning white stripes, then the hull over them, on the ground already in the frame."""
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
    """From where to where along the wheel its stripe is seen, in radii; equal where it is not. gymnasium's own rule."""
    start, end = math.cos(phase), math.cos(phase + 1.2)
    start_hidden, end_hidden = math.sin(phase) > 0, math.sin(phase + 1.2) > 0
    if start_hidden and end_hidden:
        return 0.0, 0.0
    return (math.copysign(1.0, start) if start_hidden else start), (math.copysign(1.0, end) if end_hidden else end)


def _fine(corners: np.ndarray) -> np.ndarray:
    """Window coordinates, rounded down to whole pixels as pygame does, as fixed-point numbers of the fine samples."""
    return np.rint(np.floor(corners) * _TO_FINE + _FINE_ORIGIN).astype(np.int32)


@lru_cache(maxsize=64)
def _hull_mask(zoom: float) -> np.ndarray:
    """Where the hull is: it never moves in the frame, and every episode has the same zooms."""
    mask = np.zeros(_RED.shape[:2], np.uint8)
    for polygon in _HULL:
        corners = np.array(polygon) * (SIZE * zoom) + (HULL_X, HULL_Y)
        cv2.fillConvexPoly(mask, _fine(corners), 255, cv2.LINE_8, SHIFT)
    return mask


# The status bar

_BAR_WINDOW_H = WINDOW_H * 5 // 40
_COLUMN, _ROW = WINDOW_W // 40, WINDOW_H // 40
"""gymnasium's grid for the indicators, in pixels of the window."""


def _running(count: int, pixels: int) -> np.ndarray:
    """(pixels + 1, count): row n holds the share of every pixel of the frame that the first n window pixels cover."""
    edges = np.clip(np.arange(pixels + 1)[:, None] * (count / pixels) - np.arange(count), 0, 1)
    return edges.astype(np.float32)


_ROWS_BEFORE = _running(STATE_H - BAR_TOP, _BAR_WINDOW_H)
_COLUMNS_BEFORE = _running(STATE_W, WINDOW_W)
_UPRIGHT = ((5, (255, 255, 255)), (7, (0, 0, 255)), (8, (0, 0, 255)), (9, (51, 0, 255)), (10, (51, 0, 255)))
"""Column of the grid and colour of the indicators that grow upwards: speed and the four wheels."""
_SPEED, _WHEELS, _SHARED, _STEER, _GYRO = 0, slice(1, 5), slice(5, 8), 8, 9
"""Their rows in the product; the window columns that two wheels share, where the higher one is seen; and the two that
grow sideways, the joint angle of the first wheel, green, and the turning rate, red."""
_TRUNCATED = 1.5
"""What smoothscale's cut fractions take away."""


class Bar:
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
        """Fill `out`, the rows of the bar, with gymnasium's indicators of the car; no score."""
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
    """(96, 3): the light of this colour from the window columns start to stop - 1."""
    return (_COLUMNS_BEFORE[stop] - _COLUMNS_BEFORE[start])[:, None] * np.array(color, np.float32)


_LEAST = 1e-4
"""gymnasium draws no indicator of a smaller value."""


def _tip(scale: float, value: float) -> int:
    """The window row of the bar in which the upright indicator of scale * value ends; 100 where there is none."""
    if abs(value) <= _LEAST:
        return _BAR_WINDOW_H
    row = int(WINDOW_H - (_ROW + _ROW * (scale * value))) - (WINDOW_H - _BAR_WINDOW_H)
    return min(max(row, 0), _BAR_WINDOW_H - 1)


def _upright(tip: int) -> np.ndarray:
    """(12,): the share of each row of the bar that an upright indicator covers."""
    foot = _BAR_WINDOW_H - _ROW
    return _ROWS_BEFORE[max(tip, foot) + 1] - _ROWS_BEFORE[min(tip, foot)]


_UPRIGHT_ROWS = np.array([*map(_upright, range(_BAR_WINDOW_H)), np.zeros(STATE_H - BAR_TOP)], np.float32)  # (101, 12)


def _sideways(place: int, value: float) -> tuple[int, int]:
    """The columns of the window, from and to, that an indicator of this value covers."""
    foot = place * _COLUMN
    tip = min(max(int((place + value) * _COLUMN), 0), WINDOW_W - 1)
    return min(tip, foot), max(tip, foot) + 1


SCORE_W = 12
_SCORE_WINDOW_W = round(SCORE_W * PIXEL_W)


@lru_cache(maxsize=4096)
def score(text: str) -> np.ndarray:
    """(12, 12, 3): the left end of the bar with gymnasium's score, drawn with its font and shrunk as it does."""
    try:
        image = _font().render(text, True, (255, 255, 255), (0, 0, 0))
    except pygame.error:  # a window that was closed has shut pygame down
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
