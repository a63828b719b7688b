"""The privileged controller, which follows a racing line.

It reads the line from the track, not from pixels.

It is a cheap expert and shows how much can be reached; the shipped expert is another driver. Its action is a function
of the state alone: pose, speed, yaw rate and wheel angle of the car, and the road ahead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args

import gymnasium as gym
import numpy as np

from nac_drive.data_collection.controller.racing_line import Path, racing_line, smooth_path, speed_profile
from nac_drive.envs import TRACK_HALF_WIDTH, CarRacing, Control, wrap_angle
from nac_drive.envs.pulses import BRAKE, GAS, MAX_WHEEL_ANGLE, NOTHING, best_action

WHEELBASE = 162 * 0.02
SLIP_TIME = 7.3 / (4 * 82)
"""Seconds: in a bend the tyres slip sideways by this times the lateral acceleration, in units/s (the mass over what
four tyres pull per unit/s of slip)."""
_WHEEL_RADIUS = 27 * 0.02
BRAKE_SLIP = 15 * _WHEEL_RADIUS
"""Units/s that a frame of full brake takes from the speed of a wheel."""
_STOP = -100.0
"""Speed limit of a blind car: far enough below standstill that it brakes as hard as it may until it stands, and then
keeps the brake, so that the label does not depend on a speed that nobody sees."""
_REJOIN = 40.0
"""A car further than this from its place on the line looks for a new one, in units."""


@dataclass(frozen=True)
class ControllerConfig:
    """The numbers of the controller.

    They are in simulator units, units/s, units/s^2 and radians.

    The shipped ones were found by `python benchmarks/papers/controller_search.py`, with
    `--control continuous --generations 8` for the continuous ones. Top speeds, the fraction of the line for discrete
    actions and the gain of the gas for continuous control were then lowered by hand, so that a driver that sees one
    frame can do the same (docs/controller.md).
    """

    line_fraction: float = 0.65
    """Fraction of the half-width within which the racing line may leave the centre line."""
    look_ahead: float = 11.38
    """Distance at which the car comes back to its line, at standstill."""
    look_ahead_time: float = 0.1616
    """Seconds of travel added to that distance."""
    steering_gain: float = 0.9949
    """Front wheel angle per radian between the car's heading and the way back to the line."""
    feed_forward: float = 1.543
    """Front wheel angle per angle that the bend needs of rolling wheels."""
    yaw_gain: float = 0.02876
    """Front wheel angle per rad/s that the car turns slower than the line does."""
    preview: float = 0.08122
    """Seconds ahead at which the curvature is read."""
    lateral_limit: float = 228.8
    """Centripetal acceleration that the speed profile allows; four tyres on the road give 219."""
    braking_limit: float = 35.63
    """Deceleration that the speed profile allows."""
    top_speed: float = 80.0
    """Speed on straights."""
    slack: float = 1.085
    """No brake below this multiple of the profile."""
    gas_worth: float = 8.519
    """Discrete actions: worth of gas as an error of the wheel angle, in sideways speed of the front tyres, units/s."""
    brake_worth: float = 3.582
    """Discrete actions: worth of the brake, in the same unit."""
    slip: float = 6.0
    """Slip of the rear tyres, units/s; they grip up to 4.9. Continuous: limit of the pedals, along and across.
    Discrete actions: no pedal above it, across. (Set by hand there, after the search.)"""
    gas_gain: float = 0.6
    """Continuous: gas per unit/s below the profile."""
    brake_gain: float = 0.04
    """Continuous: brake per unit/s above the slack."""
    about_turn: float = 0.0
    """A car that points backwards turns round to the left, also where the right is nearer by up to twice this angle;
    0: it turns to the nearer side."""
    blind_frames: int = 0
    """The car stops while more frames than these in a row are lost or black (`frame_lost`); 0: it never does. The
    controller itself needs no frame: the label is for drivers that do."""


DISCRETE = ControllerConfig()
CONTINUOUS = ControllerConfig(
    line_fraction=0.6676, look_ahead=10.15, look_ahead_time=0.1306, steering_gain=0.8322, feed_forward=0.8961,
    yaw_gain=0.0232, preview=0.07935, lateral_limit=185.0, braking_limit=80.55, top_speed=95.0, slack=1.065,
    gas_gain=0.2, brake_gain=0.03903, slip=5.135,
)  # fmt: skip
_CAUTION = 0.75
"""Grip, as a fraction of the road's, that the cautious controller relies on in bends."""
_BLIND_FRAMES = 6
_NUMBERS: dict[Control, ControllerConfig] = {
    "discrete": DISCRETE, "continuous": CONTINUOUS, "pulsed": DISCRETE
}  # fmt: skip
_STEADY = {"line_fraction": 0.9, "lateral_limit": 0.95, "braking_limit": 0.7}
"""Factors of the steady controller: it stays further from the edge, and brakes earlier."""
_ABOUT_TURN = 0.8
"""Of the steady controller. Where a label flips from full left to full right, a driver that learns the steering by its
square error answers with the mean, straight on. That must not be where a car points exactly backwards."""
CONTROLLERS: dict[str, dict[Control, ControllerConfig]] = {
    "controller": _NUMBERS,
    "steady-controller": {
        control: replace(
            numbers,
            about_turn=_ABOUT_TURN,
            **{name: factor * getattr(numbers, name) for name, factor in _STEADY.items()},
        )
        for control, numbers in _NUMBERS.items()
    },
    "cautious-controller": {
        control: replace(numbers, lateral_limit=_CAUTION * numbers.lateral_limit, blind_frames=_BLIND_FRAMES)
        for control, numbers in _NUMBERS.items()
    },
}
"""Name as an expert -> control -> numbers. A driver can follow the steady one with an error and a delay of its own. The
cautious one drives as well on tyres at 0.75 of their grip, and stops where the driver that learns from it sees
nothing."""


class Plan:
    """State of the controller in one episode.

    It holds the car, the path, and the car's place on the path.
    """

    def __init__(self, env: CarRacing, path: Path, speed: list[float], frame_lost: Callable[[], bool]):
        self.env = env
        self.frame_lost = frame_lost
        self.lost = 0
        """Frames in a row that were lost."""
        self.points: list[tuple[float, float]] = list(map(tuple, path.points.tolist()))
        self.heading: list[float] = path.heading.tolist()
        self.curvature: list[float] = path.curvature.tolist()
        self.speed = speed
        self.index = 0

    def locate(self, x: float, y: float) -> int:
        """Return the point of the path next to (x, y).

        It is searched from the last one, or everywhere for a car far away.
        """

        def away(i: int) -> float:
            return math.dist(self.points[i], (x, y))

        count, i = len(self.points), self.index
        for direction in (1, -1):
            while away((i + direction) % count) < away(i):
                i = (i + direction) % count
        self.index = i if away(i) < _REJOIN else min(range(count), key=away)
        return self.index

    def ahead(self, distance: float) -> int:
        """Return the point of the path that is `distance` units further."""
        return (self.index + round(distance)) % len(self.points)  # steps are units


class Controller:
    """A policy that reads the true state of the car.

    It reads the track, too, of environments made by `make_env`.

    Args:
        control: "discrete", "continuous" or "pulsed".
        config: Its numbers; the shipped ones of that control by default.

    Raises:
        ValueError: If there is no such control; in `begin`, if the environment is another.
    """

    def __init__(self, control: Control = "discrete", config: ControllerConfig | None = None):
        if control not in get_args(Control):
            raise ValueError(f"control must be one of {get_args(Control)}, got {control!r}.")
        self.control: Control = control
        self.config = config or CONTROLLERS["controller"][control]

    def begin(self, env: gym.Env) -> Plan:
        car_racing, config = env.unwrapped, self.config
        if not isinstance(car_racing, CarRacing):
            raise ValueError(f"env must come from make_env: the controller reads its track; got {car_racing!r}.")
        path = smooth_path(racing_line(car_racing.centre_line, config.line_fraction * TRACK_HALF_WIDTH))
        speed = speed_profile(
            path, lateral_limit=config.lateral_limit, braking_limit=config.braking_limit, top_speed=config.top_speed
        )
        stale = config.blind_frames > 0 and env.has_wrapper_attr("frame_lost")
        return Plan(car_racing, path, speed.tolist(), lambda: stale and env.get_wrapper_attr("frame_lost"))

    def act(self, observation: np.ndarray, state: Plan, dt: float) -> tuple[Any, Plan]:
        config, car = self.config, state.env.car
        speed = math.hypot(*car.hull.linearVelocity)
        limit = state.speed[state.locate(*car.hull.position)]
        distance = config.look_ahead + config.look_ahead_time * speed
        error = self._course_error(car.hull, state, distance)
        if error < config.about_turn - math.pi:
            error += 2 * math.pi
        curvature = state.curvature[state.ahead(config.preview * speed)]
        turn = speed * curvature  # rad/s

        back = 2 * math.sin(min(abs(error), math.pi / 2)) / distance  # curvature of the arc back to the line
        limit = min(limit, math.sqrt(config.lateral_limit / max(back, 1e-6)))
        state.lost = state.lost + 1 if state.frame_lost() else 0
        if state.lost > config.blind_frames:
            limit = _STOP
        angle = (
            config.feed_forward * WHEELBASE * curvature
            + config.steering_gain * (error + SLIP_TIME * turn)  # a slipping car looks into the bend
            + config.yaw_gain * (turn - car.hull.angularVelocity)
        )
        angle = min(max(angle, -MAX_WHEEL_ANGLE), MAX_WHEEL_ANGLE)
        if self.control == "discrete":
            return self._discrete(angle, speed, limit, car), state
        return self._continuous(angle, speed, limit, car), state

    @staticmethod
    def _course_error(hull: Any, plan: Plan, distance: float) -> float:
        """Return the turn that leads back to the line.

        It is in radians to the left, for a return within `distance`; 0 on the line.
        """
        here, target = plan.index, plan.ahead(distance)
        to_target = _bearing(hull.position, plan.points[target]) - hull.angle
        on_course = _bearing(plan.points[here], plan.points[target]) - plan.heading[here]
        return wrap_angle(to_target - on_course)

    def _discrete(self, wanted: float, speed: float, limit: float, car: Any) -> np.int64:
        """Return the action that brings the wheels nearest to an angle.

        A pedal may be worth more.
        """
        config, angle = self.config, car.wheels[0].joint.angle
        _, across = _split(car.wheels[2].linearVelocity, car.hull.angle)
        gripping = abs(across) < config.slip  # a sliding tail is caught by steering alone
        pedal, worth = NOTHING, 0.0
        if gripping and speed < limit:
            pedal, worth = GAS, config.gas_worth / max(speed, 10.0)
        elif gripping and speed > config.slack * limit:
            pedal, worth = BRAKE, config.brake_worth / max(speed, 1e-3)
        return np.int64(best_action(wanted, angle, pedal, worth))

    def _continuous(self, wanted: float, speed: float, limit: float, car: Any) -> np.ndarray:
        """Return steer, gas and brake. Both pedals leave the rear tyres the grip that they need across."""
        config = self.config
        forward, across = _split(car.wheels[2].linearVelocity, car.hull.angle)
        along = car.wheels[2].omega * _WHEEL_RADIUS - forward
        room = math.sqrt(max(config.slip**2 - across**2, 0.0))
        gas = min(config.gas_gain * (limit - speed), (room - along) / 2, 1.0)
        brake = min(config.brake_gain * (speed - config.slack * limit), (room + along) / BRAKE_SLIP, 0.89)  # 0.9 locks
        gas, brake = max(gas, 0.0), max(brake, 0.0)
        return np.array([-wanted, gas, brake], dtype=np.float32)  # the environment's steer is the angle, right positive


def _bearing(start: Any, end: Any) -> float:
    """Return the hull angle that points from `start` to `end`."""
    return math.atan2(end[1] - start[1], end[0] - start[0]) - math.pi / 2


def _split(velocity: Any, angle: float) -> tuple[float, float]:
    """Return `velocity` along and across a hull at `angle`.

    Right is positive.
    """
    sin, cos = math.sin(angle), math.cos(angle)
    return cos * velocity[1] - sin * velocity[0], cos * velocity[0] + sin * velocity[1]
