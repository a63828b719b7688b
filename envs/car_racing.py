"""gymnasium's CarRacing-v3 with telemetry in `info`: same physics, same rewards, same frames."""

from __future__ import annotations

from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
from Box2D import b2World
from gymnasium.envs.box2d import car_racing as gymnasium_car_racing
from gymnasium.envs.box2d.car_dynamics import Car
from gymnasium.error import ResetNeeded
from gymnasium.utils import EzPickle

from nac_drive.envs.car import advance, command
from nac_drive.envs.car_state import CAR_STATE_SIZE, car_state
from nac_drive.envs.pulses import COMMANDS, Pulses
from nac_drive.envs.regions import regions
from nac_drive.envs.spec import ENVIRONMENTS, EnvSpec
from nac_drive.envs.telemetry import FRAMES_PER_SECOND, EventDetector, LapDetector, Pose, Track
from nac_drive.plain import plain

Control = Literal["discrete", "continuous", "pulsed"]
CrashMode = Literal["ignore", "terminate", "intervene"]

FRAME_SHAPE = (96, 96, 3)
ZOOM_FRAMES = 50
"""The first second is a zoom-in animation; `info["zooming"]` flags its frames."""

_FRAME = 1 / FRAMES_PER_SECOND
_VELOCITY_ITERATIONS, _POSITION_ITERATIONS = 6 * 30, 2 * 30
"""gymnasium's numbers for the solver of the physics."""
_TILES_UNDER_CAR = 3
"""Tiles before the nearest one that a rear wheel may still touch."""
_ANTIALIAS_MARGIN = 2.0
"""Pixels by which an antialiased polygon may reach over its corners."""


class CarRacing(gymnasium_car_racing.CarRacing):
    """gymnasium's CarRacing-v3 with telemetry, a crash mode and an `observe` switch.

    Track, physics, rewards, terminations and frames are gymnasium's own, bit for bit.

    `info` holds after reset and after every step: speed (units/s), lateral_offset (over the half-width, right
    positive), heading_error (rad, left positive), wheels_off_road (0-4), tiles_visited, tiles_total, completion (their
    ratio), lap_finished (see `LapDetector`), dt (seconds since the previous observation, 0 after reset), zooming,
    off_road (an event is open), off_road_events, crash (its kind in the frame where it happens, else None), crashes,
    interventions.

    `observe = False` steps at the speed of the physics and returns the last drawn frame. It is meant for drivers that
    do not look at frames. `look` draws the frame that was not drawn.

    Args:
        render_mode: As in gymnasium.
        control: `discrete` takes an integer 0-4. `continuous` takes steer in [-1, 1], gas and brake in [0, 1]. `pulsed`
            takes the same three numbers and carries them out by discrete actions (see `Pulses`).
        crash: Effect of a crash (see `EventDetector`). `ignore`: none. `terminate`: the episode ends. `intervene`: the
            car is set at rest on the centre line (the protocol of Hasani's thesis, ch. 6). The reward never changes.
            Leaving the playfield always ends the episode, by gymnasium's own rule.
        domain_randomize: As in gymnasium: every reset draws other colours of road and grass.

    A copy (`copy.deepcopy`, pickle) is a new environment of the same settings, as gymnasium's own. It begins with a
    reset. So does a closed environment that is used again.

    Raises:
        ValueError: For an unknown render mode, control or crash mode.
    """

    car: Any  # gymnasium's Car; there is one from the first reset on
    world: Any  # Box2D's; None once closed
    state: Any  # the last frame, (96, 96, 3) uint8

    def __init__(
        self,
        render_mode: str | None = None,
        control: Control = "discrete",
        crash: CrashMode = "ignore",
        domain_randomize: bool = False,
    ):
        modes = gymnasium_car_racing.CarRacing.metadata["render_modes"]
        if render_mode is not None and render_mode not in modes:
            raise ValueError(f"render_mode must be None or one of {modes}, got {render_mode!r}.")
        if crash not in get_args(CrashMode):
            raise ValueError(f"crash must be one of {get_args(CrashMode)}, got {crash!r}.")
        if control not in get_args(Control):
            raise ValueError(f"control must be one of {get_args(Control)}, got {control!r}.")
        super().__init__(render_mode=render_mode, domain_randomize=domain_randomize, continuous=control != "discrete")
        EzPickle.__init__(self, render_mode, control, crash, domain_randomize)
        self.control = control
        self.crash = crash
        self.observe = True
        self.state = np.zeros(FRAME_SHAPE, dtype=np.uint8)
        self.interventions = 0
        self.frame = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begin an episode on a new track.

        Args:
            seed: Seed of the track. None draws it from the generator that earlier seeds began.
            options: As in gymnasium.

        Returns:
            The first frame, (96, 96, 3) uint8, and `info`.
        """
        if self.world is None:  # closed
            self.contactListener_keepref = gymnasium_car_racing.FrictionDetector(self, self.lap_complete_percent)
            self.world = b2World((0, 0), contactListener=self.contactListener_keepref)
        observation, _ = super().reset(seed=plain(seed), options=options)
        self.events = EventDetector()
        self.interventions = 0
        self.frame = 0
        track = np.asarray(self.track)  # (N, 4): alpha, beta, x, y
        self.centre_line = Track(track[:, 2:4], track[:, 1])
        self.lap = LapDetector(len(track))
        self._passed, self._missed = 0, []  # tiles, up to the last call of `tiles_missed`
        self.pulses = Pulses()
        return observation, self._telemetry(self._pose(), self._wheels_off_road(), dt=0.0, crash=None)

    def close(self) -> None:
        """Close the window and release the physics, which gymnasium's class keeps for ever.

        Box2D's world and its contact listener hold one another where Python's garbage collection does not look: without
        this, an environment for each episode costs a megabyte for each.
        """
        super().close()
        self.screen = self.clock = None
        if self.world is None:  # closed before
            return
        if not self.world.locked:  # an interrupted step leaves it locked; its bodies then go with the world
            self._destroy()
        listener: Any = self.contactListener_keepref
        listener.env = self.world.contactListener = self.world.contactListener_bug_workaround = None
        self.world = self.contactListener_keepref = self.car = self.road = None

    def step(self, action):
        """Advance by one frame, 1/50 s.

        Args:
            action: An element of `action_space`.

        Returns:
            Frame (96, 96, 3) uint8, reward, terminated, truncated and `info`.

        Raises:
            ResetNeeded: Before the first `reset`, and after `close`.
            ValueError: If `action` lies outside `action_space`. The car does not move then.
        """
        self._require_episode()
        if action is None:  # gymnasium's reset drives its first frame this way, which earns nothing
            self._drive()
            return self.state, 0.0, False, False, {}
        steer, gas, brake = self._command(action)
        command(self.car, -steer, gas, brake)
        self._drive()
        self.frame += 1
        self.reward -= 0.1
        reward, self.prev_reward = self.reward - self.prev_reward, self.reward
        self.car.fuel_spent = 0.0
        terminated = self.tile_visited_count == len(self.track) or self.new_lap
        position = self.car.hull.position
        outside = max(abs(position.x), abs(position.y)) > gymnasium_car_racing.PLAYFIELD
        if outside:
            terminated, reward = True, -100.0
        pose, wheels_off_road = self._pose(), self._wheels_off_road()
        crash = self.events.update(wheels_off_road, pose.heading, outside)
        self.lap.update(pose.index, self.tile_visited_count)
        info = self._telemetry(pose, wheels_off_road, dt=_FRAME, crash=crash)
        if crash and self.crash == "terminate":
            terminated = True
        elif crash and self.crash == "intervene" and not terminated:
            self.intervene()
            info["interventions"] = self.interventions
        if self.render_mode == "human":
            self.render()
        return self.state, float(reward), terminated, False, info

    def _require_episode(self) -> None:
        """Raise ResetNeeded before the first reset, and after `close`."""
        if self.car is None:
            raise ResetNeeded("there is no episode before the first reset and after close; call reset().")

    def _command(self, action: Any) -> tuple[float, float, float]:
        """Return steer, right positive, gas and brake of an action.

        Raises:
            ValueError: If `action` lies outside `action_space`.
        """
        if self.continuous:
            action = np.asarray(action, dtype=np.float32)
            if action.shape == (3,):
                steer, gas, brake = numbers = action.tolist()
                if -1 <= steer <= 1 and 0 <= gas <= 1 and 0 <= brake <= 1:
                    return COMMANDS[self.pulses.action(numbers)] if self.control == "pulsed" else (steer, gas, brake)
        elif self.action_space.contains(action):
            return COMMANDS[int(action)]
        raise ValueError(
            f"action must lie in {self.action_space}, got {action!r}. "
            + ("Clip steer to [-1, 1], gas and brake to [0, 1]." if self.continuous else "Pass an integer 0-4.")
        )

    def _drive(self) -> None:
        """Let a frame pass and draw it, as gymnasium's step does."""
        advance(self.car, _FRAME)
        self.world.Step(_FRAME, _VELOCITY_ITERATIONS, _POSITION_ITERATIONS)
        self.t += _FRAME
        self.state = self._render("state_pixels")

    def look(self) -> np.ndarray:
        """Return the frame (96, 96, 3) that the last step would have returned with `observe` on."""
        self._require_episode()
        observe, reward = self.observe, self.reward
        if self.frame:
            self.reward += 0.1  # a step draws the score before it subtracts the cost of the frame
        self.observe = True
        frame: Any = self._render("state_pixels")
        self.observe, self.reward, self.state = observe, reward, frame
        return frame

    @property
    def zoom(self) -> float:
        """Pixels of gymnasium's window per unit at this moment: it zooms in during the first second."""
        start, full = 0.1 * gymnasium_car_racing.SCALE, gymnasium_car_racing.ZOOM * gymnasium_car_racing.SCALE
        return start * max(1 - self.t, 0) + full * min(self.t, 1)

    def tiles_missed(self) -> int:
        """Return the number of tiles that the car has passed in this episode and no wheel has touched so far."""
        road: Any = self.road
        passed = min(max(self.lap.furthest - _TILES_UNDER_CAR, 0), len(road))
        self._missed += road[self._passed : passed]
        self._passed = passed
        self._missed = [tile for tile in self._missed if not tile.road_visited]
        return len(self._missed)

    def intervene(self) -> None:
        """Set the car at rest on the centre line, at the nearest tile, along the road."""
        self._require_episode()
        index = self._pose().index
        self.car.destroy()
        self.car = Car(self.world, self.centre_line.angles[index], *self.centre_line.points[index])
        self.pulses = Pulses()
        self.events.rearm()
        self.interventions += 1

    def _pose(self) -> Pose:
        self.pose = self.centre_line.locate(self.car.hull.position, self.car.hull.angle)
        return self.pose

    def _wheels_off_road(self) -> int:
        return sum(not wheel.tiles for wheel in self.car.wheels)

    def _telemetry(self, pose: Pose, wheels_off_road: int, dt: float, crash: str | None) -> dict[str, Any]:
        visited, total = self.tile_visited_count, len(self.track)
        return {
            "speed": float(np.hypot(*self.car.hull.linearVelocity)),
            "lateral_offset": pose.lateral,
            "heading_error": pose.heading,
            "wheels_off_road": wheels_off_road,
            "tiles_visited": visited,
            "tiles_total": total,
            "completion": visited / total,
            "lap_finished": self.lap.finished,
            "dt": dt,
            "zooming": self.frame < ZOOM_FRAMES,
            "off_road": self.events.off_road,
            "off_road_events": self.events.off_road_events,
            "crash": crash,
            "crashes": self.events.crashes,
            "interventions": self.interventions,
        }

    # Drawing: gymnasium's own, without the polygons that are off the screen.

    def _create_track(self) -> bool:
        created = super()._create_track()
        self.road_vertices = np.asarray([polygon for polygon, _ in self.road_poly]).reshape(-1, 4, 2)
        return created

    def _render(self, mode: str):
        if mode == "state_pixels":
            if not self.observe:
                return self.state
        elif self.car is None:
            return None  # as gymnasium's own before the first reset
        return super()._render(mode)

    def _render_road(self, zoom, translation, angle):
        bounds = gymnasium_car_racing.PLAYFIELD
        field = [(bounds, bounds), (bounds, -bounds), (-bounds, -bounds), (-bounds, bounds)]
        self._draw_colored_polygon(self.surf, field, self.bg_color, zoom, translation, angle, clip=False)
        for i in _visible(_GRASS, zoom, translation, angle):
            self._draw_colored_polygon(self.surf, _GRASS[i], self.grass_color, zoom, translation, angle)
        for i in _visible(self.road_vertices, zoom, translation, angle):
            polygon, color = self.road_poly[i]
            self._draw_colored_polygon(self.surf, polygon, [int(c) for c in color], zoom, translation, angle)


def _grass() -> np.ndarray:
    """Return the corners (400, 4, 2) of gymnasium's grass patches, in its order."""
    size = gymnasium_car_racing.GRASS_DIM
    corners = np.array([(1, 0), (0, 0), (0, 1), (1, 1)], dtype=np.float64)
    cells = np.array([(x, y) for x in range(-20, 20, 2) for y in range(-20, 20, 2)], dtype=np.float64)
    return size * (cells[:, None, :] + corners)


_GRASS = _grass()


def _visible(polygons: np.ndarray, zoom: float, translation, angle: float) -> np.ndarray:
    """Return the indices of the polygons (P, 4, 2) whose bounding box touches the window, in drawing order."""
    cos, sin = np.cos(angle) * zoom, np.sin(angle) * zoom
    x = polygons[..., 0] * cos - polygons[..., 1] * sin + translation[0]  # (P, 4)
    y = polygons[..., 0] * sin + polygons[..., 1] * cos + translation[1]  # (P, 4)
    return np.flatnonzero(
        (x.max(axis=1) >= -_ANTIALIAS_MARGIN)
        & (x.min(axis=1) <= gymnasium_car_racing.WINDOW_W + _ANTIALIAS_MARGIN)
        & (y.max(axis=1) >= -_ANTIALIAS_MARGIN)
        & (y.min(axis=1) <= gymnasium_car_racing.WINDOW_H + _ANTIALIAS_MARGIN)
    )


def _make_car_racing(config: Any, crash: CrashMode, render_mode: str | None) -> gym.Env:
    return CarRacing(render_mode, config.control, crash)


def _video_image(simulator: CarRacing) -> Any:
    return simulator.render()


ENVIRONMENTS["car-racing"] = EnvSpec(
    _make_car_racing, regions=regions, video_image=_video_image,
    privileged=car_state, privileged_size=CAR_STATE_SIZE,
)  # fmt: skip
