"""What may happen to a drive: corrupted pictures, actions that come late or wrong, tyres that slip.

A wrapper takes a setting and, where chance plays a part, a `Stream` of its own. None of these touches `info["dt"]`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.box2d.car_racing import CarRacing as GymnasiumCarRacing

from nac_drive.envs.perturbations.stream import Stream

GRASS_GRIP = 0.6
"""Friction limit of grass over that of the road; gymnasium never lets a wheel have less."""


@dataclass(frozen=True)
class ActionDelay:
    """What the driver decides is done `frames` frames later. Until the first decision arrives, nothing is done."""

    frames: int

    def __post_init__(self) -> None:
        if self.frames < 0:
            raise ValueError(f"frames must be at least 0, got {self.frames}; an action cannot come early.")


class DelayedActions(gym.Wrapper):
    """`ActionDelay`: frame i executes the action of frame i - delay. Pictures and dt are as they were."""

    def __init__(self, env: gym.Env, delay: ActionDelay):
        super().__init__(env)
        self._delay = delay

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self._waiting = deque([_nothing(self.action_space)] * self._delay.frames)
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        self._waiting.append(action)
        return self.env.step(self._waiting.popleft())


@dataclass(frozen=True)
class ActionFault:
    """An unreliable actuator, independently in every frame.

    Discrete actions: with `probability` a random one (which may be the intended one) is executed. Continuous: normal noise
    of standard deviation `deviation` is added to steer, gas and brake, then clipped to the action space.
    """

    probability: float
    deviation: float

    def __post_init__(self) -> None:
        require_probability(self.probability)
        if not 0 <= self.deviation < float("inf"):
            raise ValueError(f"deviation must be at least 0 and finite, got {self.deviation}; steering spans [-1, 1].")


class FaultyActions(gym.Wrapper):
    """`ActionFault`: the simulator gets another action than the driver chose. Pictures and dt are as they were."""

    def __init__(self, env: gym.Env, fault: ActionFault, stream: Stream):
        super().__init__(env)
        self._fault, self._stream = fault, stream

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self._stream.restart(seed)
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        rng, space = self._stream.rng, self.action_space
        if isinstance(space, gym.spaces.Discrete):
            random = space.start + rng.integers(space.n)  # drawn in any case: levels share the chance
            if rng.random() < self._fault.probability:
                action = random
        elif isinstance(space, gym.spaces.Box):
            noise = self._fault.deviation * rng.standard_normal(space.shape)
            action = np.clip(np.asarray(action) + noise, space.low, space.high).astype(space.dtype)
        return self.env.step(action)


@dataclass(frozen=True)
class TyreGrip:
    """The road grips with the share `grip` of its friction limit.

    Grass stays as it is, 0.6 of the road's limit: gymnasium gives a wheel the larger of grass and road. So at 0.6 the
    road is as slippery as grass, and less would change nothing.
    """

    grip: float

    def __post_init__(self) -> None:
        if not GRASS_GRIP <= self.grip <= 1:
            raise ValueError(
                f"grip must lie in [{GRASS_GRIP}, 1], got {self.grip}; below {GRASS_GRIP}, the grip of grass, the "
                "simulator changes nothing."
            )


class WeakTyres(gym.Wrapper):
    """`TyreGrip`: the friction of every road tile is scaled after each reset, and holds after an intervention too."""

    def __init__(self, env: gym.Env, tyres: TyreGrip):
        if not isinstance(env.unwrapped, GymnasiumCarRacing):
            raise TypeError(f"weaker tyres need CarRacing's road tiles, got {env.unwrapped}; wrap make_env's.")
        super().__init__(env)
        self._tyres = tyres

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = self.env.reset(seed=seed, options=options)
        simulator: Any = self.unwrapped
        for tile in simulator.road:
            tile.road_friction *= self._tyres.grip
        return observation, info


def _nothing(space: gym.Space) -> Any:
    """The action that does nothing: 0 of discrete actions, or neither steer, gas nor brake."""
    return np.int64(0) if isinstance(space, gym.spaces.Discrete) else np.zeros(space.shape or (), space.dtype)


def require_probability(value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"a probability must lie in [0, 1], got {value}; 0.1 means every tenth frame.")
