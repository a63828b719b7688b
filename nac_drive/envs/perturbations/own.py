"""Perturbations that users bring: what they return is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from nac_drive.envs.perturbations.base import Perturbation
from nac_drive.envs.perturbations.effects import Effect, FrameArray
from nac_drive.envs.perturbations.stream import Stream
from nac_drive.plugins import is_of_package, place_of


def is_own(perturbation: Perturbation) -> bool:
    """Return whether a perturbation comes from a user."""
    return not type(perturbation).__module__.startswith("nac_drive.")


class OwnPerturbation(gym.Wrapper):
    """An environment under a user's perturbation, whose frames are checked.

    Args:
        name: The name of the perturbation.
        perturbation: The perturbation.
        env: The environment.
        arguments: The other arguments of `wrap`.
    """

    def __init__(
        self, name: str, perturbation: Perturbation, env: gym.Env, arguments: tuple[Stream, int, int | None]
    ) -> None:
        self._name, self._space = name, env.observation_space
        wrapped = _called(name, perturbation.wrap, env, *arguments)
        if not isinstance(wrapped, gym.Env):
            raise ValueError(
                f"perturbation {name!r}: wrap must return an environment, got {type(wrapped).__name__}; return a "
                "gymnasium.Wrapper around env."
            )
        super().__init__(wrapped)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = _called(self._name, self.env.reset, seed=seed, options=options)
        return _frames(self._name, observation, self._space.shape), info

    def step(self, action: Any):
        observation, *outcome = _called(self._name, self.env.step, action)
        return _frames(self._name, observation, self._space.shape), *outcome


@dataclass(frozen=True)
class OwnEffect:
    """An effect of a user's corruption, whose frames are checked."""

    name: str
    """The class of the corruption."""
    effect: Effect

    def __call__(self, frames: FrameArray) -> FrameArray:
        return _frames(self.name, _called(self.name, self.effect, frames), frames.shape)


def _called(name: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call the user's code.

    Raises:
        ValueError: It fails. The message names the line.
    """
    try:
        return function(*arguments, **named)
    except Exception as error:
        if isinstance(error, ValueError) and is_of_package(error):  # of the environment, which says what is wrong
            raise
        message = f"{place_of(error)}{type(error).__name__}: {error}"
        raise ValueError(f"perturbation {name!r} failed: {message}; correct it.") from error


def _frames(name: str, frames: Any, shape: tuple[int, ...] | None) -> FrameArray:
    """Return the frames of a user's perturbation.

    Raises:
        ValueError: They are no frames.
    """
    if not isinstance(frames, np.ndarray) or frames.dtype != np.uint8 or frames.shape != shape:
        got = f"{frames.dtype} {frames.shape}" if isinstance(frames, np.ndarray) else type(frames).__name__
        raise ValueError(f"perturbation {name!r} must return frames uint8 {shape}, got {got}; convert them.")
    return frames
