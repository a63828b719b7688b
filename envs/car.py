"""gymnasium's car, in plain floats: the same numbers as its methods `steer`, `gas`, `brake` and `step`, bit for bit."""

from __future__ import annotations

from math import sqrt
from typing import Any

from gymnasium.envs.box2d.car_dynamics import ENGINE_POWER, FRICTION_LIMIT, SIZE, WHEEL_MOMENT_OF_INERTIA

_GRASS_LIMIT = FRICTION_LIMIT * 0.6
_STIFFNESS = 205000 * SIZE * SIZE
_BRAKE = 15
"""Radians per second that a full brake takes from a wheel in a frame."""
_SKID_POINTS = 30


def command(car: Any, steer: float, gas: float, brake: float) -> None:
    """Set the controls. The gas of the driven wheels rises by 0.1 a frame at most.

    Args:
        car: gymnasium's `Car`.
        steer: Wheel angle to be reached, left positive.
        gas: Gas in [0, 1].
        brake: Brake in [0, 1].
    """
    front_left, front_right, *rear = car.wheels
    front_left.steer = front_right.steer = steer
    for wheel in rear:
        wheel.gas += min(gas - wheel.gas, 0.1)
    for wheel in car.wheels:
        wheel.brake = brake


def advance(car: Any, dt: float) -> None:
    """Turn the wheels, and put the forces of the tyres on them, as gymnasium's `Car.step(dt)` does.

    Args:
        car: gymnasium's `Car`.
        dt: Seconds.
    """
    power = dt * ENGINE_POWER
    for wheel in car.wheels:
        joint = wheel.joint
        error = wheel.steer - joint.angle
        speed = min(50.0 * abs(error), 3.0)
        joint.motorSpeed = speed if error > 0 else -speed

        limit = _GRASS_LIMIT
        tiles = wheel.tiles
        for tile in tiles:
            limit = max(limit, FRICTION_LIMIT * tile.road_friction)

        side = wheel.GetWorldVector((1, 0))
        side_x, side_y = side.x, side.y
        forward_x, forward_y = -side_y, side_x
        velocity = wheel.linearVelocity
        velocity_x, velocity_y = velocity.x, velocity.y
        forward_speed = forward_x * velocity_x + forward_y * velocity_y
        side_speed = side_x * velocity_x + side_y * velocity_y

        gas, brake, omega = wheel.gas, wheel.brake, wheel.omega
        omega += power * gas / WHEEL_MOMENT_OF_INERTIA / (abs(omega) + 5.0)
        car.fuel_spent += power * gas
        if brake >= 0.9:
            omega = 0.0
        elif brake > 0:
            loss = min(_BRAKE * brake, abs(omega))
            omega += -loss if omega > 0 else loss
        wheel.phase += omega * dt

        radius = wheel.wheel_rad
        along = (-forward_speed + omega * radius) * _STIFFNESS
        across = -side_speed * _STIFFNESS
        force = sqrt(along * along + across * across)
        if force > 2.0 * limit:
            _skid(car, wheel, grass=not tiles)
        else:
            wheel.skid_start = wheel.skid_particle = None
        if force > limit:
            along = along / force * limit
            across = across / force * limit
        wheel.omega = omega - dt * along * radius / WHEEL_MOMENT_OF_INERTIA
        wheel.ApplyForceToCenter((across * side_x + along * forward_x, across * side_y + along * forward_y), True)


def _skid(car: Any, wheel: Any, grass: bool) -> None:
    """Leave a trace, which `render` shows and no observation."""
    trace = wheel.skid_particle
    if trace and trace.grass == grass and len(trace.poly) < _SKID_POINTS:
        trace.poly.append((wheel.position[0], wheel.position[1]))
    elif wheel.skid_start is None:
        wheel.skid_start = wheel.position
    else:
        wheel.skid_particle = car._create_particle(wheel.skid_start, wheel.position, grass)
        wheel.skid_start = None
