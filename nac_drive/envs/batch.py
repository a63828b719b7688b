"""Many CarRacing environments stepped in one call, as gymnasium's vector environment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import TimeLimit

from nac_drive.envs.car_racing import CarRacing, CrashMode
from nac_drive.envs.config import EnvConfig, masked
from nac_drive.envs.native.library import CRASHES
from nac_drive.envs.pulses import COMMANDS
from nac_drive.envs.readings import ZOOM_FRAMES
from nac_drive.envs.telemetry import FRAMES_PER_SECOND
from nac_drive.envs.world import World, pool, threads
from nac_drive.plain import plain

_COMMANDS = np.array(COMMANDS)
_CRASHES = np.array(CRASHES, object)
_LOWEST, _HIGHEST = np.array([-1.0, 0.0, 0.0]), 1.0


class CarRacingVectorEnv(VectorEnv):
    """`num_envs` CarRacing environments in one memory: a step is one call of compiled code.

    Results equal single environments', bit for bit. Frames are drawn by as many threads as there are cores, at
    least four environments a thread.

    `envs` are the single environments, with their time limit. They share the memory: read them, and step this one.

    Args:
        config: As in `make_env`, without perturbations. `max_steps` below counts, not its own.
        num_envs: Number of environments.
        library: The compiled library.
        crash: As in `make_env`.
        render_mode: As in gymnasium, `human` excepted.
        max_steps: Steps before an episode is truncated; None for no limit.
        out: (num_envs, height, width, 3) uint8, C-contiguous: the memory of the observations. Every reset and step
            overwrites and returns it. By default every step returns a new array.
        **of_car_racing: Further keywords of `CarRacing`: domain_randomize and lap_complete_percent.

    Raises:
        ValueError: If `out` has another shape, type or layout.
    """

    def __init__(
        self,
        config: EnvConfig,
        num_envs: int,
        library: Any,
        *,
        crash: CrashMode = "ignore",
        render_mode: str | None = None,
        max_steps: int | None = None,
        out: np.ndarray | None = None,
        **of_car_racing: Any,
    ):
        shape = (num_envs, *config.spec.frame_shape)
        if out is not None and (out.shape != shape or out.dtype != np.uint8 or not out.flags.c_contiguous):
            raise ValueError(f"out must be a C-contiguous array {shape} of uint8, got {out.shape} of {out.dtype}.")
        self.num_envs, self.render_mode = num_envs, render_mode
        self.metadata = {**CarRacing.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self._world = World(num_envs, library)
        settings: dict[str, Any] = {"render_mode": render_mode, "control": config.control, "crash": crash}
        settings |= {"view": config.view, "size": config.size}
        self._simulators = [CarRacing(**settings, world=(self._world, row), **of_car_racing) for row in range(num_envs)]
        self.envs: list[gym.Env] = [masked(simulator, config) for simulator in self._simulators]
        if max_steps is not None:
            self.envs = [TimeLimit(env, max_steps) for env in self.envs]
        for simulator in self._simulators:
            simulator.observe = False  # all are drawn at once
        self.observe = True
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._control, self._max_steps = config.control, math.inf if max_steps is None else max_steps
        self._view = config.view, config.size
        self._bar_top = config.spec.bar_top if config.mask_bar else None
        follows = render_mode is not None or (crash == "intervene" and config.control == "pulsed")
        self._followers = self._simulators if follows else []
        self._out, self._frames = out, np.zeros(shape, np.uint8)
        self._elapsed = np.zeros(num_envs, np.int64)
        self._ended = np.zeros(num_envs, np.bool_)
        self._begun = False

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin new episodes.

        Args:
            seed: One per environment, or a number n for n, n + 1, n + 2, ...; None continues the generators.
            options: `reset_mask`, (num_envs,) bool, selects the environments to reset. Others are passed on.

        Returns:
            Observations of all environments, and `info` of the environments that were reset.

        Raises:
            ValueError: If the number of seeds or the mask does not match the environments, or an environment that has
                no episode is left out.
        """
        self._require_open()
        seeds, mask, options = reset_arguments(self.num_envs, seed, options)
        if not (self._begun or mask.all()):
            raise ValueError("options['reset_mask'] must select all environments in the first reset.")
        for row in np.flatnonzero(mask).tolist():
            self.envs[row].reset(seed=seeds[row], options=options)
        self._elapsed[mask], self._ended[mask], self._begun = 0, False, True
        return self._observations(), self._infos(mask, np.zeros(self.num_envs))

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Advance every environment by one step.

        Args:
            actions: One per environment.

        Returns:
            Observations, rewards, terminations and truncations, arrays of `num_envs`; and `info`.

        Raises:
            ResetNeeded: Before the first `reset`.
            ValueError: If the actions are not one per environment, or one lies outside of the action space.
        """
        self._require_open()
        if not self._begun:
            raise ResetNeeded("there is no episode before the first reset; call reset().")
        world, ended = self._world, self._ended
        self._command(actions)
        places = [[wheel.position for wheel in simulator.car.wheels] for simulator in self._followers]
        world.step()
        for simulator, of_wheels in zip(self._followers, places, strict=True):
            simulator.after_step(of_wheels)
        rewards, terminated = world.rewards.copy(), world.terminated.copy()
        self._elapsed += 1
        dt = np.full(self.num_envs, 1 / FRAMES_PER_SECOND)
        for row in np.flatnonzero(ended).tolist():
            self.envs[row].reset()
            self._elapsed[row], rewards[row], terminated[row], dt[row] = 0, 0.0, False, 0.0
        truncated = self._elapsed >= self._max_steps
        self._ended = terminated | truncated
        return self._observations(), rewards, terminated, truncated, self._infos(np.ones(self.num_envs, np.bool_), dt)

    def _command(self, actions: Any) -> None:
        """Write the commands of all actions to the world. Ended episodes ignore them.

        Raises:
            ValueError: As `step`.
        """
        if len(actions) != self.num_envs:
            raise ValueError(f"actions must be one per environment ({self.num_envs}), got {len(actions)}.")
        numbers = np.asarray(actions)
        shape = (self.num_envs,) if self._control == "discrete" else (self.num_envs, 3)
        if numbers.shape == shape and self._control == "discrete" and numbers.dtype.kind in "iu":
            valid = (numbers >= 0) & (numbers < len(COMMANDS))
            commands = _COMMANDS[np.where(valid, numbers, 0)]
        elif numbers.shape == shape and self._control == "continuous" and numbers.dtype.kind in "iuf":
            commands = numbers.astype(np.float32).astype(np.float64)
            valid = ((commands >= _LOWEST) & (commands <= _HIGHEST)).all(axis=1)
        else:
            commands, valid = np.zeros((self.num_envs, 3)), np.zeros(self.num_envs, np.bool_)
        for row in np.flatnonzero(~(valid | self._ended)).tolist():
            commands[row] = self._simulators[row].command(actions[row])  # refuses, or carries out a pulse
        self._world.actions[:] = np.where(self._ended[:, None], 0.0, commands)

    def _observations(self) -> np.ndarray:
        """Draw all environments if they observe, and return the observations."""
        if self.observe:
            self._frames = np.empty_like(self._frames) if self._out is None or self._bar_top is not None else self._out
            count = threads(self.num_envs)
            bounds = np.linspace(0, self.num_envs, count + 1).astype(int).tolist()
            parts = [(self._frames[first:last], first, last, *self._view) for first, last in pairwise(bounds)]
            if count == 1:
                self._world.draw(*parts[0])
            else:
                list(pool(count).map(lambda part: self._world.draw(*part), parts))
            for simulator, frame in zip(self._simulators, self._frames, strict=True):
                simulator.state = frame
        if self._bar_top is None:
            return self._frames
        observations = self._frames.copy() if self._out is None else self._out
        observations[:] = self._frames
        observations[:, self._bar_top :] = 0
        return observations

    def _infos(self, mask: np.ndarray, dt: np.ndarray) -> dict[str, Any]:
        """Return gymnasium's vector info: arrays (num_envs,) and their masks."""
        cars, tiles = self._world.cars, self._world.roads["tiles"].astype(np.int64)
        events, visited = cars["events"], cars["visited_count"].astype(np.int64)
        infos = {
            "speed": cars["speed"].copy(),
            "lateral_offset": cars["lateral_offset"].copy(),
            "heading_error": cars["heading_error"].copy(),
            "wheels_off_road": cars["wheels_off_road"].astype(np.int64),
            "tiles_visited": visited,
            "tiles_total": tiles,
            "completion": visited / np.maximum(tiles, 1),
            "lap_finished": cars["lap"]["finished"].astype(np.bool_),
            "dt": dt,
            "zooming": cars["frame"] < ZOOM_FRAMES,
            "off_road": events["off_road"].astype(np.bool_),
            "off_road_events": events["off_road_events"].astype(np.int64),
            "crash": _CRASHES[cars["crash"]],
            "crashes": events["crashes"].astype(np.int64),
            "interventions": cars["interventions"].astype(np.int64),
        }
        if not mask.all():
            for values in infos.values():
                values[~mask] = None if values.dtype == object else 0
        return infos | {f"_{name}": mask.copy() for name in infos}

    # Single environments

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call method `name` of every environment and return the results. An attribute gives its values."""
        self._require_open()
        if name == "observe":
            return (self.observe,) * self.num_envs
        values = (env.get_wrapper_attr(name) for env in self.envs)
        return tuple(value(*args, **kwargs) if callable(value) else value for value in values)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return attribute `name` of every environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment.

        Args:
            name: The attribute. `observe` is one for all.
            values: A list or tuple with one value per environment, or one value for all.

        Raises:
            ValueError: If the number of values is not the number of environments, or `observe` differs between them.
        """
        self._require_open()
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"values must be one for all or one per environment ({self.num_envs}), got {len(values)}.")
        if name == "observe":
            if len(set(values)) > 1:
                raise ValueError(f"observe must be one value for all environments of a batch, got {values}.")
            self.observe = bool(values[0])
            return
        for env, value in zip(self.envs, values, strict=True):
            env.set_wrapper_attr(name, value)

    def render(self) -> tuple[Any, ...]:
        """Return the result of `render` of every environment."""
        return self.call("render")

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments; `close` calls this."""
        for env in self.envs:
            env.close()

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("the environments are closed; make new ones.")


def reset_arguments(
    num_envs: int, seed: Any, options: dict[str, Any] | None
) -> tuple[list[int | None], np.ndarray, dict[str, Any]]:
    """Return the seeds, the mask of the reset environments, other options.

    Raises:
        ValueError: If the number of seeds or the mask does not match the environments.
    """
    seed = plain(seed)
    if seed is None or isinstance(seed, int):
        seed = [seed if seed is None else seed + index for index in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(f"seed must be a number or one per environment ({num_envs}), got {len(seed)}.")
    options = dict(options or {})
    mask = np.asarray(options.pop("reset_mask", np.ones(num_envs, bool)))
    if mask.shape != (num_envs,) or mask.dtype != bool or not mask.any():
        raise ValueError(
            f"options['reset_mask'] must be {num_envs} booleans, at least one of them True, got {mask}; "
            "leave it out to reset all environments."
        )
    return list(seed), mask, options
