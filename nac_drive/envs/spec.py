"""Track environments and the facts to know about them.

CarRacing is one of `ENVIRONMENTS`; another one is an adapter: a function that makes it, and an `EnvSpec`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from nac_drive.registry import Registry


@dataclass(frozen=True)
class EnvSpec:
    """A track environment: maker, observations, actions and `info`.

    `info` must hold, after reset and after every step, `dt` (seconds since the last observation, 0 after reset) and
    `zooming` (frames that count for no accuracy). It may hold the keys of `CarRacing`'s docstring that metrics read:
    speed, lateral_offset, heading_error, wheels_off_road, completion, lap_finished, off_road, off_road_events, crash,
    crashes and interventions. completion is a fraction of the track, 0 to 1, and off_road and lap_finished are flags.
    A metric without its keys has no value. The first five are stored with every observation, if all of them are there.
    `env.unwrapped.state` is the clean frame that an expert sees. Every observation is an array of its own.

    The defaults are CarRacing's. `gymnasium_environment` makes the spec of any environment of gymnasium.
    """

    make: Callable[..., gym.Env] | None
    """(EnvConfig, crash, render_mode) -> environment, without a time limit. None for a program of its own, of which
    there are recordings alone: a driver is validated by its error on episodes that it did not learn from."""
    frame_shape: tuple[int, int, int] = (96, 96, 3)
    """Height, width, channels of an observation, uint8."""
    frames_per_second: int = 50
    """Frames of the simulator in a second."""
    controls: tuple[str, ...] = ("discrete", "continuous", "pulsed")
    """The controls that it has; the first one is the default."""
    steering: tuple[float, ...] | None = (0.0, 0.6, -0.6, 0.0, 0.0)
    """The steering command, right positive, of each discrete action; None if it is not known."""
    action_names: tuple[str, ...] = ("nothing", "right", "left", "gas", "brake")
    """A name of each discrete action; as many as there are discrete actions."""
    flipped_actions: tuple[int, ...] | None = (0, 2, 1, 3, 4)
    """Each discrete action as seen in a mirror; None if it is not known: frames are not flipped then."""
    parts: tuple[str, ...] = ("steer", "gas", "brake")
    """A name of each number of a continuous action."""
    part_ranges: tuple[tuple[float, float], ...] = ((-1.0, 1.0), (0.0, 1.0), (0.0, 1.0))
    """The least and the largest value of each of them."""
    steering_part: int | None = 0
    """The number of a continuous action that steers, right positive; None if it is not known."""
    flipped_parts: tuple[int, ...] | None = (-1, 1, 1)
    """The sign that each number of a continuous action has in a mirror; None if it is not known."""
    solved_return: float | None = 900.0
    """The return from which an episode counts as solved; None for none."""
    max_steps: int | None = None
    """Steps after which it truncates an episode itself; None for no limit."""
    bar_top: int | None = 84
    """First row of a status bar at the bottom of the frame, which `mask_bar` hides; None for none."""
    flipped_bar_columns: tuple[int, ...] | None = (*range(36), *range(59, 35, -1), *range(83, 59, -1), *range(84, 96))
    """Columns of the status bar in a flipped frame: gauges with a sign are turned about their own centres, which are
    the columns 48 (steering) and 72 (gyroscope). None for a bar that is flipped like the world, or no bar."""

    regions: Callable[[Any], np.ndarray] | None = None
    """env.unwrapped -> labels (H, W) uint8 of the pixels of the present frame, indices of `region_names`, of which
    `inspect` measures the saliency; None where a frame has no such regions."""
    region_names: tuple[str, ...] = ("grass", "verge", "far road", "near road", "road behind", "car", "status bar")
    """A name of each label of `regions`."""
    video_image: Callable[[Any], np.ndarray] | None = None
    """env.unwrapped -> image (H, W, 3) uint8 of the world, for videos; None for the clean frame."""
    pose: Callable[[Any], tuple[float, float, float]] | None = None
    """env.unwrapped -> x, y and heading (rad) of the car, for maps; None for no map."""
    road: Callable[[Any], np.ndarray] | None = None
    """env.unwrapped -> the centre line (N, 2) of the road, in the units of `pose`; None for a map without a road."""

    views: Mapping[str, Callable[[tuple[int, int]], dict[str, Any]]] = field(default_factory=dict)
    """Further views of the world: name -> function from the width and height of a frame to the fields of this spec in
    which the view differs. `env.unwrapped.frame_from(view, size)` draws the present frame in a view."""

    experts: Mapping[str, Any] = field(default_factory=dict)
    """Drivers that come with the road, for whatever learns there: name -> a driver, or a class or a function without
    arguments that makes one, see `as_policy`. `begin` gets the environment, so that an expert may read the simulator.
    One of the name `expert` is the default of commands there."""
    own_process: bool = False
    """Each environment starts a process of its own, so that a worker drives one episode at a time."""

    privileged: Callable[[Any, dict[str, Any]], np.ndarray] | None = None
    """(env.unwrapped, info) -> numbers (K,) float32 that describe the state of the simulator, for the value network of
    PPO; None for the values of `info` that every track environment has."""
    privileged_size: int = 0
    """K, the number of values of `privileged`; `gymnasium_environment` counts them."""

    def __post_init__(self) -> None:
        if not isinstance(self.experts, Mapping):
            raise ValueError(
                f"experts must map names to what makes a driver, got {self.experts!r}; such as "
                "{'lane-keeper': LaneKeeper}."
            )

    @property
    def num_actions(self) -> int:
        """The number of discrete actions."""
        return len(self.action_names)

    @property
    def nominal_dt(self) -> float:
        """Seconds between two frames of the simulator."""
        return 1 / self.frames_per_second

    def steers(self, control: str) -> bool:
        """Return whether the steering command of an action is known."""
        return (self.steering if control == "discrete" else self.steering_part) is not None

    def flips(self, control: str) -> bool:
        """Return whether frames and actions can be flipped."""
        return (self.flipped_actions if control == "discrete" else self.flipped_parts) is not None


def _require_spec(name: str, spec: Any) -> None:
    """Check what a user adds.

    Raises:
        ValueError: It is no spec.
    """
    if not isinstance(spec, EnvSpec):
        got = f"the class {spec.__name__}" if isinstance(spec, type) else type(spec).__name__
        raise ValueError(
            f"environment {name!r}: must be an EnvSpec, got {got}; pass gymnasium_environment(ID) of a registered id."
        )


ENVIRONMENTS: Registry[EnvSpec] = Registry("environment", {}, check=_require_spec)
"""Name -> track environment, for `EnvConfig.environment`. `envs.car_racing` adds CarRacing, `envs.foreign` adds
environments of gymnasium."""
