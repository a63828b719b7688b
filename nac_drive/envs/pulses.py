"""Pulses: continuous commands carried out by five discrete actions."""

from __future__ import annotations

from typing import Any

NOTHING, RIGHT, LEFT, GAS, BRAKE = range(5)
COMMANDS = ((0.0, 0.0, 0.0), (0.6, 0.0, 0.0), (-0.6, 0.0, 0.0), (0.0, 0.2, 0.0), (0.0, 0.0, 0.8))
"""Steer, gas and brake that gymnasium makes of each discrete action."""
MAX_WHEEL_ANGLE = 0.4
"""Radians; gymnasium stops the front wheels there."""
TURN = 0.06
"""Radians that the front wheels turn in a frame: 3 rad/s at 50 frames/s."""
_LEAST_GAS, _LEAST_BRAKE = 0.1, 0.02
"""A pedal has a pulse if its command is above the other one's by more than this."""
_PEDAL_WORTH = 0.05
"""Worth of a pedal as an error of the wheel angle, in rad (see `best_action`)."""


def wheel_angle_after(action: int, angle: float) -> float:
    """Return the wheel angle one frame after `angle` (rad).

    Left and right turn the wheels. Under any other action they turn back to straight ahead, as fast.
    """
    if action == LEFT:
        return min(angle + TURN, MAX_WHEEL_ANGLE)
    if action == RIGHT:
        return max(angle - TURN, -MAX_WHEEL_ANGLE)
    return angle - min(max(angle, -TURN), TURN)


def best_action(wanted: float, angle: float, pedal: int, worth: float) -> int:
    """Return the action that brings the wheels nearest to an angle.

    Args:
        wanted: The wheel angle to be reached, in rad, left positive.
        angle: The wheel angle now.
        pedal: GAS, BRAKE or NOTHING: the action if the wheels are not turned.
        worth: The pedal may leave a squared error that is greater by 2 * TURN * worth.
    """
    errors = {action: (wanted - wheel_angle_after(action, angle)) ** 2 for action in (pedal, LEFT, RIGHT)}
    errors[pedal] -= 2 * TURN * worth
    return min(errors, key=errors.__getitem__)


class Pulses:
    """Choose the actions that make the wheels follow an angle.

    The wheel angle is reckoned from the actions so far. Nothing is read from the simulator: an agent in the discrete
    environment can do the same.
    """

    def __init__(self) -> None:
        self.angle = 0.0

    def action(self, command: Any) -> int:
        """Return the action of the next frame.

        Args:
            command: Steer in [-1, 1], right positive: the wheel angle in rad, up to 0.4. Gas and brake in [0, 1].
        """
        steer, gas, brake = map(float, command)
        wanted = min(max(-steer, -MAX_WHEEL_ANGLE), MAX_WHEEL_ANGLE)
        pedal = GAS if gas - brake > _LEAST_GAS else BRAKE if brake - gas > _LEAST_BRAKE else NOTHING
        action = best_action(wanted, self.angle, pedal, _PEDAL_WORTH if pedal else 0.0)
        self.angle = wheel_angle_after(action, self.angle)
        return action
