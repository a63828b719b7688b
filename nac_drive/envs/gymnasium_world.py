"""gymnasium's simulator behind the interface of the compiled one.

It is the oracle in tests, and the stand-in where nothing could be compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium.envs.box2d import car_racing
from gymnasium.envs.box2d.car_dynamics import Car

from nac_drive.envs.native.library import CAR, CRASHES, ROAD
from nac_drive.envs.telemetry import EventDetector, LapDetector, Track
from nac_drive.envs.world import COLORS, set_in_motion


class GymnasiumWorld:
    """One environment of gymnasium, with the interface of `World`.

    It is about thirty times slower. It saves no states: Box2D keeps its own.
    """

    count = 1

    def __init__(self) -> None:
        self.env = _Undrawn(continuous=True)
        self.roads, self.cars = np.zeros(1, ROAD), np.zeros(1, CAR)
        self.actions = np.zeros((1, 3))
        self.rewards, self.terminated = np.zeros(1), np.zeros(1, np.bool_)
        self.crash_ends = self.intervenes = False

    def build(
        self, row: int, random: np.ndarray, colors: np.ndarray = COLORS, lap_complete_percent: float = 0.95
    ) -> bool:
        """Build the track, see `World.build`."""
        env = self.env
        env._destroy()
        listener = car_racing.FrictionDetector(env, lap_complete_percent)
        world: Any = env.world
        world.contactListener_bug_workaround = world.contactListener = listener
        env.road_color, env.bg_color, env.grass_color = np.asarray(colors, np.float64)
        env.np_random, env.road_poly = _Replayed(random), []  # type: ignore[assignment]
        if not env._create_track():
            return False
        env.car = None
        self._line = Track(np.asarray(env.track)[:, 2:4], np.asarray(env.track)[:, 1])
        read_road(env, self.roads[0])
        self.roads["lap_complete_percent"] = lap_complete_percent
        return True

    def begin(self, row: int) -> None:
        """Put a new car at the start, see `World.begin`."""
        env = self.env
        env.reward = env.prev_reward = env.t = 0.0
        env.tile_visited_count, env.new_lap = 0, False
        env.car = Car(env.world, *env.track[0][1:4])
        env.step(None)  # type: ignore[arg-type]
        self._events, self._lap = EventDetector(), LapDetector(len(env.track))
        self.cars[:] = np.zeros(1, CAR)
        self._read(None)

    def place(
        self, row: int, angle: float, x: float, y: float, velocity: tuple[float, float] = (0.0, 0.0), spin: float = 0.0
    ) -> None:
        """Put a new car at a place, see `World.place`."""
        self.env.car.destroy()  # type: ignore[union-attr]
        self.env.car = Car(self.env.world, angle, x, y)
        self._events.rearm()
        read_car(self.env, self.cars[0])
        set_in_motion(self.cars[0], angle, velocity, spin)
        wheels: list[Any] = self.env.car.wheels  # type: ignore[union-attr]
        for body, ours in zip((self.env.car.hull, *wheels), self.cars[0]["body"], strict=True):  # type: ignore[union-attr]
            body.linearVelocity, body.angularVelocity = (ours["vx"].item(), ours["vy"].item()), ours["spin"].item()
        for wheel, ours in zip(wheels, self.cars[0]["wheel"], strict=True):
            wheel.omega = ours["omega"].item()

    def step(self, first: int = 0, last: int | None = None) -> None:
        """Advance by one frame, see `World.step`."""
        for tile in self.env.road or ():
            tile.road_friction = self.roads["grip"][0]
        on_road = [bool(wheel.tiles) for wheel in self.env.car.wheels]
        _, reward, terminated, *_ = self.env.step(self.actions[0])
        position = self.env.car.hull.position  # type: ignore[union-attr]
        outside = max(abs(position.x), abs(position.y)) > car_racing.PLAYFIELD
        car = self.cars[0]
        car["frame"] += 1
        crash = self._read(outside)
        car["wheel"]["on_road"] = on_road
        ends = terminated or bool(crash and self.crash_ends)
        if crash and self.intervenes and not ends:
            self.place(0, self._line.angles[car["index"]].item(), *self._line.points[car["index"]].tolist())
            car["interventions"] += 1
        self.rewards[0], self.terminated[0] = reward, ends

    @contextmanager
    def repainted(self, row: int, road: int, background: int) -> Iterator[None]:
        """Repaint for a while, see `World.repainted`."""
        env = self.env
        before, of_background = env.road_poly, env.bg_color
        env.road_poly = [
            (polygon, color if isinstance(color, tuple) else color + road) for polygon, color in before
        ]  # fmt: skip
        env.bg_color = of_background + background
        try:
            yield
        finally:
            env.road_poly, env.bg_color = before, of_background

    def draw(
        self,
        out: np.ndarray | None = None,
        first: int = 0,
        last: int | None = None,
        view: str = "above",
        size: tuple[int, int] = (96, 96),
    ) -> np.ndarray:
        """Draw the frame, see `World.draw`.

        Raises:
            NotImplementedError: For another view than that from above.
        """
        if view != "above":
            raise NotImplementedError(
                f"gymnasium's own simulator, which drives on this platform, has no view {view!r}."
            )
        frame = self.env.drawn()[None]
        if out is None:
            return frame
        out[:] = frame
        return out

    def _read(self, outside: bool | None) -> str | None:
        """Copy gymnasium's numbers and take a frame's telemetry.

        `outside` is None at a reset.
        """
        env, car = self.env, self.cars[0]
        read_car(env, car)
        hull = env.car.hull  # type: ignore[union-attr]
        pose = self._line.locate(hull.position, hull.angle)
        wheels_off_road = sum(not wheel.tiles for wheel in env.car.wheels)  # type: ignore[union-attr]
        crash = None
        if outside is not None:
            crash = self._events.update(wheels_off_road, pose.heading, outside)
            self._lap.update(pose.index, env.tile_visited_count)
        car["index"], car["lateral_offset"], car["heading_error"] = pose.index, pose.lateral, pose.heading
        car["speed"] = np.hypot(*hull.linearVelocity)
        car["wheels_off_road"], car["outside"], car["crash"] = wheels_off_road, bool(outside), CRASHES.index(crash)
        car["lap"]["furthest"], car["lap"]["finished"] = self._lap.furthest, self._lap.finished
        for name in ("off_road", "off_road_events", "crashes"):
            car["events"][name] = getattr(self._events, name)
        return crash


class _Undrawn(car_racing.CarRacing):
    """gymnasium's environment that draws only when asked."""

    np_random: Any
    car: Any
    shown_reward = 0.0

    def _render(self, mode: str) -> Any:
        self.shown_reward = self.reward  # gymnasium draws before it subtracts the cost of the step
        return None

    def drawn(self) -> np.ndarray:
        """Return the frame (96, 96, 3) of the last step."""
        reward, self.reward = self.reward, self.shown_reward
        frame = super()._render("state_pixels")
        self.reward = reward
        return frame  # type: ignore[return-value]


class _Replayed:
    """A generator that gives stored random numbers."""

    def __init__(self, numbers: np.ndarray):
        self._numbers = iter(np.asarray(numbers).tolist())

    def uniform(self, low: float, high: float) -> float:
        """Return the next number, scaled as numpy does."""
        return low + (high - low) * next(self._numbers)


def read_road(env: Any, road: np.void) -> None:
    """Copy the untouched track of a gymnasium environment."""
    polygons = np.array([polygon for polygon, _ in env.road_poly]).reshape(-1, 4, 2)
    kerbs = np.array([isinstance(color, tuple) for _, color in env.road_poly])
    colors = np.array([[int(channel) for channel in color] for _, color in env.road_poly], np.uint8)
    tiles, count = len(env.track), len(polygons)
    road["tiles"], road["polygons"], road["grip"] = tiles, count, 1.0
    road["line"][:tiles], road["polygon"][:count], road["color"][:count] = env.track, polygons, colors
    road["tile_of"][:count] = np.where(kerbs, -1, np.cumsum(~kerbs) - 1)
    road["touched_color"], road["background"], road["grass"] = (
        np.trunc(color).astype(np.uint8) for color in (env.road_color, env.bg_color, env.grass_color)
    )


def read_car(env: Any, car: np.void) -> None:
    """Copy bodies, wheels, tiles and score of a gymnasium environment."""
    bodies, wheels = (env.car.hull, *env.car.wheels), env.car.wheels
    for row, body in enumerate(bodies):
        centre, velocity, turn = body.worldCenter, body.linearVelocity, body.transform.q
        car["body"][row] = (
            centre.x, centre.y, body.angle, velocity.x, velocity.y, body.angularVelocity, turn.s, turn.c
        )  # fmt: skip
    for row, wheel in enumerate(wheels):
        ours = car["wheel"][row]
        for name in ("steer", "gas", "brake", "omega", "phase"):
            ours[name] = getattr(wheel, name)
        tiles = sorted(tile.idx for tile in wheel.tiles)
        ours["touched"], ours["on_road"] = len(tiles), bool(tiles)
        ours["tiles"][: len(tiles)] = tiles
        ours["skids"] = wheel.skid_start is not None or wheel.skid_particle is not None
    car["position"] = tuple(env.car.hull.position)
    count = len(env.road)
    car["visited"][:count] = [tile.road_visited for tile in env.road]
    car["painted"][:count] = [np.array_equal(tile.color, env.road_color) for tile in env.road]
    car["reward"], car["previous_reward"], car["time"] = env.reward, env.prev_reward, env.t
    car["shown_reward"], car["visited_count"] = getattr(env, "shown_reward", env.reward), env.tile_visited_count
    car["new_lap"] = env.new_lap
