"""One driven episode, as metrics see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nac_drive.envs import ENVIRONMENTS, EnvSpec, Episode, Step


@dataclass(frozen=True)
class EpisodeTrace:
    """Every step of an episode, and its end.

    A step may last several frames (`outcome["dt"]`: lost frames, repeated actions). `per_frame` and `after_zoom` count
    it as often, so that rates and fractions do not depend on the frame rate of the driver.
    """

    steps: Sequence[Step]
    """All steps; their observations are dropped."""
    episode: Episode
    spec: EnvSpec = ENVIRONMENTS["car-racing"]
    """The environment."""

    @cached_property
    def frames(self) -> np.ndarray:
        """(N,) frames of the simulator that each step lasted."""
        return np.array([round(step.outcome["dt"] * self.spec.frames_per_second) for step in self.steps])

    @property
    def seconds(self) -> float:
        """Duration of the episode."""
        return int(self.frames.sum()) / self.spec.frames_per_second

    def per_frame(self, value: Callable[[Step], Any]) -> np.ndarray:
        """Return the value of each frame's step, (F,).

        Frames are the simulator's.
        """
        return np.repeat([value(step) for step in self.steps], self.frames)

    def after_zoom(self, value: Callable[[Step], Any]) -> np.ndarray:
        """Return `per_frame` without the zoom-in animation.

        It is a single 0 for an episode that ended in it.
        """
        driving = ~self.per_frame(lambda step: step.info["zooming"])
        return self.per_frame(value)[driving] if driving.any() else np.zeros(1)

    def seconds_until(self, event: Callable[[Step], Any]) -> float | None:
        """Return the seconds until `event` holds for a step.

        They count to the end of the first such step; None without one.
        """
        for end, step in zip(self.frames.cumsum(), self.steps, strict=True):
            if event(step):
                return int(end) / self.spec.frames_per_second
        return None
