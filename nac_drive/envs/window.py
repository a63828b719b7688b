"""gymnasium's window and video image of the compiled simulator."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from Box2D import b2PolygonShape
from gymnasium.envs.box2d import car_dynamics, car_racing

from nac_drive.envs.car_view import CarView

_ANTIALIAS_MARGIN = 2.0
"""Pixels by which an antialiased polygon may reach over its corners."""
_SKID_POINTS, _SKID_TRACES = 30, 30
"""Points of a trace, and traces that gymnasium keeps."""


class Window(car_racing.CarRacing):
    """gymnasium's drawing of another environment: window and video image.

    It steps nothing. `show` and `image` copy the state of the environment and call gymnasium's `_render`, which leaves
    out the polygons off the screen before it transforms them.
    """

    def __init__(self) -> None:
        self.screen = self.clock = None
        self.isopen = True
        self.car: Any = DrawnCar()
        self.reset()

    def reset(self, **_: Any) -> Any:
        """Forget the traces of an episode."""
        self.car.traces = Traces()

    def draw(self, env: Any, mode: str) -> np.ndarray | None:
        """Draw the present state.

        Args:
            env: A `CarRacing` in an episode.
            mode: `human` shows it in the window, `rgb_array` returns (400, 600, 3) uint8, `state_pixels` (96, 96, 3).
        """
        self.t, self.reward = env.t, env.reward
        self.road_color, self.bg_color, self.grass_color = env.road_color, env.bg_color, env.grass_color
        self.road_poly, self._vertices = env.road_poly, env.road_vertices
        self.car.show(env.car)
        return self._render(mode)  # type: ignore[return-value]

    def close(self) -> None:
        super().close()
        self.screen = self.clock = None

    def _render_road(self, zoom, translation, angle):
        bounds = car_racing.PLAYFIELD
        field = [(bounds, bounds), (bounds, -bounds), (-bounds, -bounds), (-bounds, bounds)]
        self._draw_colored_polygon(self.surf, field, self.bg_color, zoom, translation, angle, clip=False)
        for i in _visible(_GRASS, zoom, translation, angle):
            self._draw_colored_polygon(self.surf, _GRASS[i], self.grass_color, zoom, translation, angle)
        for i in _visible(self._vertices, zoom, translation, angle):
            polygon, color = self.road_poly[i]
            self._draw_colored_polygon(self.surf, polygon, [int(c) for c in color], zoom, translation, angle)


class DrawnCar:
    """The car as gymnasium's `Car.draw` reads it."""

    def __init__(self) -> None:
        self.wheels = [DrawnBody(row, [_TYRE], car_dynamics.WHEEL_COLOR) for row in range(4)]
        self.hull = DrawnBody(-1, _HULL, (0.8, 0.0, 0.0))
        self.drawlist = [*self.wheels, self.hull]
        self.traces = Traces()

    @property
    def particles(self) -> Any:
        """The skid traces."""
        return self.traces.particles

    def show(self, car: CarView) -> None:
        """Take the numbers of the simulator's car."""
        for body in self.drawlist:
            body.show(car)

    draw = car_dynamics.Car.draw


class DrawnBody:
    """A body with its polygons.

    Args:
        row: The wheel, 0 to 3, or -1 for the hull.
        polygons: (K, 2) corners of each polygon.
        color: Its colour, as gymnasium writes it.
    """

    def __init__(self, row: int, polygons: list[np.ndarray], color: Any):
        self._row, self.color = row, color
        self.fixtures = [DrawnPolygon(self, polygon) for polygon in polygons]

    def show(self, car: CarView) -> None:
        """Take the numbers of the simulator's car."""
        view: Any = car.hull if self._row < 0 else car.wheels[self._row]
        self.position, self.angle = view.position, view.angle
        self.linearVelocity, self.angularVelocity = view.linearVelocity, view.angularVelocity
        self.transform = Transform(view)
        if self._row >= 0:
            self.omega, self.phase, self.joint = view.omega, view.phase, view.joint


class DrawnPolygon:
    """A polygon of a body, as Box2D's fixture."""

    def __init__(self, body: DrawnBody, vertices: np.ndarray):
        self.body, self.vertices = body, vertices
        self.shape = self


class Transform:
    """Rotation and translation of a body, float32 as in Box2D."""

    def __init__(self, view: Any):
        self._x, self._y = map(np.float32, view.position)
        self._sin, self._cos = view.sin_cos

    def __mul__(self, point: Any) -> tuple[float, float]:
        x, y = np.float32(point[0]), np.float32(point[1])
        return float((self._cos * x - self._sin * y) + self._x), float((self._sin * x + self._cos * y) + self._y)


class Traces:
    """The skid traces of an episode, in images alone."""

    def __init__(self) -> None:
        self.particles: deque[Any] = deque(maxlen=_SKID_TRACES)
        self._started = [False] * 4
        self._traces: list[Any] = [None] * 4

    def update(self, positions: list[Any], skids: list[int], on_road: list[int]) -> None:
        """Take one frame, by the rule of gymnasium's `Car.step`.

        Args:
            positions: Places (x, y) of the four wheels before the frame.
            skids: Whether each wheel's force was above twice its grip.
            on_road: Whether each wheel touched a tile.
        """
        for wheel, (position, skid, road) in enumerate(zip(positions, skids, on_road, strict=True)):
            trace, grass = self._traces[wheel], not road
            if not skid:
                self._started[wheel], self._traces[wheel] = False, None
            elif trace and trace.grass == grass and len(trace.poly) < _SKID_POINTS:
                trace.poly.append(tuple(position))
            elif not self._started[wheel]:
                self._started[wheel] = True
            else:
                color = car_dynamics.MUD_COLOR if grass else car_dynamics.WHEEL_COLOR
                poly: Any = [tuple(position)] * 2  # gymnasium's start is a reference to the place of the wheel
                self._traces[wheel] = car_dynamics.Particle(color=color, poly=poly, grass=grass)
                self.particles.append(self._traces[wheel])
                self._started[wheel] = False


def _vertices(polygon: list[tuple[int, int]]) -> np.ndarray:
    """Return a polygon's corners (K, 2) as Box2D orders them."""
    scaled = [(x * car_dynamics.SIZE, y * car_dynamics.SIZE) for x, y in polygon]
    return np.array(b2PolygonShape(vertices=scaled).vertices, np.float32)


_W, _R = car_dynamics.WHEEL_W, car_dynamics.WHEEL_R
_TYRE = _vertices([(-_W, _R), (_W, _R), (_W, -_R), (-_W, -_R)])
_HULL = [*map(_vertices, (
    car_dynamics.HULL_POLY1, car_dynamics.HULL_POLY2, car_dynamics.HULL_POLY3, car_dynamics.HULL_POLY4,
))]  # fmt: skip


def _grass() -> np.ndarray:
    """Return the corners (400, 4, 2) of gymnasium's grass patches."""
    corners = np.array([(1, 0), (0, 0), (0, 1), (1, 1)], dtype=np.float64)
    cells = np.array([(x, y) for x in range(-20, 20, 2) for y in range(-20, 20, 2)], dtype=np.float64)
    return car_racing.GRASS_DIM * (cells[:, None, :] + corners)


_GRASS = _grass()


def _visible(polygons: np.ndarray, zoom: float, translation, angle: float) -> np.ndarray:
    """Return the polygons whose bounding box touches the window.

    Indices are in drawing order.
    """
    cos, sin = np.cos(angle) * zoom, np.sin(angle) * zoom
    x = polygons[..., 0] * cos - polygons[..., 1] * sin + translation[0]  # (P, 4)
    y = polygons[..., 0] * sin + polygons[..., 1] * cos + translation[1]  # (P, 4)
    return np.flatnonzero(
        (x.max(axis=1) >= -_ANTIALIAS_MARGIN)
        & (x.min(axis=1) <= car_racing.WINDOW_W + _ANTIALIAS_MARGIN)
        & (y.max(axis=1) >= -_ANTIALIAS_MARGIN)
        & (y.min(axis=1) <= car_racing.WINDOW_H + _ANTIALIAS_MARGIN)
    )
