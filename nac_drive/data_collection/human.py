"""A person at the wheel, in a browser or a window.

The window is pygame's.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from nac_drive.envs import Control
from nac_drive.envs.pulses import BRAKE, GAS, LEFT, NOTHING, RIGHT

HUMAN = "human"
"""The name of a person as a driver, in commands and datasets."""


class Human:
    """Drives by keys, a gamepad or a touch screen.

    Args:
        control: The form of the actions, see `EnvConfig`. Of discrete actions there is one at a time: steering comes
            before the brake, the brake before the gas.
    """

    def __init__(self, control: Control) -> None:
        self.control = control
        self.controls: tuple[float, float, float] = (0.0, 0.0, 0.0)
        """Steer in [-1, 1], right positive, gas and brake in [0, 1]; set from outside."""
        self.holds = False
        """Whether the person holds the wheel, in `corrections`; set from outside."""

    def begin(self, env: gym.Env) -> None:
        self.controls, self.holds = (0.0, 0.0, 0.0), False

    def act(self, observation: np.ndarray, state: Any, dt: float) -> tuple[Any, None]:
        steer, gas, brake = self.controls
        if self.control != "discrete":
            return np.array(self.controls, dtype=np.float32), None
        if abs(steer) > 0.5:
            return np.int64(RIGHT if steer > 0 else LEFT), None
        return np.int64(BRAKE if brake > 0.5 else GAS if gas > 0.5 else NOTHING), None


class KeyboardDriver(Human):
    """A person who watches a window and steers.

    The arrow keys steer, in real time.

    Up is gas, down is the brake. Where a person corrects a driver (`corrections`), the arrow keys take the wheel, and
    the space bar holds it without steering. Escape, or closing the window, ends the work as Ctrl-C does.

    Args:
        control: See `Human`.
    """

    def begin(self, env: gym.Env) -> None:
        super().begin(env)
        import pygame  # comes with gymnasium's CarRacing; a worker that only simulates never loads it

        self._pygame = pygame
        pygame.display.init()
        try:
            self._window = pygame.display.set_mode((_WINDOW, _WINDOW))
        except pygame.error as error:
            raise ValueError(f"driver: human needs a window, and there is no display here ({error}).") from None
        pygame.display.set_caption("nac-drive: arrow keys drive, Escape ends")
        self._clock = pygame.time.Clock()

    def act(self, observation: np.ndarray, state: Any, dt: float) -> tuple[Any, None]:
        pygame = self._pygame
        image = pygame.surfarray.make_surface(observation.swapaxes(0, 1))
        self._window.blit(pygame.transform.scale(image, (_WINDOW, _WINDOW)), (0, 0))
        pygame.display.flip()
        for event in pygame.event.get():
            if event.type == pygame.QUIT or (event.type == pygame.KEYDOWN and event.key == pygame.K_ESCAPE):
                pygame.display.quit()
                raise KeyboardInterrupt
        keys = pygame.key.get_pressed()
        steer = float(keys[pygame.K_RIGHT]) - float(keys[pygame.K_LEFT])
        self.controls = (steer, float(keys[pygame.K_UP]), float(keys[pygame.K_DOWN]))
        self.holds = any(self.controls) or bool(keys[pygame.K_SPACE])
        self._clock.tick(1 / dt if dt else 0)  # wait until the simulator's time has passed since the last frame
        return super().act(observation, state, dt)

    def __getstate__(self) -> dict[str, Any]:
        # a window stays in its process
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


_WINDOW = 768
