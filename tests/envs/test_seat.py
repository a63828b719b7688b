"""Tests of the view from the driver's seat."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import pytest

from nac_drive.envs.native.build import LIBRARY
from nac_drive.envs.native.library import CAR, MAX_POLYGONS, load
from nac_drive.envs.world import World
from tests.envs.seat_reference import PATCH, seat_frame

BEND, STRAIGHT, KERB, OTHER_STRAND = 245, 1, 73, 180
"""Tiles of the track of seed 3: before a hairpin, the start, beside a kerb on the left, abreast of another strand."""


class SeatView(ctypes.Structure):
    """Size of a frame, as in carracing.h."""

    _fields_ = (("width", ctypes.c_int32), ("height", ctypes.c_int32), ("bar", ctypes.c_int32))


class Seat:
    """Compiled drawing with guards around its memory."""

    GUARD = 64

    def __init__(self) -> None:
        self.library = load(LIBRARY)
        pointer, count = ctypes.c_void_p, ctypes.c_int
        self.library.seat_scratch_size.restype, self.library.seat_scratch_size.argtypes = ctypes.c_long, (count, count)
        self.library.seat_draw.restype = count
        self.library.seat_draw.argtypes = (pointer, pointer, count, ctypes.POINTER(SeatView), pointer, pointer)

    def draw(self, roads: np.ndarray, cars: np.ndarray, width: int = 96, height: int = 96, bar: int = 12) -> np.ndarray:
        """Return the frames (N, height, width, 3)."""
        memory = np.full(self.library.seat_scratch_size(width, height) + 64, 0xA5, np.uint8)
        scratch = -(-memory.ctypes.data // 64) * 64
        frames = np.full(len(cars) * height * width * 3 + 2 * self.GUARD, 0xA5, np.uint8)
        view = SeatView(width, height, bar)
        out = frames.ctypes.data + self.GUARD
        assert self.library.seat_draw(roads.ctypes.data, cars.ctypes.data, len(cars), view, scratch, out) == 0
        assert (frames[: self.GUARD] == 0xA5).all()
        assert (frames[-self.GUARD :] == 0xA5).all()
        return frames[self.GUARD : -self.GUARD].reshape(len(cars), height, width, 3)


@pytest.fixture(scope="module")
def seat() -> Seat:
    return Seat()


def make_road(library: Any, seed: int) -> np.ndarray:
    """Return a track (1,) of dtype ROAD."""
    world, rng = World(1, library), np.random.default_rng(seed)
    while not world.build(0, rng.random(24)):
        pass
    return world.roads


@pytest.fixture(scope="module")
def road(seat: Seat) -> np.ndarray:
    return make_road(seat.library, 3)


def place(x: float, y: float, angle: float, speed: float = 50.0) -> np.ndarray:
    """Return a car (1,) of dtype CAR at a pose."""
    cars = np.zeros(1, CAR)
    cars["position"], cars["speed"] = (x, y), speed
    hull = cars["body"][:, 0]
    hull["x"], hull["y"], hull["angle"], hull["sin"], hull["cos"] = x, y, angle, math.sin(angle), math.cos(angle)
    hull["vx"], hull["vy"] = -speed * math.sin(angle), speed * math.cos(angle)
    return cars


def beside(road: np.ndarray, tile: float, offset: float = 0.0, turn: float = 0.0) -> np.ndarray:
    """Return a car near the centre line.

    Args:
        road: (1,) array of `ROAD`.
        tile: Place along the line, in tiles.
        offset: Units to the right.
        turn: Radians to the left.
    """
    line = road["line"][0, : road["tiles"][0]]
    here, after = line[int(tile) % len(line)], line[(int(tile) + 1) % len(line)]
    part = tile - math.floor(tile)
    angle = here[1] + part * math.remainder(after[1] - here[1], 2 * math.pi)
    x, y = here[2:] + part * (after[2:] - here[2:])
    return place(x + offset * math.cos(angle), y + offset * math.sin(angle), angle + turn)


def crossing(road: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return both roads in one, the second mirrored and painted last."""
    both, first, second = road.copy(), int(road["polygons"][0]), int(other["polygons"][0])
    assert first + second <= MAX_POLYGONS
    both["polygons"] = first + second
    both["polygon"][0, first : first + second] = other["polygon"][0, :second, :, ::-1]
    for name in ("tile_of", "color"):
        both[name][0, first : first + second] = other[name][0, :second]
    return both


def assert_like_reference(seat: Seat, road: np.ndarray, car: np.ndarray, width: int, height: int, bar: int) -> None:
    frame = seat.draw(road, car, width, height, bar)[0, : height - bar]
    errors = np.abs(frame - seat_frame(road[0], car[0], width, height, bar))
    assert errors.mean() < 0.45
    assert errors.max() < 48  # four subrows against eight: an eighth of the way from white to dark


@pytest.mark.parametrize(
    ("tile", "offset", "turn"),
    [
        pytest.param(BEND, 0, 0, id="bend"),
        pytest.param(STRAIGHT, 18, 0.4, id="grass"),
        pytest.param(STRAIGHT, 2, math.pi, id="turned round"),
        pytest.param(KERB, -5.5, 0, id="kerb"),
        pytest.param(OTHER_STRAND, 0, -4.04, id="another strand"),
    ],
)
def test_frames_are_nearly_the_mean_of_64_samples_a_pixel(tile, offset, turn, seat, road):
    assert_like_reference(seat, road, beside(road, tile, offset, turn), 64, 48, 6)


def test_the_default_size_off_the_playfield_and_roads_that_cross(seat, road):
    assert_like_reference(seat, road, place(340, 10, 0.3), 96, 96, 12)
    both = crossing(road, make_road(seat.library, 4))
    line, other = road["line"][0, : road["tiles"][0], 2:], both["polygon"][0, int(road["polygons"][0]) :, 0]
    other = other[other.any(axis=1)]
    gaps = np.hypot(*(line[:, None] - other[None]).transpose(2, 0, 1)).min(axis=1)
    assert gaps.min() < 4
    assert_like_reference(seat, both, beside(road, int(gaps.argmin()) - 4), 64, 48, 6)


def test_a_batch_equals_single_frames(seat, road):
    cars = np.concatenate([beside(road, tile, math.sin(tile), 0.2) for tile in range(0, 200, 20)])
    roads = np.repeat(road, len(cars))
    roads[5:] = make_road(seat.library, 4)
    frames = seat.draw(roads, cars)
    for i, frame in enumerate(frames):
        np.testing.assert_array_equal(frame, seat.draw(roads[i : i + 1], cars[i : i + 1])[0])
    assert len(np.unique(frames.reshape(len(frames), -1), axis=0)) == len(frames)


def test_a_mirrored_road_gives_a_mirrored_frame(seat, road):
    mirrored = road.copy()
    mirrored["polygon"][..., 0] = PATCH - road["polygon"][..., 0]  # this mirrors the chequerboard too
    for tile in (STRAIGHT, BEND, KERB, OTHER_STRAND):
        car = beside(road, tile, 1.0, 0.1)
        (x, y), angle = car["position"][0], car["body"]["angle"][0, 0]
        frame, twin = seat.draw(road, car)[0, :84], seat.draw(mirrored, place(PATCH - x, y, -angle))[0, :84]
        assert np.abs(frame[:, ::-1].astype(int) - twin).max() <= 1


def test_the_bar_is_as_long_as_the_car_is_fast(seat, road):
    for speed, columns in ((0, 0), (27.5, 22), (55, 44), (110, 88), (400, 88), (math.nan, 0)):
        bar = seat.draw(road, place(0, 0, 0, speed))[0, 84:]
        np.testing.assert_array_equal(bar[5, :, 0], np.repeat([0, 255, 0], (4, columns, 92 - columns)))
        assert bar[:3].max() == bar[9:].max() == 0
    assert seat.draw(road, place(0, 0, 0, 0.625))[0, 90, 4].tolist() == [128] * 3  # half a pixel


@pytest.mark.parametrize("size", [(32, 32, 0), (33, 47, 5), (1024, 32, 16), (32, 1024, 12), (1024, 1024, 12)])
def test_any_size_shows_the_same_view(size, seat, road):
    width, height, bar = size
    car = beside(road, STRAIGHT)
    rows = height - bar
    frame = seat.draw(road, car, *size)[0, :rows].astype(int)
    assert (frame[0, :, 2] > frame[0, :, 0] + 50).all()  # sky
    assert seat.draw(road, car, *size).tobytes() == seat.draw(road, car, *size).tobytes()
    if width < 4 * rows:  # a wider view shows the far ground alone
        assert np.ptp(frame[-1, width // 2]) == 0  # road
        assert 80 < frame[-1, width // 2, 0] < 120
    meadow = frame[int(0.27 * rows) + 2, 0]
    assert meadow[1] > meadow[0] + 50


@pytest.mark.parametrize(
    "size", [(31, 96, 12), (96, 31, 0), (1025, 96, 12), (96, 1025, 12), (96, 96, -1), (96, 96, 49)]
)
def test_sizes_out_of_range_are_refused(size, seat, road):
    width, height, _ = size
    if (width, height) != (96, 96):
        assert seat.library.seat_scratch_size(width, height) == -1
    frames = np.zeros(0, np.uint8)  # nothing may be written
    arguments = road.ctypes.data, beside(road, 0).ctypes.data, 1, SeatView(*size), None, frames.ctypes.data
    assert seat.library.seat_draw(*arguments) == -1


def test_touched_tiles_keep_their_colour_and_roads_have_theirs(seat, road):
    car = beside(road, BEND)
    frame = seat.draw(road, car)
    car["painted"] = car["visited"] = 1
    np.testing.assert_array_equal(frame, seat.draw(road, car))
    other = road.copy()
    other["touched_color"], other["background"] = (60, 80, 140), (150, 60, 200)
    other["color"] = road["color"] + other["touched_color"].astype(np.uint8) - road["touched_color"]
    changed = seat.draw(other, car)[0]
    assert (np.ptp(changed[-20, 40:56].astype(int) - (60, 80, 140), axis=1) == 0).all()
    np.testing.assert_array_equal(changed[:20], frame[0, :20])
    np.testing.assert_array_equal(changed[24, -1], (150, 58, 193))


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e30])
def test_nonsense_in_a_state_draws_something(value, seat, road):
    for name in ("x", "sin", "cos", "vx"):
        car = beside(road, BEND)
        car["body"][name] = value
        car["position"] = value
        seat.draw(road, car)


def test_frames_change_smoothly(seat, road):
    """Drive fifty frames of a tenth of a unit.

    Nothing jumps, and far away nothing flickers.
    """
    cars = np.concatenate([beside(road, BEND - 12 + 0.1 * i / 3.5) for i in range(51)])
    frames = seat.draw(np.repeat(road, len(cars)), cars)[:, :84].astype(int)
    changes = np.abs(np.diff(frames, axis=0))
    far = changes[:, 22:30]
    assert far.max() < 24
    means = changes.mean(axis=(1, 2, 3))
    assert means.max() < 4 * np.median(means)
