"""CarRacing-v3 with telemetry: gymnasium's physics and frames in compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
from gymnasium.envs.box2d import car_racing as gymnasium_car_racing
from gymnasium.error import ResetNeeded
from gymnasium.utils import EzPickle

from nac_drive.envs.car_state import CAR_STATE_SIZE, car_state
from nac_drive.envs.display import prepare_window
from nac_drive.envs.gymnasium_world import GymnasiumWorld
from nac_drive.envs.native.check import compiled
from nac_drive.envs.native.library import CAR, RANDOM_NUMBERS
from nac_drive.envs.pulses import COMMANDS, Pulses
from nac_drive.envs.readings import Readings
from nac_drive.envs.regions import regions
from nac_drive.envs.saved_state import CarState
from nac_drive.envs.seat import seat_facts
from nac_drive.envs.spec import ENVIRONMENTS, EnvSpec
from nac_drive.envs.telemetry import FRAMES_PER_SECOND
from nac_drive.envs.views import ABOVE, Size, View, require_view
from nac_drive.envs.window import Window
from nac_drive.envs.world import World
from nac_drive.plain import plain

Control = Literal["discrete", "continuous", "pulsed"]
CrashMode = Literal["ignore", "terminate", "intervene"]

_FRAME = 1 / FRAMES_PER_SECOND


class CarRacing(Readings, gym.Env, EzPickle):
    """gymnasium's CarRacing-v3 with telemetry, crash modes and saved states.

    Tracks, physics, rewards, terminations and frames are gymnasium's own, bit for bit and pixel for pixel
    (docs/simulator.md).

    `info` holds after reset and after every step: speed (units/s), lateral_offset (over the half-width, right
    positive), heading_error (rad, left positive), wheels_off_road (0-4), tiles_visited, tiles_total, completion (their
    ratio), lap_finished (see `LapDetector`), dt (seconds since the previous observation, 0 after reset), zooming,
    off_road (an event is open), off_road_events, crash (its kind in the frame where it happens, else None), crashes,
    interventions.

    `observe = False` steps at the speed of the physics and returns the last drawn frame. It is meant for drivers that
    do not look at frames. `look` draws the frame that was not drawn. `car` gives read access to the bodies, under
    gymnasium's names.

    Args:
        render_mode: As in gymnasium.
        control: `discrete` takes an integer 0-4. `continuous` takes steer in [-1, 1], gas and brake in [0, 1]. `pulsed`
            takes the same three numbers and carries them out by discrete actions (see `Pulses`).
        crash: Effect of a crash (see `EventDetector`). `ignore`: none. `terminate`: the episode ends. `intervene`: the
            car is set at rest on the centre line (the protocol of Hasani's thesis, ch. 6). The reward never changes.
            Leaving the playfield always ends the episode, by gymnasium's own rule.
        domain_randomize: As in gymnasium: every reset draws other colours of road and grass.
        view: View of the observations: `above`, gymnasium's, or `seat`, from the driver's seat.
        size: Width and height of an observation from the seat, in pixels.
        lap_complete_percent: As in gymnasium: the fraction of the tiles after which the start ends the episode.
        world: The memory of the simulator, (World, row) of a batch; its own by default.

    A copy (`copy.deepcopy`, pickle) is a new environment of the same settings, as gymnasium's own. It begins with a
    reset. So does a closed environment that is used again.

    Raises:
        ValueError: For an unknown render mode, control, crash mode or view, a size that the view does not have, and a
            `lap_complete_percent` outside [0, 1].
    """

    metadata = gymnasium_car_racing.CarRacing.metadata
    state: np.ndarray
    """The last frame, (height, width, 3) uint8, (96, 96, 3) from above."""

    def __init__(
        self,
        render_mode: str | None = None,
        control: Control = "discrete",
        crash: CrashMode = "ignore",
        domain_randomize: bool = False,
        view: View = "above",
        size: Size = ABOVE,
        lap_complete_percent: float = 0.95,
        world: tuple[World, int] | None = None,
    ):
        modes = self.metadata["render_modes"]
        if render_mode is not None and render_mode not in modes:
            raise ValueError(f"render_mode must be None or one of {modes}, got {render_mode!r}.")
        if crash not in get_args(CrashMode):
            raise ValueError(f"crash must be one of {get_args(CrashMode)}, got {crash!r}.")
        if control not in get_args(Control):
            raise ValueError(f"control must be one of {get_args(Control)}, got {control!r}.")
        if not 0 <= lap_complete_percent <= 1:
            raise ValueError(f"lap_complete_percent must lie in [0, 1], got {lap_complete_percent}; 0.95 means 95 %.")
        require_view(view, size)
        EzPickle.__init__(self, render_mode, control, crash, domain_randomize, view, size, lap_complete_percent)
        Readings.__init__(self, *(world or (_new_world(), 0)))
        self.render_mode, self.control, self.crash = render_mode, control, crash
        self.continuous, self.domain_randomize = control != "discrete", domain_randomize
        self.lap_complete_percent = lap_complete_percent
        bounds = np.array([-1, 0, 0], np.float32), np.array([1, 1, 1], np.float32)
        self.action_space = gym.spaces.Box(*bounds) if self.continuous else gym.spaces.Discrete(len(COMMANDS))
        self.view: View = view
        self.size: Size = size
        shape = (size[1], size[0], 3)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.observe = True
        self.state = np.zeros(shape, dtype=np.uint8)
        self.pulses = Pulses()
        if domain_randomize:
            self._colors = random_colors(np.random.default_rng())
        prepare_window(render_mode)
        self._window = None if render_mode is None else Window()
        self._in_episode = False
        self._world.crash_ends, self._world.intervenes = crash == "terminate", crash == "intervene"

    # The episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begin an episode on a new track.

        Args:
            seed: Seed of the track. None draws it from the generator that earlier seeds began.
            options: As in gymnasium: `randomize` False keeps the colours under `domain_randomize`.

        Returns:
            The first frame, (96, 96, 3) uint8, and `info`.
        """
        super().reset(seed=plain(seed))
        if self.domain_randomize and (not isinstance(options, dict) or options.get("randomize", True)):
            self._colors = random_colors(self.np_random)
        self._track = self.np_random.random(RANDOM_NUMBERS)
        while not self._world.build(self._row, self._track, self._colors, self.lap_complete_percent):
            self._track = self.np_random.random(RANDOM_NUMBERS)
        self._world.begin(self._row)
        self._begin_track()
        self._in_episode = True
        self.pulses = Pulses()
        if self._window:
            self._window.reset()
        if self.observe:
            self.state = self._draw()
        if self.render_mode == "human":
            self.render()
        return self.state, self._info(dt=0.0)

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
        world, row = self._world, self._row
        world.actions[row] = self.command(action)
        places = [wheel.position for wheel in self.car.wheels] if self._window else []
        world.step(row, row + 1)
        if self.observe:
            self.state = self._draw()
        self.after_step(places)
        return self.state, world.rewards[row].item(), world.terminated[row].item(), False, self._info(_FRAME)

    def after_step(self, places: Sequence[Any]) -> None:
        """Follow a step: pulses after an intervention, traces, the window.

        Args:
            places: Positions of the wheels before the step; empty without a render mode.
        """
        if self.crash == "intervene" and self._cars["crash"][0] and not self._world.terminated[self._row]:
            self.pulses = Pulses()
        if self._window:
            wheel = self._cars["wheel"][0]
            self._window.car.traces.update(places, wheel["skids"].tolist(), wheel["on_road"].tolist())
            if self.render_mode == "human":
                self.render()

    def _require_episode(self) -> None:
        """Raise ResetNeeded before the first reset, and after `close`."""
        if not self._in_episode:
            raise ResetNeeded("there is no episode before the first reset and after close; call reset().")

    def command(self, action: Any) -> tuple[float, float, float]:
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

    def _draw(self) -> np.ndarray:
        return self.frame_from(self.view, self.size)

    def frame_from(self, view: View, size: Size = ABOVE) -> np.ndarray:
        """Draw the present frame in a view.

        Args:
            view: `above` or `seat`.
            size: Width and height of a frame from the seat, in pixels.

        Returns:
            (height, width, 3) uint8.

        Raises:
            ResetNeeded: Before the first `reset`, and after `close`.
            ValueError: For an unknown view, or a size that it does not have.
        """
        self._require_episode()
        require_view(view, size)
        return self._world.draw(None, self._row, self._row + 1, view, size)[0]

    def frame_repainted(self, road: int, background: int) -> np.ndarray:
        """Draw the present observation in other colours.

        Args:
            road: What is added to red, green and blue of the road, which must stay in 0-255.
            background: What is added to the darker grass.

        Returns:
            (height, width, 3) uint8.
        """
        with self._world.repainted(self._row, road, background):
            return self._draw()

    def look(self) -> np.ndarray:
        """Return the frame (96, 96, 3) of the last step.

        It is drawn with `observe` off, too.
        """
        self._require_episode()
        self.state = self._draw()
        return self.state

    def intervene(self) -> None:
        """Set the car at rest on the nearest tile's centre line."""
        self._require_episode()
        _, beta, x, y = self._roads["line"][0, self._cars["index"][0]].tolist()
        self._world.place(self._row, beta, x, y)
        self._cars["interventions"] += 1
        self.pulses = Pulses()

    def place(
        self, angle: float, x: float, y: float, *, velocity: tuple[float, float] = (0.0, 0.0), spin: float = 0.0
    ) -> None:
        """Set the car at a place, at rest or in motion.

        The wheels roll. Score, tiles, time and counts stay.

        Args:
            angle: Angle of the hull in radians, 0 towards +y, left positive.
            x: Position of the hull in simulator units.
            y: Position of the hull in simulator units.
            velocity: Units per second along x and y.
            spin: Turning rate in radians per second, left positive.

        Raises:
            ResetNeeded: Before the first `reset`, and after `close`.
            ValueError: If a number is not finite.
        """
        self._require_episode()
        numbers = (angle, x, y, *velocity, spin)
        if not np.isfinite(numbers).all():
            raise ValueError(f"angle, x, y, velocity and spin must be finite, got {numbers}.")
        self._world.place(self._row, angle, x, y, velocity, spin)
        self.pulses = Pulses()

    # Saved states

    def save_state(self) -> CarState:
        """Return the state of the episode, for `restore_state`.

        The episode goes on from there, bit for bit.

        Raises:
            ResetNeeded: Before the first `reset`, and after `close`.
            NotImplementedError: Where gymnasium's own simulator drives (see `nac_drive.envs.native.library`).
        """
        self._require_episode()
        if isinstance(self._world, GymnasiumWorld):
            raise NotImplementedError("gymnasium's own simulator, which drives on this platform, saves no states.")
        return CarState(
            self._cars.tobytes(), *self._road_numbers(), self.grip, self.pulses.angle,
            dict(self.np_random.bit_generator.state),
        )  # fmt: skip

    def _road_numbers(self) -> tuple[bytes, bytes, float]:
        return self._track.tobytes(), self._colors.tobytes(), self._roads["lap_complete_percent"][0].item()

    def restore_state(self, state: CarState) -> dict[str, Any]:
        """Go on from a saved state of any environment.

        Skid traces, which `render` alone shows, are forgotten.

        Args:
            state: The result of `save_state`.

        Returns:
            `info` of the frame in which it was saved, with a `dt` of 0. `look` draws that frame.
        """
        road = (state.track, state.colors, state.lap_complete_percent)
        if not self._in_episode or road != self._road_numbers():
            self._track, self._colors = state.random_numbers.copy(), state.color_numbers.copy()
            self._world.build(self._row, self._track, self._colors, state.lap_complete_percent)
            self._begin_track()
            self._in_episode = True
        self._roads["grip"] = state.grip
        self._cars[:] = np.frombuffer(state.car, CAR)
        self.np_random.bit_generator.state = state.generator
        self.pulses = Pulses()
        self.pulses.angle = state.wheel_angle
        if self._window:
            self._window.reset()
        return self._info(dt=0.0)

    # Images

    def render(self) -> np.ndarray | None:
        """Return or show the image of the render mode, as gymnasium does; None before the first reset."""
        if self._window is None:
            name = self.spec.id if self.spec else type(self).__name__
            gym.logger.warn(f"{name} renders nothing without a render mode; make it with render_mode='rgb_array'.")
            return None
        if not self._in_episode:
            return None
        return (
            self.frame_from("above")
            if self.render_mode == "state_pixels"
            else self._window.draw(self, str(self.render_mode))
        )

    def close(self) -> None:
        """Close the window and end the episode."""
        if self._window:
            self._window.close()
        self._in_episode = False


def random_colors(rng: np.random.Generator) -> np.ndarray:
    """Draw colours (3, 3) of road, background and grass."""
    road, background = rng.uniform(0, 210, size=3), rng.uniform(0, 210, size=3)
    grass = background.copy()
    grass[rng.integers(3)] += 20
    return np.stack((road, background, grass))


def _new_world() -> World | GymnasiumWorld:
    library = compiled()
    return GymnasiumWorld() if library is None else World(1, library)


def _make_car_racing(config: Any, crash: CrashMode, render_mode: str | None) -> gym.Env:
    return CarRacing(render_mode, config.control, crash, view=config.view, size=config.size)


def _pose(simulator: CarRacing) -> tuple[float, float, float]:
    hull = simulator.car.hull
    x, y = hull.position
    return x, y, hull.angle


def _road(simulator: CarRacing) -> np.ndarray:
    return np.asarray(simulator.centre_line.points)


def _video_image(simulator: CarRacing) -> Any:
    return simulator.render()


ENVIRONMENTS.ship(
    "car-racing",
    EnvSpec(
    _make_car_racing, regions=regions, video_image=_video_image, pose=_pose, road=_road, views={"seat": seat_facts},
    privileged=car_state, privileged_size=CAR_STATE_SIZE,
    ),
)  # fmt: skip
