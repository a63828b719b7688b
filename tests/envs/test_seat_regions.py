"""The regions of a frame from the seat.

They are compared with an independent computation, and with the colours that are drawn there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.spatial import KDTree

from nac_drive.envs import CarRacing
from nac_drive.envs.seat import FAR, SEAT_REGIONS, seat_regions
from nac_drive.envs.telemetry import TRACK_HALF_WIDTH
from nac_drive.envs.views import bar_rows
from tests.envs.seat_reference import EYE_AHEAD, EYE_HEIGHT, FIELD_OF_VIEW, HORIZON, PITCH, polygon_at

GRASS, VERGE, FAR_ROAD, NEAR_ROAD, KERBS, BAND, SKY, BAR = range(len(SEAT_REGIONS))


def brute_force(env: Any, size: tuple[int, int]) -> np.ndarray:
    """Follow the ray of each pixel's middle to the ground.

    Road and verge are told by the distance from the centre line, kerbs by their polygons.
    """
    width, height = size
    rows = height - bar_rows(size)
    focal, horizon = width / 2 / math.tan(FIELD_OF_VIEW / 2), HORIZON * rows
    labels = np.full((height, width), BAR, np.uint8)
    hull = env.car.hull
    right = np.array([math.cos(hull.angle), math.sin(hull.angle)])
    front = np.array([-right[1], right[0]])
    eye = np.array([*hull.position]) + EYE_AHEAD * front
    line = np.array(env.track)[:, 2:]
    steps = np.linspace(0, 1, 16, endpoint=False)[:, None, None]
    line = KDTree((line + steps * (np.roll(line, -1, axis=0) - line)).reshape(-1, 2))
    below = (np.arange(rows) + 0.5 - horizon) / focal
    labels[:rows] = np.where(np.arange(rows) + 0.5 < horizon - 3 / 84 * rows, SKY, BAND)[:, None]
    down = below - math.tan(PITCH)
    depth = EYE_HEIGHT / (math.sin(PITCH) + math.cos(PITCH) * down)
    ahead = depth * (math.cos(PITCH) - math.sin(PITCH) * down)
    ground = np.flatnonzero((below > 0) & (depth <= 205))
    depth, ahead = depth[ground, None], ahead[ground, None]
    across = depth * (np.arange(width) + 0.5 - width / 2) / focal
    points = eye + ahead[..., None] * front + across[..., None] * right  # (rows, width, 2)
    away, _ = line.query(points)
    seen = polygon_at(env._roads[0], points.reshape(-1, 2)).reshape(away.shape)
    kerb = (seen >= 0) & (env._roads["tile_of"][0][seen] < 0)
    beside = np.where(ground[:, None] + 0.5 < horizon + 3 / 84 * rows, BAND, GRASS)
    road = np.where(depth > FAR, FAR_ROAD, NEAR_ROAD)
    labels[ground] = np.select(
        [kerb & (depth < 100), away < TRACK_HALF_WIDTH - 2, away < TRACK_HALF_WIDTH + 2],
        [KERBS, road, VERGE],
        beside,
    )
    return labels


@pytest.fixture(scope="module")
def env():
    world = CarRacing(control="continuous", view="seat", size=(160, 80))
    world.reset(seed=3)
    yield world
    world.close()


def put(env: CarRacing, tile: int, offset: float, turn: float) -> None:
    """Set the car beside a tile, `offset` units to the right, `turn` radians to the left."""
    _, angle, x, y = env.track[tile]
    env.place(angle + turn, x + offset * math.cos(angle), y + offset * math.sin(angle))


@pytest.mark.parametrize(
    ("tile", "offset", "turn"), [(10, 0.0, 0.0), (60, -3.0, 0.2), (120, 8.0, -0.4), (200, 14.0, 1.2), (90, 0.0, 2.9)]
)
def test_labels_are_the_brute_forces_but_for_pixels_on_edges(env, tile, offset, turn):
    put(env, tile, offset, turn)
    for size in ((96, 96), (160, 80)):
        labels, expected = seat_regions(env, size), brute_force(env, size)
        wrong = labels != expected
        assert wrong.mean() < 0.005
        padded = np.pad(expected, 1, mode="edge")
        around = np.stack([padded[i : i + size[1], j : j + size[0]] for i in range(3) for j in range(3)])
        assert not (wrong & (around == expected).all(axis=0)).any()


def test_every_region_has_its_colour(env):
    seen: dict[int, list[np.ndarray]] = {}
    for tile in range(5, len(env.track), 20):
        put(env, tile, 0.0, 0.0)
        frame, labels = env.frame_from("seat", (96, 96)).astype(int), seat_regions(env, (96, 96))
        for label in np.unique(labels):
            seen.setdefault(int(label), []).append(frame[labels == label])
    assert seen.keys() == set(range(len(SEAT_REGIONS)))
    mean = {label: np.concatenate(pixels).mean(axis=0) for label, pixels in seen.items()}
    for label in (FAR_ROAD, NEAR_ROAD):
        assert np.ptp(mean[label]) < 12
    assert mean[GRASS].argmax() == 1
    assert mean[SKY].argmax() == 2
    assert mean[KERBS][0] > mean[KERBS][1] + 30
    assert np.concatenate(seen[BAR]).mean() < 30
