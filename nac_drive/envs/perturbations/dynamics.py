"""Perturbations of dynamics: delayed actions, faulty actions and weak tyres."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from nac_drive.envs.car_racing import CarRacing
from nac_drive.envs.perturbations.base import Perturbation, require_probability
from nac_drive.envs.perturbations.stream import Stream
from nac_drive.envs.perturbations.timing import TimedPerturbation, Timing
from nac_drive.plain import whole

GRASS_GRIP = 0.6
"""Friction limit of grass over the road's; gymnasium never lets a wheel have less."""


@dataclass(frozen=True)
class ActionDelay(TimedPerturbation):
    """Frame i executes the action of frame i - `frames`.

    The first `frames` actions are zero, or the nearest to zero that there is.
    """

    frames: int
    """Simulator frames, at least 0."""

    def __post_init__(self) -> None:
        if whole("frames", self.frames) < 0:
            raise ValueError(f"frames must be at least 0, got {self.frames}; an action cannot come early.")

    def wrap(self, env: gym.Env, stream: Stream, episode_frames: int, bar_top: int | None) -> gym.Env:
        return DelayedActions(env, self)

    def retime(self, timing: Timing, rng: np.random.Generator) -> Timing:
        return timing.delay(self.frames)


class DelayedActions(gym.Wrapper):
    """Environment under an `ActionDelay`. Observations and dt stay as they are."""

    def __init__(self, env: gym.Env, delay: ActionDelay):
        super().__init__(env)
        self._delay = delay
        self._waiting: deque[Any] = deque()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self._waiting = deque([_zero_action(self.action_space)] * self._delay.frames)
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        self._waiting.append(action)
        return self.env.step(self._waiting.popleft())


@dataclass(frozen=True)
class ActionFault(Perturbation):
    """The actuator is unreliable, independently in every frame.

    Discrete control: with `probability` a random action, perhaps the intended one, is executed. Continuous control:
    normal noise of standard deviation `deviation`, a fraction of the largest value, is added to steer, gas and brake,
    and the sum is clipped to the action space.
    """

    probability: float
    deviation: float

    def __post_init__(self) -> None:
        require_probability(self.probability)
        if not 0 <= self.deviation < float("inf"):
            raise ValueError(f"deviation must be at least 0 and finite, got {self.deviation}; steering spans [-1, 1].")

    def wrap(self, env: gym.Env, stream: Stream, episode_frames: int, bar_top: int | None) -> gym.Env:
        return FaultyActions(env, self, stream)


class FaultyActions(gym.Wrapper):
    """Environment under an `ActionFault`. Observations and dt stay as they are."""

    def __init__(self, env: gym.Env, fault: ActionFault, stream: Stream):
        super().__init__(env)
        self._fault, self._stream = fault, stream

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self._stream.restart(seed)
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        rng, space = self._stream.rng, self.action_space
        if isinstance(space, gym.spaces.Discrete):
            random = space.start + rng.integers(space.n)  # drawn in any case: levels share their random numbers
            if rng.random() < self._fault.probability:
                action = random
        elif isinstance(space, gym.spaces.Box):
            largest = np.maximum(np.abs(space.low), np.abs(space.high))
            noise = self._fault.deviation * largest * rng.standard_normal(space.shape)
            action = np.clip(np.asarray(action) + noise, space.low, space.high).astype(space.dtype)
        return self.env.step(action)


@dataclass(frozen=True)
class TyreGrip(Perturbation):
    """The friction limit of the road is multiplied by `grip`.

    Braking distances grow by 1 / `grip`. Grass keeps its limit, 0.6 of the road's: gymnasium gives a wheel the larger
    of grass and road. At 0.6 the road is as slippery as grass, and a smaller value would change nothing.
    """

    needs_car_racing = True

    grip: float
    """Fraction of the road's friction limit, 0.6 to 1."""

    def __post_init__(self) -> None:
        if not GRASS_GRIP <= self.grip <= 1:
            raise ValueError(
                f"grip must lie in [{GRASS_GRIP}, 1], got {self.grip}; below {GRASS_GRIP}, the grip of grass, the "
                "simulator changes nothing."
            )

    def wrap(self, env: gym.Env, stream: Stream, episode_frames: int, bar_top: int | None) -> gym.Env:
        return WeakTyres(env, self)


class WeakTyres(gym.Wrapper):
    """Environment whose resets scale the friction of all tiles.

    Interventions keep it.

    Raises:
        ValueError: If `env` is not a CarRacing.
    """

    def __init__(self, env: gym.Env, tyres: TyreGrip):
        if not isinstance(env.unwrapped, CarRacing):
            raise ValueError(f"weaker tyres need CarRacing's road tiles, got {env.unwrapped}; leave weak-tyres out.")
        super().__init__(env)
        self._tyres = tyres

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = self.env.reset(seed=seed, options=options)
        simulator: Any = self.unwrapped
        simulator.grip *= self._tyres.grip
        return observation, info


def _zero_action(space: gym.Space) -> Any:
    """Return zero, or the action nearest to it."""
    if isinstance(space, gym.spaces.Discrete):
        return np.int64(0).clip(space.start, space.start + space.n - 1)
    zero = np.zeros(space.shape or (), space.dtype)
    return zero.clip(space.low, space.high) if isinstance(space, gym.spaces.Box) else zero
