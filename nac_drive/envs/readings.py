"""The numbers of the simulator, under gymnasium's names and ours."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium.envs.box2d import car_racing

from nac_drive.envs.car_view import CarView
from nac_drive.envs.native.library import CRASHES
from nac_drive.envs.telemetry import Pose, Track
from nac_drive.envs.world import COLORS

ZOOM_FRAMES = 50
"""The first second is a zoom-in animation; `info["zooming"]` flags its frames."""
TILES_UNDER_CAR = 3
"""Tiles before the nearest one that a rear wheel may still touch."""


class LapReading(NamedTuple):
    """Progress of a lap."""

    furthest: int
    """The furthest tile so far of those that were nearest; the count goes on over the start."""
    finished: bool
    """The lap is finished."""


class Readings:
    """Read access to one environment in a simulator's memory.

    Args:
        world: A `World` or `GymnasiumWorld`.
        row: The environment in it.
    """

    def __init__(self, world: Any, row: int):
        self._world, self._row = world, row
        self._roads, self._cars = world.roads[row : row + 1], world.cars[row : row + 1]
        self._colors = COLORS
        self.car = CarView(self._cars)

    def _begin_track(self) -> None:
        """Forget what was read of the last track."""
        self._centre_line, self._road_vertices = None, None
        self._tiles = int(self._roads["tiles"][0])

    def _info(self, dt: float) -> dict[str, Any]:
        car, tiles = self._cars[0], self._tiles
        events, visited = car["events"], car["visited_count"].item()
        return {
            "speed": car["speed"].item(),
            "lateral_offset": car["lateral_offset"].item(),
            "heading_error": car["heading_error"].item(),
            "wheels_off_road": car["wheels_off_road"].item(),
            "tiles_visited": visited,
            "tiles_total": tiles,
            "completion": visited / tiles,
            "lap_finished": bool(car["lap"]["finished"]),
            "dt": dt,
            "zooming": car["frame"].item() < ZOOM_FRAMES,
            "off_road": bool(events["off_road"]),
            "off_road_events": events["off_road_events"].item(),
            "crash": CRASHES[car["crash"]],
            "crashes": events["crashes"].item(),
            "interventions": car["interventions"].item(),
        }

    @property
    def centre_line(self) -> Track:
        """The centre line of the track."""
        if self._centre_line is None:
            line = self._roads["line"][0, : self._tiles]
            self._centre_line = Track(line[:, 2:4].copy(), line[:, 1].copy())
        return self._centre_line

    @property
    def pose(self) -> Pose:
        """Place relative to the centre line in the last frame."""
        car = self._cars[0]
        return Pose(car["index"].item(), car["lateral_offset"].item(), car["heading_error"].item())

    @property
    def track(self) -> list[tuple[float, ...]]:
        """Alpha, beta, x and y of every tile, gymnasium's name."""
        return list(map(tuple, self._roads["line"][0, : self._tiles].tolist()))

    @property
    def road_vertices(self) -> np.ndarray:
        """Corners (P, 4, 2) of tiles and kerbs in drawing order."""
        if self._road_vertices is None:
            self._road_vertices = self._roads["polygon"][0, : self._roads["polygons"][0]].copy()
        return self._road_vertices

    @property
    def kerbs(self) -> np.ndarray:
        """Which of `road_vertices` are kerbs, (P,) bool."""
        return self._roads["tile_of"][0, : self._roads["polygons"][0]] < 0

    @property
    def road_poly(self) -> list[tuple[np.ndarray, Any]]:
        """Corners and colours of tiles and kerbs, as gymnasium's."""
        road, tiles = self._roads[0], self._cars["painted"][0]
        count, tile_of = road["polygons"], road["tile_of"][: road["polygons"]]
        touched = (tile_of >= 0) & (tiles[tile_of] > 0)
        colors = np.where(touched[:, None], road["touched_color"], road["color"][:count])
        return list(zip(self.road_vertices, colors, strict=True))

    @property
    def visited(self) -> np.ndarray:
        """(N,) bool: a wheel has touched the tile."""
        return self._cars["visited"][0, : self._tiles].astype(bool)

    @property
    def lap(self) -> LapReading:
        """Progress of the lap, see `LapDetector`."""
        lap = self._cars["lap"][0]
        return LapReading(lap["furthest"].item(), bool(lap["finished"]))

    def tiles_missed(self) -> int:
        """Return the number of passed tiles that no wheel has touched."""
        passed = min(max(self.lap.furthest - TILES_UNDER_CAR, 0), self._tiles)
        return passed - int(np.count_nonzero(self._cars["visited"][0, :passed]))

    @property
    def grip(self) -> float:
        """Friction of the road tiles, 1 as in gymnasium. A reset sets it back."""
        return self._roads["grip"][0].item()

    @grip.setter
    def grip(self, value: float) -> None:
        self._roads["grip"] = value

    @property
    def frame(self) -> int:
        """Steps since the reset."""
        return self._cars["frame"][0].item()

    @property
    def interventions(self) -> int:
        """Interventions since the reset."""
        return self._cars["interventions"][0].item()

    @property
    def t(self) -> float:
        """Seconds of the simulator since the reset, gymnasium's name."""
        return self._cars["time"][0].item()

    @property
    def reward(self) -> float:
        """The score, gymnasium's name."""
        return self._cars["reward"][0].item()

    @property
    def tile_visited_count(self) -> int:
        """Tiles that a wheel has touched, gymnasium's name."""
        return self._cars["visited_count"][0].item()

    @property
    def road_color(self) -> np.ndarray:
        """Colour of a touched tile, (3,) RGB 0-255."""
        return self._colors[0]

    @property
    def bg_color(self) -> np.ndarray:
        """Colour of the playfield, (3,) RGB 0-255."""
        return self._colors[1]

    @property
    def grass_color(self) -> np.ndarray:
        """Colour of the grass patches, (3,) RGB 0-255."""
        return self._colors[2]

    @property
    def zoom(self) -> float:
        """Pixels of the window per unit, as it zooms in."""
        start, full = 0.1 * car_racing.SCALE, car_racing.ZOOM * car_racing.SCALE
        return start * max(1 - self.t, 0) + full * min(self.t, 1)
