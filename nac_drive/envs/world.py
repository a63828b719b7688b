"""A batch of CarRacing worlds in compiled memory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import local
from typing import Any

import numpy as np
from gymnasium.envs.box2d.car_dynamics import SIZE, WHEEL_R

from nac_drive.envs.native.library import CAR, LOWEST_SCORE, RANDOM_NUMBERS, ROAD, score_images
from nac_drive.envs.score import draw_score
from nac_drive.envs.views import ABOVE, LARGEST, Size, View, bar_rows

COLORS = np.array([(102, 102, 102), (102, 204, 102), (102, 230, 102)], np.float64)
"""gymnasium's colours of the road, the background and the grass patches, RGB 0-255."""
_ALIGNMENT = 64
_WHEEL_RADIUS = WHEEL_R * SIZE
_scratch = local()


def set_in_motion(car: np.void, angle: float, velocity: tuple[float, float], spin: float) -> None:
    """Set a resting car in motion on rolling wheels.

    Args:
        car: An element of `CAR`, changed in place.
        angle: Angle of the hull in radians.
        velocity: Of the hull's centre, units per second along x and y.
        spin: Turning rate in radians per second, left positive.
    """
    if not any((*velocity, spin)):
        return  # zeros keep their signs
    body = car["body"]
    body["vx"] = velocity[0] - spin * (body["y"] - body["y"][0])
    body["vy"] = velocity[1] + spin * (body["x"] - body["x"][0])
    body["spin"] = spin
    car["wheel"]["omega"] = (body["vy"][1:] * np.cos(angle) - body["vx"][1:] * np.sin(angle)) / _WHEEL_RADIUS


class World:
    """Memory and stepping of `count` environments.

    `roads` (count,) and `cars` (count,) are structured arrays of `ROAD` and `CAR`: every number of the simulator can be
    read there. `actions` (count, 3) float64 holds steer (right positive), gas and brake of the next step. `rewards`
    and `terminated` (count,) hold the results of the last one.

    Args:
        count: Number of environments.
        library: The compiled library.
    """

    def __init__(self, count: int, library: Any):
        self.count, self._library = count, library
        self.roads, self.cars = np.zeros(count, ROAD), np.zeros(count, CAR)
        self.actions = np.zeros((count, 3))
        self.rewards, self.terminated = np.zeros(count), np.zeros(count, np.bool_)
        self.crash_ends = self.intervenes = False
        arrays = (self.roads, self.cars, self.actions, self.rewards, self.terminated)
        self._places = [(array.ctypes.data, array.strides[0]) for array in arrays]  # asked for once: it is slow

    def build(
        self, row: int, random: np.ndarray, colors: np.ndarray = COLORS, lap_complete_percent: float = 0.95
    ) -> bool:
        """Build the track of one environment, as gymnasium's `_create_track` does.

        Args:
            row: The environment.
            random: (24,) numbers in [0, 1).
            colors: (3, 3) colours of road, background and grass patches, RGB 0-255.
            lap_complete_percent: As in gymnasium.

        Returns:
            False if these numbers make no closed track; gymnasium then draws new ones.

        Raises:
            ValueError: If there are not 24 numbers.
            RuntimeError: If the track does not fit the memory.
        """
        random = np.ascontiguousarray(random, np.float64)
        if random.shape != (RANDOM_NUMBERS,):
            raise ValueError(f"random must be {RANDOM_NUMBERS} numbers, got the shape {random.shape}.")
        colors = np.ascontiguousarray(colors, np.float64).reshape(3, 3)
        road, *_ = self._at(row)
        result = self._library.road_build(road, random.ctypes.data, colors.ctypes.data, lap_complete_percent)
        if result < 0:
            raise RuntimeError("the track has more tiles than the compiled simulator holds; report the seed.")
        return result == 1

    def begin(self, row: int) -> None:
        """Put a new car at the start and pass a frame."""
        self._library.car_begin(*self._at(row)[:2])

    def place(
        self, row: int, angle: float, x: float, y: float, velocity: tuple[float, float] = (0.0, 0.0), spin: float = 0.0
    ) -> None:
        """Put a new car at a place, see `CarRacing.place`. Score, tiles and counts stay."""
        self._library.car_place(*self._at(row)[:2], angle, x, y)
        set_in_motion(self.cars[row], angle, velocity, spin)

    def step(self, first: int = 0, last: int | None = None) -> None:
        """Advance environments `first` to `last - 1` by one frame.

        By default, all of them.
        """
        count = (self.count if last is None else last) - first
        roads, cars, actions, rewards, terminated = self._at(first)
        self._library.cars_step(
            roads, cars, count, actions, self.crash_ends, self.intervenes, rewards, terminated
        )  # fmt: skip

    @contextmanager
    def repainted(self, row: int, road: int, background: int) -> Iterator[None]:
        """Give road and background other colours for a while.

        Args:
            row: The environment.
            road: What is added to red, green and blue of the tiles, which must stay in 0-255.
            background: What is added to the background.
        """
        paint: Any = self.roads[row]
        before = {name: paint[name].copy() for name in ("color", "touched_color", "background")}
        try:
            paint["color"][paint["tile_of"] >= 0] += np.array(road).astype(np.uint8)  # modulo 256
            paint["touched_color"] += np.array(road).astype(np.uint8)
            paint["background"] += np.array(background).astype(np.uint8)
            yield
        finally:
            for name, colors in before.items():
                paint[name] = colors

    def draw(
        self,
        out: np.ndarray | None = None,
        first: int = 0,
        last: int | None = None,
        view: View = "above",
        size: Size = ABOVE,
    ) -> np.ndarray:
        """Draw the frames of the environments `first` to `last - 1`.

        Args:
            out: (last - first, height, width, 3) uint8, filled in place; a new array by default.
            first: The first environment.
            last: The one after the last environment.
            view: See `nac_drive.envs.views`.
            size: Width and height of a frame in pixels.

        Returns:
            `out`.
        """
        count = (self.count if last is None else last) - first
        if out is None:
            out = np.empty((count, size[1], size[0], 3), np.uint8)
        if view == "seat":
            self._draw_seats(out, first, count, size)
        else:
            self._draw_above(out, first, count)
        return out

    def _draw_seats(self, out: np.ndarray, first: int, count: int, size: Size) -> None:
        roads, cars, *_ = self._at(first)
        shape = (ctypes.c_int32 * 3)(*size, bar_rows(size))
        self._library.seat_draw(roads, cars, count, shape, _scratch_memory(self._library), out.ctypes.data)

    def _draw_above(self, out: np.ndarray, first: int, count: int) -> None:
        images, images_at = _scores()
        scoreless = np.zeros(count, np.bool_)
        roads, cars, *_ = self._at(first)
        if self._library.frames_draw(
            roads, cars, count, _scratch_memory(self._library), images_at, len(images), LOWEST_SCORE,
            out.ctypes.data, scoreless.ctypes.data,
        ):  # fmt: skip
            for row in np.flatnonzero(scoreless).tolist():
                draw_score(out[row], self.cars["shown_reward"][first + row])

    def _at(self, row: int) -> list[int]:
        """Return addresses of an environment's road, car, action, reward, end."""
        return [address + row * stride for address, stride in self._places]


def threads(count: int) -> int:
    """Return the number of threads for `count` drawn environments.

    It is at most the number of cores.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min(cores, count // _LEAST_PER_THREAD), 1)


_LEAST_PER_THREAD = 4
"""Environments that a thread must have to pay for its start."""


@cache
def pool(workers: int) -> ThreadPoolExecutor:
    """Return the threads that step environments."""
    return ThreadPoolExecutor(workers, thread_name_prefix="car-racing")


@cache
def _scores() -> tuple[np.ndarray, int]:
    images = score_images()
    return images, images.ctypes.data


def _scratch_memory(library: Any) -> int:
    """Return the address of this thread's scratch memory for drawing."""
    if not hasattr(_scratch, "address"):
        size = max(library.picture_scratch_size(), library.seat_scratch_size(LARGEST, LARGEST))
        _scratch.memory = np.zeros(size + _ALIGNMENT, np.uint8)
        _scratch.address = -(-_scratch.memory.ctypes.data // _ALIGNMENT) * _ALIGNMENT
    return _scratch.address
