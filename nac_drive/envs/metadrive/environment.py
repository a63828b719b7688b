"""MetaDrive's roads as a track environment, seen through our camera."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from typing import Any, ClassVar, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded

from nac_drive.envs.metadrive.camera import REGIONS, Camera
from nac_drive.envs.metadrive.process import give_back, take
from nac_drive.envs.metadrive.simulator import EXPERTS, FRAMES_PER_SECOND, Settings
from nac_drive.envs.metadrive.situation import RoadMap, Situation
from nac_drive.envs.spec import ENVIRONMENTS, EnvSpec
from nac_drive.envs.telemetry import wrap_angle

METADRIVE, METADRIVE_EMPTY = "nac_drive/MetaDrive-v0", "nac_drive/MetaDriveEmpty-v0"
"""Names of the environments that come with the package: with other cars, and without."""
SETTINGS = {METADRIVE: Settings(), METADRIVE_EMPTY: Settings(traffic=0.0)}
LARGEST_MAP = 2**32 - 1
"""The largest seed of a map: MetaDrive's generator takes no larger ones."""
_VIDEO = (600, 400)


class AnySimulator(Protocol):
    """A simulator as the environment calls it."""

    def reset(self, seed: int) -> tuple[RoadMap, Situation]:
        """See `Simulator.reset`."""
        ...

    def step(self, steering: float, pedal: float) -> Situation:
        """See `Simulator.step`."""
        ...

    def advice(self, expert: str) -> tuple[float, float]:
        """See `Simulator.advice`."""
        ...


class MetaDrive(gym.Env):
    """A car on MetaDrive's roads, seen from its seat.

    The seed of a reset is the map. Rewards and ends are MetaDrive's own: an episode ends at the destination, off the
    road, on a line that may not be crossed, and at a crash.

    `info` holds the keys of `CarRacing` that metrics read. speed is in metres per second, lateral_offset is relative to
    half of the car's lane, completion is the fraction of the route, lap_finished tells of the destination, and crash is
    the kind of thing that was hit: car, person, object, building or sidewalk.

    MetaDrive bears one engine in a process, so it runs in a process of its own, from the first reset to `close`.

    Args:
        settings: Roads and traffic.
        name: Name of the environment, for errors.
        render_mode: None or `rgb_array`.
        simulator: The engine; by default one in a process of its own.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": FRAMES_PER_SECOND}

    def __init__(
        self,
        settings: Settings,
        name: str = METADRIVE,
        render_mode: str | None = None,
        simulator: AnySimulator | None = None,
    ) -> None:
        self.render_mode, self._settings, self._name = render_mode, settings, name
        self._simulator, self._process = simulator, None
        self.observation_space = gym.spaces.Box(0, 255, (96, 96, 3), np.uint8)
        self.action_space = gym.spaces.Box(np.array([-1, 0, 0], np.float32), np.array([1, 1, 1], np.float32))
        self.state = np.zeros((96, 96, 3), np.uint8)
        """The last frame."""
        self._camera = Camera()
        self._video = Camera(*_VIDEO) if render_mode else None
        self._situation: Situation | None = None

    @property
    def situation(self) -> Situation:
        """The car and the traffic now.

        Raises:
            ResetNeeded: Before the first `reset`, and after `close`.
        """
        if self._situation is None:
            raise ResetNeeded("there is no episode before the first reset and after close; call reset().")
        return self._situation

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        chosen = int(self.np_random.integers(LARGEST_MAP)) if seed is None else int(seed)
        if chosen > LARGEST_MAP:
            raise ValueError(f"seed of {self._name!r} must be at most {LARGEST_MAP}, got {chosen}; choose another map.")
        if self._simulator is None:
            self._simulator = self._process = take(self._settings)
        self.road, self._situation = self._simulator.reset(chosen)
        for camera in filter(None, (self._camera, self._video)):
            camera.begin(self.road)
        self.state = self._camera.draw(self._situation)
        self._crashes = self._off_road_events = 0
        return self.state, self._info(self._situation, 0.0)

    def step(self, action):
        before = self.situation
        values = np.asarray(action, np.float32)
        if not self.action_space.contains(values):
            raise ValueError(f"action must lie in {self.action_space}, got {action!r}; clip it.")
        steer, gas, brake = values.tolist()
        assert self._simulator is not None
        self._situation = now = self._simulator.step(-steer, gas - brake)
        self.state = self._camera.draw(now)
        self._crashes += now.crash is not None and before.crash is None
        self._off_road_events += now.off_road and not before.off_road
        return self.state, now.reward, now.ended, False, self._info(now, 1 / FRAMES_PER_SECOND)

    def advice(self, expert: str) -> np.ndarray:
        """Return the action that one of MetaDrive's drivers chooses now."""
        assert self._simulator is not None
        steering, pedal = self._simulator.advice(expert)
        return np.array((-steering, max(pedal, 0.0), max(-pedal, 0.0)), np.float32)

    def regions(self) -> np.ndarray:
        """Return the labels (96, 96) of the last frame, see `camera.REGIONS`."""
        return self._camera.regions(self.situation)

    def render(self) -> np.ndarray | None:
        """Return the view in the size of a video."""
        return self._video.draw(self.situation) if self._video else None

    def close(self) -> None:
        self._situation = None
        if self._process is not None:
            give_back(self._process)
            self._simulator = self._process = None

    def _info(self, now: Situation, dt: float) -> dict[str, Any]:
        return {
            "dt": dt,
            "zooming": False,
            "speed": now.speed,
            "lateral_offset": 2 * now.offset / now.lane_width,
            "heading_error": wrap_angle(now.heading - now.lane_heading),
            "wheels_off_road": 4 * now.off_road,
            "completion": now.completion,
            "lap_finished": now.arrived,
            "off_road": now.off_road,
            "off_road_events": self._off_road_events,
            "crash": now.crash,
            "crashes": self._crashes,
            "interventions": 0,
        }


class MetaDriveExpert:
    """One of MetaDrive's own drivers as an expert.

    It reads the simulator, not frames.

    Args:
        name: `metadrive-idm` or `metadrive-ppo`.
    """

    control = "continuous"

    def __init__(self, name: str) -> None:
        self.name = name

    def begin(self, env: gym.Env) -> MetaDrive:
        simulator = env.unwrapped
        if not isinstance(simulator, MetaDrive):
            raise ValueError(f"driver {self.name!r} asks MetaDrive's simulator, got {simulator!r}; pass another one.")
        return simulator

    def act(self, observation: np.ndarray, state: MetaDrive, dt: float) -> tuple[Any, MetaDrive]:
        return state.advice(self.name), state


def metadrive_environment(name: str, settings: Settings) -> EnvSpec:
    """Return the facts of an environment on MetaDrive's roads.

    Args:
        name: Its name there.
        settings: Roads and traffic.
    """
    return EnvSpec(
        partial(_make, name, settings), frames_per_second=FRAMES_PER_SECOND, controls=("continuous",),
        flipped_parts=None,  # traffic keeps to one side of the road
        flipped_bar_columns=None, solved_return=None, regions=_regions, region_names=REGIONS,
        video_image=_video_image, pose=_pose, road=_road,
        experts={expert: partial(MetaDriveExpert, expert) for expert in EXPERTS}, own_process=True,
    )  # fmt: skip


def _make(name: str, settings: Settings, config: Any, crash: str, render_mode: str | None) -> MetaDrive:
    if crash == "intervene":
        raise ValueError(f"crash: environment {name!r} cannot put a car back on the road; pass ignore or terminate.")
    if render_mode == "human":
        raise ValueError(f"environment {name!r} has no window; write a video or a page.")
    if importlib.util.find_spec("metadrive") is None:
        python = "" if sys.version_info < (3, 12) else " with Python 3.11, as its wheels end there"
        raise ValueError(
            f"environment {name!r}: metadrive is not installed; run `pip install 'nac-drive[metadrive]'`{python}."
        )
    return MetaDrive(settings, name, render_mode)


def gymnasium_env(name: str, render_mode: str | None = None) -> MetaDrive:
    """Make the environment of `gymnasium.make`, without its limit."""
    return _make(name, SETTINGS[name], None, "ignore", render_mode)


def _video_image(env: MetaDrive) -> np.ndarray:
    image = env.render()
    return env.state if image is None else image


def _regions(env: MetaDrive) -> np.ndarray:
    return env.regions()


def _pose(env: MetaDrive) -> tuple[float, float, float]:
    now = env.situation
    return now.x, now.y, now.heading


def _road(env: MetaDrive) -> np.ndarray:
    return env.road.route


for _name, _settings in SETTINGS.items():
    ENVIRONMENTS.ship(_name, metadrive_environment(_name, _settings))
