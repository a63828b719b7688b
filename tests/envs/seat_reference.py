"""The driver's seat by brute force.

It is the oracle of seat.c. Each pixel is the mean of samples. A sample follows one ray from the eye to the ground and
asks every polygon whether it holds the point. The formulas are a pinhole camera's, with angles and lengths as stated
below.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

EYE_HEIGHT, EYE_AHEAD, PITCH, FIELD_OF_VIEW, HORIZON = 2.0, 0.6, math.radians(5), math.radians(80), 0.27
"""Units above the road and before the hull's origin, radians, and the horizon's place as a fraction of the rows."""
PATCH = 3.75
CELL = 10.0
"""No corner of a polygon is farther from its middle."""
SKY_TOP, SKY_LOW, HILLS = np.array([92, 148, 222]), np.array([206, 224, 240]), np.array([70, 128, 88])
WHITE, RED = np.array([245, 245, 245]), np.array([225, 20, 20])
DARKER, LIGHTER = np.array([-10, -14, -16]), np.array([10, 10, 2])


def fade(value: np.ndarray, begin: float, end: float) -> np.ndarray:
    """Return 1 up to `begin`, 0 from `end` on."""
    return np.clip((end - value) / (end - begin), 0, 1)


def mix(start: np.ndarray, end: np.ndarray, part: np.ndarray) -> np.ndarray:
    return start + (end - start) * part[..., None]


def polygon_at(road: Any, points: np.ndarray) -> np.ndarray:
    """Return the polygon at each point (N, 2).

    Grass is -1. Kerbs lie on tiles, and later polygons on earlier ones.
    """
    seen = np.full(len(points), -1)
    cells = _sort_into_cells(points)
    for polygon in sorted(range(int(road["polygons"])), key=lambda i: (road["tile_of"][i] < 0, i)):
        corners = road["polygon"][polygon]
        column, row = np.floor(corners.mean(axis=0) / CELL).astype(int).tolist()
        neighbours = [(column + i, row + j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
        near = np.concatenate([cells.get(cell, np.empty(0, int)) for cell in neighbours])
        sides = np.roll(corners, -1, axis=0) - corners  # (4, 2)
        turns = np.stack([
            side[0] * (points[near, 1] - corner[1]) - side[1] * (points[near, 0] - corner[0])
            for side, corner in zip(sides, corners, strict=True)
        ])  # fmt: skip
        seen[near[(turns > 0).all(axis=0) | (turns < 0).all(axis=0)]] = polygon
    return seen


def _sort_into_cells(points: np.ndarray) -> dict[tuple[int, ...], np.ndarray]:
    """Return the indices of the points in each square cell."""
    cells = np.floor(points / CELL).astype(int)
    _, cell_of, counts = np.unique(cells @ (1 << 20, 1), return_inverse=True, return_counts=True)
    members = np.split(np.argsort(cell_of, kind="stable"), np.cumsum(counts)[:-1])
    return {tuple(cells[indices[0]].tolist()): indices for indices in members}


def near_colors(road: Any, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the polygons' colours (N, 3), unfaded and mean.

    A tile or a kerb of the mean colour shows no pattern.
    """
    base, color = road["touched_color"].astype(float), road["color"][seen].astype(float)
    tile = np.floor(np.clip(base - 7.5 + 3.5 * (color - base), 0, 255))
    kerb = np.where(color[:, 1:2] < 128, RED, WHITE)
    is_kerb = road["tile_of"][seen, None] < 0
    return np.where(is_kerb, kerb, tile), np.where(is_kerb, (WHITE + RED) / 2, base + 1)


def ground_colors(road: Any, points: np.ndarray, detail: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """Return the colours (N, 3) of the ground.

    Args:
        road: Element of a `ROAD` array.
        points: (N, 2) places in the world.
        detail: (N,) contrast of patterns in the point's row of pixels.
        depth: (N,) depth of the middle of that row.
    """
    dark, light = road["background"] + DARKER, road["background"] + LIGHTER
    meadow = (dark + light) / 2
    even = np.floor(points / PATCH).sum(axis=1) % 2 == 0
    colors = mix(meadow, np.where(even[:, None], light, dark), detail * fade(depth, 40, 64))
    seen = polygon_at(road, points)
    on_road = seen >= 0
    color, mean = near_colors(road, seen)
    presence = np.where(road["tile_of"][seen] < 0, fade(depth, 50, 150), fade(depth, 150, 260))
    return np.where(on_road[:, None], mix(meadow, mix(mean, color, detail), presence), colors)


def seat_frame(road: Any, car: Any, width: int, height: int, bar: int, samples: int = 8) -> np.ndarray:
    """Return the frame (height - bar, width, 3) without the bar, as floats."""
    rows = height - bar
    focal, horizon = width / 2 / math.tan(FIELD_OF_VIEW / 2), HORIZON * rows
    x = (np.arange(width * samples) + 0.5) / samples
    y = (np.arange(rows * samples) + 0.5) / samples
    sky = mix(SKY_TOP, SKY_LOW, np.clip(y / horizon, 0, 1) ** 1.5)
    sky = np.where(y[:, None] < horizon - 1.2 / 84 * rows, sky, HILLS)
    image = np.repeat(sky[:, None], len(x), axis=1)  # (rows * samples, width * samples, 3)

    below = y > horizon
    depth, ahead = _ground((y[below] - horizon) / focal)
    right = depth[:, None] * (x - width / 2) / focal
    angle = float(car["body"]["angle"][0])
    to_right, to_front = np.array([math.cos(angle), math.sin(angle)]), np.array([-math.sin(angle), math.cos(angle)])
    eye = car["position"].astype(float) + EYE_AHEAD * to_front
    points = eye + right[..., None] * to_right + ahead[:, None, None] * to_front  # (below, width * samples, 2)

    top = np.maximum(np.floor(y[below]), horizon)  # of the ground in the sample's row of pixels
    row_depth, _ = _ground(((top + np.floor(y[below]) + 1) / 2 - horizon) / focal)
    detail = fade(row_depth**2 / (focal * EYE_HEIGHT), PATCH, 4 * PATCH)  # by the row's length on the ground
    columns = len(x)
    colors = ground_colors(road, points.reshape(-1, 2), np.repeat(detail, columns), np.repeat(row_depth, columns))
    image[below] = colors.reshape(-1, columns, 3)
    return image.reshape(rows, samples, width, samples, 3).mean(axis=(1, 3))


def _ground(below: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return depth and distance ahead of the ground.

    Args:
        below: Rows below the horizon, divided by the focal length.
    """
    down = below - math.tan(PITCH)  # of the ray, which goes 1 along the optical axis
    depth = EYE_HEIGHT / (math.sin(PITCH) + math.cos(PITCH) * down)
    return depth, depth * (math.cos(PITCH) - math.sin(PITCH) * down)
