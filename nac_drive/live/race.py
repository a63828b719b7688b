"""Cars on one track under one clock. Nothing here knows of browsers."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import torch

from nac_drive.analysis.probe import Probe
from nac_drive.analysis.recording import command_names, commands
from nac_drive.analysis.saliency import visual_backprop
from nac_drive.data_collection.controller.controller import CONTROLLERS
from nac_drive.data_collection.drivers import resolve_driver
from nac_drive.data_collection.human import HUMAN, Human
from nac_drive.data_collection.own_driver import OwnDriver
from nac_drive.data_collection.trained_env import env_for
from nac_drive.envs import FRAMES_PER_SECOND, PERTURBATIONS, Control, EnvConfig, Episode, Policy, Step, make_env
from nac_drive.live.messages import MOST_CARS
from nac_drive.live.perturbable import EnvMoment, Perturbable
from nac_drive.policies.checkpoint import PRETRAINED
from nac_drive.policies.cores.base import map_state
from nac_drive.policies.driver import Driver
from nac_drive.policies.encoders import Encoder
from nac_drive.policies.ops.threads import one_thread

_MOST_STEPS = 20  # of a car in 1/50 s


@dataclass(frozen=True)
class Driven:
    """An episode that a person has driven to its end."""

    steps: Sequence[Step]
    episode: Episode
    undisturbed: bool
    """Nothing was perturbed in it: a replay of the actions gives the same frames."""


@dataclass(frozen=True)
class Moment:
    """A moment of a car's episode, see `Car.moment`."""

    env: EnvMoment
    values: dict[str, Any]
    """Attributes of the car."""


_KEPT = ("_info", "_dt", "seconds", "episode_return", "decisions", "command", "result", "undisturbed", "track")
"""Attributes that a moment keeps; the driver's state and the recorded steps are copied."""


class Car:
    """One driver in its own environment.

    Args:
        name: Name of the driver.
        driver: The driver.
        env_config: Its environment, without perturbations.
    """

    def __init__(self, name: str, driver: Policy, env_config: EnvConfig) -> None:
        self.name = name
        self.env_config = env_config
        self.env = Perturbable(make_env(env_config), env_config)
        self.human = driver if isinstance(driver, Human) else None
        self.probe = Probe(driver) if isinstance(driver, Driver) else None
        self._driver: Policy = self.probe or driver
        self.command_names = command_names(env_config.control, env_config.spec)
        """Names of the numbers of an action."""

    def start(self, track: int) -> None:
        """Begin an episode."""
        self.track = track
        self.observation, self._info = self.env.reset(seed=track)
        self._state = self._driver.begin(self.env)
        self._dt = 0.0
        self.seconds, self.episode_return = 0.0, 0.0
        self.decisions = 0
        self.command = (0.0,) * len(self.command_names)
        self.result: Episode | None = None
        self.steps: list[Step] = []
        self.undisturbed = self.env.spec is None and not self.env.blind
        """See `Driven`; so far."""

    @property
    def outcome(self) -> dict[str, Any]:
        """The latest `info`."""
        return self._info

    def advance(self) -> None:
        """Take one decision, unless the episode has ended."""
        if self.result:
            return
        observation, info, dt = self.observation, self._info, self._dt
        action, self._state = self._driver.act(observation, self._state, dt)
        following, reward, terminated, truncated, outcome = self.env.step(action)
        self.undisturbed = self.undisturbed and self.env.spec is None and not self.env.blind
        if self.human:
            self.steps.append(
                Step(
                    self.decisions, observation, info, dt, action, action, None, float(reward), terminated, truncated,
                    outcome, 0.0,
                )
            )  # fmt: skip
        self.command = tuple(commands(action, self.env_config.spec).values())
        self.observation, self._info, self._dt = following, outcome, outcome["dt"]
        self.seconds += outcome["dt"]
        self.episode_return += float(reward)
        self.decisions += 1
        if terminated or truncated:
            self.result = Episode(
                self.track, self.episode_return, self.decisions, terminated, outcome, self.observation
            )

    def moment(self) -> Moment:
        """Return where the episode is: `go_back` goes on from there.

        Raises:
            ValueError: If the simulator saves no states.
        """
        values = {name: getattr(self, name) for name in _KEPT}
        return Moment(self.env.moment(), values | {"_state": _copied(self._state), "steps": list(self.steps)})

    def go_back(self, moment: Moment) -> None:
        """Go on from a moment, with the driver's memory then."""
        self.observation, _ = self.env.go_back(moment.env)
        for name, value in moment.values.items():
            setattr(self, name, value)
        self._state, self.steps = _copied(self._state), list(self.steps)

    def driven(self) -> Driven:
        """Return the episode that has ended."""
        assert self.result
        return Driven(self.steps, self.result, self.undisturbed)

    def saliency(self) -> np.ndarray | None:
        """Return VisualBackProp (96, 96) uint8 of the present observation. None without convolutions of ours."""
        if not self.probe or not isinstance(self.probe.driver.encoder, Encoder):
            return None
        with one_thread():
            heat = visual_backprop(self.probe.driver, torch.from_numpy(self.observation.copy())[None])[0]
        return (255 * heat).round().to(torch.uint8).numpy(force=True)

    def close(self) -> None:
        """Release the simulator."""
        self.env.close()


class Race:
    """Up to four cars on one track.

    Args:
        offered: Name -> what `resolve_driver` takes. Only these drivers can be chosen; `human` is a person.
        names: The first cars' drivers.
        track: Seed of the track.
        control: Control of the person, of shipped drivers and the controller; a cloned driver knows its own.

    Raises:
        ValueError: For no car or more than four, an unknown name, or a driver of another control or environment.
    """

    def __init__(
        self,
        offered: Mapping[str, Any],
        names: Sequence[str],
        track: int,
        control: Control = "continuous",
    ) -> None:
        if not 1 <= len(names) <= MOST_CARS:
            raise ValueError(f"drivers must be 1 to {MOST_CARS}, got {len(names)}.")
        self.offered = dict(offered)
        self.on_result: Callable[[Car], None] = lambda car: None
        """Called with every car whose episode ends."""
        self.control: Control = control
        self.controls = (0.0, 0.0, 0.0)
        """What the person at the keys holds now: steer, gas and brake."""
        self.levels: dict[str, int] = {}
        self.cars: list[Car] = []
        self.track = track
        self._marked: tuple[int, list[Moment]] | None = None
        self.frame = 0
        try:
            for name in names:
                self.cars.append(self._started(name, beside=self.cars))
        except BaseException:
            self.close()
            raise

    def restart(self, track: int | None = None) -> None:
        """Put all cars at the start of a track.

        Args:
            track: Its number, which forgets the mark; None for the present track, where the mark stays.
        """
        if track is not None:
            self._marked = None
        self.track = self.track if track is None else track
        self._start(self.cars)

    @property
    def marked(self) -> int | None:
        """The frame that `again` goes back to. None if there is none."""
        return self._marked[0] if self._marked else None

    def mark(self) -> None:
        """Keep this moment for `again`; it replaces the last one.

        Raises:
            ValueError: If the simulator saves no states.
        """
        self._marked = self.frame, [car.moment() for car in self.cars]

    def again(self) -> None:
        """Let all cars drive again from the marked moment.

        What is switched now stays.

        Raises:
            ValueError: If no moment was marked since the track or the cars changed.
        """
        if self._marked is None:
            raise ValueError("no moment is marked on this track with these cars; mark one first.")
        self.frame, moments = self._marked
        for car, moment in zip(self.cars, moments, strict=True):
            car.go_back(moment)

    def tick(self) -> None:
        """Let 1/50 s pass.

        A car whose perturbation skips frames waits until the clock reaches it. One of a faster environment takes
        several steps.
        """
        self.frame += 1
        for car in self.cars:
            if car.human:
                car.human.controls = self.controls
            for _ in range(_MOST_STEPS):
                if car.result or round(car.seconds * FRAMES_PER_SECOND) >= self.frame:
                    break
                car.advance()
                if car.result:
                    self.on_result(car)

    @property
    def over(self) -> bool:
        """True once all cars have ended their episodes."""
        return all(car.result for car in self.cars)

    @property
    def choices(self) -> list[str]:
        """Names of drivers that may be chosen. A person drives CarRacing alone."""
        elsewhere = any(car.env_config.environment != EnvConfig.environment for car in self.cars)
        return [*self.offered] if elsewhere else [HUMAN, *self.offered]

    def add(self, name: str) -> None:
        """Add a car and start again.

        Raises:
            ValueError: For a fifth car, an unknown name, or a driver that cannot start; nothing has changed then.
        """
        if len(self.cars) == MOST_CARS:
            raise ValueError(f"there are {MOST_CARS} cars already; take one away first.")
        car = self._started(name, beside=self.cars)
        self._start(self.cars)
        self.cars.append(car)
        self._marked = None

    def remove(self, number: int) -> None:
        """Take a car away.

        Raises:
            ValueError: If it is the last one, or there is no such car.
        """
        car = self.car(number)
        if len(self.cars) == 1:
            raise ValueError("the last car stays; choose another driver for it.")
        self.cars.remove(car)
        self._marked = None
        car.close()

    def replace(self, number: int, name: str) -> None:
        """Give a car another driver and start again.

        Raises:
            ValueError: For an unknown car or name, or a driver that cannot start; nothing has changed then.
        """
        before = self.car(number)
        others = [car for car in self.cars if car is not before]
        car = self._started(name, beside=others)
        self._start(others)
        self.cars[number] = car
        self._marked = None
        before.close()

    def perturb(self, name: str, level: int) -> None:
        """Set a perturbation's level for all cars, from the next frame.

        Raises:
            ValueError: For an unknown name or level, or one that a car's view does not have; nothing has changed then.
        """
        levels = self.levels | {name: level}
        spec = _spec(levels)
        for car in self.cars:
            car.env.under(spec)
        try:
            for car in self.cars:
                car.env.set_perturbations(spec)
        except ValueError:  # a perturbation of the user's own failed
            for car in self.cars:
                car.env.set_perturbations(_spec(self.levels))
            raise
        self.levels = {name: level for name, level in levels.items() if level}

    def steer(self, steer: float, gas: float, brake: float) -> None:
        """Set the controls of every car that a person drives. They stay through a restart."""
        self.controls = (steer, gas, brake)

    def car(self, number: int) -> Car:
        """Return car `number`.

        Raises:
            ValueError: If there is none.
        """
        if not 0 <= number < len(self.cars):
            raise ValueError(f"car must be 0 to {len(self.cars) - 1}, got {number}.")
        return self.cars[number]

    def probe(self, number: int) -> Probe:
        """Return the network of car `number`.

        Raises:
            ValueError: If there is none.
        """
        probe = self.car(number).probe
        if probe is None:
            raise ValueError(f"{self.cars[number].name} has no network.")
        return probe

    def close(self) -> None:
        """Release the simulators."""
        for car in self.cars:
            with suppress(Exception):
                car.close()

    def _start(self, cars: Sequence[Car]) -> None:
        self.frame = 0
        for car in cars:
            car.start(self.track)

    def _started(self, name: str, *, beside: Sequence[Car]) -> Car:
        """Return a new car at the start. It may join `beside`."""
        if name == HUMAN:
            driver, config = Human(self.control), EnvConfig(control=self.control)
        elif name in self.offered:
            spec = self.offered[name]
            of_each_control = spec in CONTROLLERS or any(shipped.startswith(f"{spec}-") for shipped in PRETRAINED)
            driver = resolve_driver(spec, EnvConfig(control=self.control) if of_each_control else None)
            if isinstance(driver, OwnDriver):
                driver = pickle.loads(cloudpickle.dumps(driver))  # no two cars share its memory
            config = env_for(driver, self.control, beside=beside[0].env_config if beside else None)
        else:
            raise ValueError(f"driver {name!r} is not offered here; choose from {', '.join((HUMAN, *self.offered))}.")
        first = beside[0].env_config.environment if beside else config.environment
        if config.environment != first:
            raise ValueError(
                f"driver {name!r} drives in {config.environment!r}, the others in {first!r}; choose another."
            )
        car = Car(name, driver, config)
        try:
            car.env.set_perturbations(_spec(self.levels))
            car.start(self.track)
        except BaseException:
            car.close()
            raise
        return car


def _copied(state: Any) -> Any:
    """Return a copy of a driver's state.

    It holds tensors of a core, or numbers of a controller and its environment.
    """
    return map_state(torch.clone, state) if isinstance(state, tuple) else copy(state)


def _spec(levels: Mapping[str, int]) -> str | None:
    """Return the specification of some levels; None if all are 0.

    They have the order of `PERTURBATIONS`; frame-rate belongs last.
    """
    names = [*PERTURBATIONS, *(levels.keys() - PERTURBATIONS.keys())]
    ordered = sorted(names, key=lambda name: name in ("frame-rate", "action-repeat"))
    return "+".join(f"{name}:{levels[name]}" for name in ordered if levels.get(name)) or None
