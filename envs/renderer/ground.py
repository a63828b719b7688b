"""Drawing of the ground: a texture of the playfield painted once per episode, one affine warp per frame."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
from gymnasium.envs.box2d import car_racing
from gymnasium.envs.box2d.car_racing import PLAYFIELD, STATE_W, WINDOW_H

from nac_drive.envs.renderer.geometry import BAR_TOP, FULL_ZOOM, HULL_X, HULL_Y, PIXEL_H, PIXEL_W, SHIFT, shrunk

BLOCK_SIZE = 2 * car_racing.GRASS_DIM
"""Units along the side of a block, in which the texture is painted: the period of the grass patches."""
BLOCKS = round(2 * PLAYFIELD / BLOCK_SIZE)
BLOCK = 96
"""Texels per block, 2.88 per unit. A texel is the mean of its area, and a bilinear sample of such texels has nearly the
spread of the 0.64 x 0.51 units over which smoothscale takes its mean. Finer and coarser textures are less faithful."""
SUPER = 2
"""Painted texels per texel, along each axis."""
LEVELS = 5
"""The coarsest serves the first frames, which show most of the playfield."""
GROW = 0.05
"""Units by which a grass patch reaches over its edge: gymnasium fills the window pixels of the edge, too."""
INSET = 0.05
"""Units by which road polygons are narrowed, as fillConvexPoly fills the painted texels of the edge, too."""


class Ground:
    """Playfield as a texture with mip levels: level n has BLOCK / 2^n texels per block. Outside it is black.

    Texels have an unused fourth channel, because OpenCV warps four channels faster than three.

    Args:
        background: Colour of the playfield, RGB 0-255.
        grass: Colour of its patches, RGB 0-255.
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
        """Remove the previous road and paint a new one.

        Args:
            polygons: (P, 4, 2) corners in simulator units, in drawing order.
            colors: (P, 3) colours of the polygons, read again by `refresh`.
        """
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
        """Draw the ground around the hull, the direction of the hull upwards.

        During the zoom-in every pixel is the mean of four samples, as no level has texels of the right size.

        Args:
            out: (84, 96, 3) uint8, the frame above the status bar, filled in place.
            x: Position of the hull in simulator units.
            y: Position of the hull in simulator units.
            angle: Angle of the hull in radians.
            zoom: Window pixels per simulator unit.
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
        """Repaint level 0 where colours have changed. The coarser levels, shown for half a second, stay."""
        changed = np.flatnonzero(self._colors[:, 0] != self._painted[:, 0]).tolist()
        if changed:
            self._painted[changed] = self._colors[changed]
            for i in changed:
                self._paints[i] = shrunk(self._painted[i])
            for i in changed:
                for block in self._blocks_of[i]:
                    self._repaint(block, i)

    def _paint(self, block: tuple[int, int], levels: int) -> None:
        """Paint one block of the finest `levels` levels: the grass, then its polygons in gymnasium's order."""
        (x, y), part = block, self._meadow.copy()
        if members := self._polygons_in.get(block):
            corners = self._corners[members] - np.array(block, np.int32) * (BLOCK * SUPER << SHIFT)
            for i, polygon in zip(members, corners, strict=True):
                cv2.fillConvexPoly(part, polygon, self._paints[i], cv2.LINE_8, SHIFT)
        for level in self._levels[:levels]:
            part = _half(part)
            level[y * len(part) : (y + 1) * len(part), x * len(part) : (x + 1) * len(part)] = part

    def _repaint(self, block: tuple[int, int], changed: int) -> None:
        """Repaint level 0 of a block around one polygon, with the same result as `_paint`."""
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
    """Return a block (S, S, 4) without road, a patch in its first quarter; S = BLOCK * SUPER painted texels."""
    size, grow = BLOCK * SUPER, GROW * BLOCK * SUPER / BLOCK_SIZE
    line = _covered(0, size / 2 + grow, size) + _covered(size - grow, size, size)  # (S,)
    fraction = (line[:, None] * line)[..., None]  # (S, S, 1)
    return np.rint(np.array((*background, 0)) * (1 - fraction) + np.array((*grass, 0)) * fraction).astype(np.uint8)


def _covered(low: float, high: float, count: int) -> np.ndarray:
    """Return the fraction (count,) of each [i, i + 1] that lies in [low, high]."""
    return np.diff(np.clip(np.arange(count + 1), low, high))


def _blocks(low: np.ndarray, high: np.ndarray) -> tuple[list[list[tuple[int, int]]], dict[tuple[int, int], list[int]]]:
    """Return the blocks of each of P polygons, from their (P, 2) bounding boxes, and the polygons of each block."""
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
    """Return the image at half its size, every pixel the mean of four."""
    return cv2.resize(image, (image.shape[1] // 2, image.shape[0] // 2), interpolation=cv2.INTER_AREA)
