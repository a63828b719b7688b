"""The privileged controller: pure pursuit of a racing line that it reads from the track, not from pixels.

It is the cheap teacher and the ceiling check, never the expert. Pure pursuit: Coulter, CMU-RI-TR-92-01 (1992).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envs import TRACK_HALF_WIDTH, CarRacing, Track, wrap_angle

NOTHING, RIGHT, LEFT, GAS, BRAKE = range(5)
MAX_WHEEL_ANGLE = 0.4
"""Radians; gymnasium stops the front wheels there."""
_WHEEL_RADIUS = 27 * 0.02
_RELAXATION_STEPS = 400


@dataclass(frozen=True)
class ControllerConfig:
    """The numbers of the controller, tuned once during development (no command kept). Lengths in simulator units,
    speeds in units/s, angles in radians."""

    line_share: float = 0.16
    """Share of the half-width within which the racing line may leave the centre line."""
    look_ahead: float = 12.2
    """Distance to the pursued point at standstill."""
    look_ahead_time: float = 0.184
    """Seconds of travel added to that distance."""
    lateral_limit: float = 279.0
    """Centripetal acceleration that the speed profile allows, units/s^2."""
    braking_limit: float = 34.0
    """Deceleration that the speed profile allows, units/s^2."""
    top_speed: float = 80.0
    """Speed on straights."""
    wheel_slip: float = 1.56
    """No gas while the rear wheels turn faster than this multiple of the car's speed."""
    steering_gain: float = 0.95
    """Front wheel angle wanted per radian of bearing to the pursued point."""
    dead_band: float = 0.072
    """Five actions: no steering while the front wheels are within this angle of the angle wanted."""
    pulse_every: int = 5
    """Five actions: one frame in so many gives gas or brake while steering."""
    gas: float = 0.48
    """Continuous: gas when below the profile."""
    brake: float = 0.25
    """Continuous: brake when above the profile."""


DISCRETE = ControllerConfig()
CONTINUOUS = ControllerConfig(
    line_share=0.2, look_ahead=12.2, look_ahead_time=0.168, lateral_limit=197.0, braking_limit=37.0, top_speed=85.6,
    wheel_slip=1.35, steering_gain=0.72, gas=0.48, brake=0.25,
)  # fmt: skip


@dataclass
class Plan:
    """What the controller carries through one episode: the car it reads, its racing line and a frame counter."""

    env: CarRacing
    line: NDArray[np.float64]  # (N, 2)
    speed: NDArray[np.float64]  # (N,)
    spacing: NDArray[np.float64]  # (N,) distance from point i to point i + 1
    index: int = 0
    frame: int = 0


class Controller:
    """Drives from the true state of the car and the track. A `Driver` for environments made by `make_env`."""

    def __init__(self, control: str = "discrete", config: ControllerConfig | None = None):
        self.control = control
        self.config = config or (CONTINUOUS if control == "continuous" else DISCRETE)

    def begin(self, env: gym.Env) -> Plan:
        car_racing = env.unwrapped
        if not isinstance(car_racing, CarRacing):
            raise ValueError(f"env must come from make_env: the controller reads its track; got {car_racing!r}.")
        line = racing_line(car_racing.centre_line, self.config.line_share * TRACK_HALF_WIDTH)
        spacing = np.linalg.norm(np.roll(line, -1, axis=0) - line, axis=1)
        return Plan(car_racing, line, speed_profile(line, spacing, self.config), spacing)

    def act(self, observation: np.ndarray, state: Plan, dt: float) -> tuple[Any, Plan]:
        config, hull = self.config, state.env.car.hull
        position = np.array(hull.position)
        speed = float(np.hypot(*hull.linearVelocity))
        state.frame += 1
        state.index = int(((state.line - position) ** 2).sum(axis=1).argmin())

        target = _point_ahead(state, config.look_ahead + config.look_ahead_time * speed)
        bearing = wrap_angle(np.arctan2(*(target - position)[::-1]) - np.pi / 2 - hull.angle)  # left positive
        wheels = state.env.car.wheels
        spinning = max(wheels[2].omega, wheels[3].omega) * _WHEEL_RADIUS > config.wheel_slip * speed + 5.0
        wanted = state.speed[state.index]
        steering = float(np.clip(config.steering_gain * bearing, -MAX_WHEEL_ANGLE, MAX_WHEEL_ANGLE))  # left positive
        if self.control == "continuous":
            return self._continuous(steering, speed, wanted, spinning), state
        return self._discrete(steering - wheels[0].joint.angle, speed, wanted, spinning, state.frame), state

    def _discrete(self, error: float, speed: float, wanted: float, spinning: bool, frame: int) -> np.int64:
        pedal = GAS if speed < wanted and not spinning else BRAKE if speed > 1.05 * wanted else NOTHING
        pulse = frame % self.config.pulse_every == 0 and pedal != NOTHING
        if abs(error) > self.config.dead_band and not pulse:
            return np.int64(LEFT if error > 0 else RIGHT)
        return np.int64(pedal)

    def _continuous(self, steering: float, speed: float, wanted: float, spinning: bool) -> np.ndarray:
        steer = -steering  # the environment takes the wheel angle itself, right positive
        gas = self.config.gas if speed < wanted and not spinning else 0.0
        brake = self.config.brake if speed > 1.05 * wanted else 0.0
        return np.array([steer, gas, brake], dtype=np.float32)


def racing_line(track: Track, reach: float) -> NDArray[np.float64]:
    """(N, 2): the centre line drawn tight like an elastic band that may leave it by at most `reach` units."""
    normal = np.stack([np.cos(track.angles), np.sin(track.angles)], axis=1)  # (N, 2), to the right
    offset = np.zeros(len(track))
    for _ in range(_RELAXATION_STEPS):
        line = track.points + offset[:, None] * normal
        middle = (np.roll(line, 1, axis=0) + np.roll(line, -1, axis=0)) / 2
        offset = np.clip(((middle - track.points) * normal).sum(axis=1), -reach, reach)
    return track.points + offset[:, None] * normal


def speed_profile(line: NDArray, spacing: NDArray, config: ControllerConfig) -> NDArray[np.float64]:
    """(N,): the speed at each point of `line` that keeps the lateral and the braking limit."""
    heading = np.unwrap(np.arctan2(*(np.roll(line, -1, axis=0) - line).T[::-1]))
    closed = np.append(heading, heading[0] + 2 * np.pi * np.round((heading[-1] - heading[0]) / (2 * np.pi)))
    curvature = np.abs(np.diff(closed)) / spacing
    window = np.ones(5) / 5
    curvature = np.convolve(np.concatenate([curvature[-2:], curvature, curvature[:2]]), window, mode="valid")
    speed = np.minimum(config.top_speed, np.sqrt(config.lateral_limit / np.maximum(curvature, 1e-6)))
    for i in range(2 * len(speed) - 1, -1, -1):
        i %= len(speed)
        ahead = speed[(i + 1) % len(speed)]
        speed[i] = min(speed[i], np.sqrt(ahead**2 + 2 * config.braking_limit * spacing[i]))
    return speed


def _point_ahead(plan: Plan, distance: float) -> NDArray[np.float64]:
    i = plan.index
    while distance > plan.spacing[i]:
        distance -= plan.spacing[i]
        i = (i + 1) % len(plan.line)
    share = distance / plan.spacing[i]
    return plan.line[i] + share * (plan.line[(i + 1) % len(plan.line)] - plan.line[i])
