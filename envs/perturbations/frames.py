"""Frames that do not arrive: which ones are lost, and what the driver gets instead.

`info["dt"]` is the time in seconds since the driver was last asked. It is true under every loss: its sum over an
episode is the time by which the simulator has advanced.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np

from nac_drive.envs.car_racing import CarRacing
from nac_drive.envs.perturbations.dynamics import require_probability
from nac_drive.envs.perturbations.stream import Stream
from nac_drive.envs.wrappers import look

Missing = Literal["hold", "zero", "skip"]


@dataclass(frozen=True)
class FrameLoss(ABC):
    """Which frames of an episode do not arrive, and what happens then."""

    missing: Missing = field(default="hold", kw_only=True)
    """What the driver gets instead of a frame.

    hold: the last frame that arrived, again. zero: a black one. In both the driver is asked at every frame and dt is
    the 1/50 s since it was last asked; `info["frame_lost"]` tells what the picture does not.
    skip: nothing. It is not asked, its last action stays, and the next frame that arrives has a longer dt.
    """

    def __post_init__(self) -> None:
        if self.missing not in get_args(Missing):
            raise ValueError(f"missing must be one of {get_args(Missing)}, got {self.missing!r}.")

    @abstractmethod
    def lost(self, rng: np.random.Generator) -> Iterator[bool]:
        """Whether frame 0 (that of the reset, which never is), 1, 2, ... of one episode is lost. It never ends."""


@dataclass(frozen=True)
class FrameDrop(FrameLoss):
    """Every frame is lost with `probability`, independently of all others."""

    probability: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require_probability(self.probability)

    def lost(self, rng: np.random.Generator) -> Iterator[bool]:
        yield False
        while True:
            yield bool(rng.random() < self.probability)


@dataclass(frozen=True)
class Gaps(FrameLoss):
    """`pieces` gaps on end without a frame, evenly spaced, together `share` of an episode of `frames` frames.

    The gapped protocol of PDNA (section 4), in closed loop: the places are fixed, a single gap lies in the middle.
    An episode that ends before its last gap loses less than `share`; the gaps do not move, so that drivers are
    compared under the same ones. `info["frame_lost"]` tells what was really lost.
    """

    share: float
    pieces: int = 1
    frames: int = 1000
    missing: Missing = field(default="zero", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.share < 1:
            raise ValueError(f"share must lie in [0, 1), got {self.share}; 0.05 takes away 5 % of the frames.")
        if self.pieces < 1 or self.frames < 1:
            raise ValueError(f"pieces and frames must be at least 1, got {self.pieces} and {self.frames}.")

    def spans(self) -> list[range]:
        """The frames of each gap."""
        removed = round(self.share * self.frames)
        lengths = [removed * (i + 1) // self.pieces - removed * i // self.pieces for i in range(self.pieces)]
        spans, gone = [], 0
        for i, length in enumerate(lengths, 1):
            start = (self.frames - removed) * i // (self.pieces + 1) + gone
            spans.append(range(start, start + length))
            gone += length
        return spans

    def lost(self, rng: np.random.Generator) -> Iterator[bool]:
        gone = set().union(*self.spans())
        return (frame in gone and frame > 0 for frame in itertools.count())


@dataclass(frozen=True)
class IrregularRate(FrameLoss):
    """A camera without a clock: dt = n/50 s with n drawn anew each time, n = i + 1 with probability `weights[i]`.

    The physics advance by n frames under one action; the n - 1 frames between are lost.
    """

    weights: tuple[float, ...]
    missing: Missing = field(default="skip", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for weight in self.weights:
            require_probability(weight)
        if not np.isclose(sum(self.weights), 1.0):
            raise ValueError(f"weights must sum to 1, got {self.weights} with the sum {sum(self.weights):g}.")

    def lost(self, rng: np.random.Generator) -> Iterator[bool]:
        yield False
        while True:
            yield from [True] * int(rng.choice(len(self.weights), p=self.weights))
            yield False


class StaleFrames(gym.Wrapper):
    """`FrameLoss` with `missing` hold or zero: the driver is asked at every frame, whatever arrives.

    dt is the environment's own. `info["frame_lost"]`: the observation is not the present frame.
    """

    def __init__(self, env: gym.Env, loss: FrameLoss, stream: Stream):
        super().__init__(env)
        self._loss, self._stream = loss, stream

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = self.env.reset(seed=seed, options=options)
        self._lost = self._loss.lost(self._stream.restart(seed))
        return self._arriving(observation), info | {"frame_lost": self._lost_now or info.get("frame_lost", False)}

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation = self._arriving(observation)
        told = {"frame_lost": self._lost_now or info.get("frame_lost", False)}
        return observation, reward, terminated, truncated, info | told

    def _arriving(self, observation: np.ndarray) -> np.ndarray:
        self._lost_now = next(self._lost)
        if not self._lost_now:
            self._last = observation.copy()
            return observation
        return self._last.copy() if self._loss.missing == "hold" else np.zeros_like(observation)


class SkippedFrames(gym.Wrapper):
    """`FrameLoss` with `missing` skip: while frames are lost the driver is not asked and its action stays.

    dt is the sum of those of the frames that passed, the reward theirs as well; a crash in a frame between is told.
    CarRacing draws only the frames that arrive, and the last one of an episode, which nobody acts on. Where every
    frame is lost, the first action stays until the episode ends.
    """

    def __init__(self, env: gym.Env, loss: FrameLoss, stream: Stream):
        super().__init__(env)
        self._loss, self._stream = loss, stream
        simulator = env.unwrapped
        needs_all = any(isinstance(layer, StaleFrames) for layer in _layers(env))  # it hands out frames from between
        self._simulator = simulator if isinstance(simulator, CarRacing) and not needs_all else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = self.env.reset(seed=seed, options=options)
        self._lost = self._loss.lost(self._stream.restart(seed))
        next(self._lost)
        return observation, info

    def step(self, action):
        total, dt, crash = 0.0, 0.0, None
        while True:
            lost = next(self._lost)
            observation, reward, terminated, truncated, info = self._advance(action, draw=not lost)
            total += float(reward)
            dt += info["dt"]
            crash = crash or info.get("crash")
            if not lost or terminated or truncated:
                if lost and self._simulator and self._simulator.observe:
                    observation = look(self.env)
                told = {"dt": dt} | ({"crash": crash} if "crash" in info else {})
                return observation, total, terminated, truncated, info | told

    def _advance(self, action: Any, *, draw: bool) -> tuple[Any, ...]:
        if self._simulator is None:
            return self.env.step(action)
        before = self._simulator.observe
        self._simulator.observe = before and draw
        try:
            return self.env.step(action)
        finally:
            self._simulator.observe = before


class ActionRepeat(SkippedFrames):
    """Takes every action for `frames` frames and shows the last one; the others are not drawn.

    Goes around what `make_env` returns. Rewards are summed. The episode ends in the frame in which it ends without this
    wrapper. `info` is that of the last frame, with dt the time of all of them and crash the first one among them.
    """

    def __init__(self, env: gym.Env, frames: int):
        if frames < 1:
            raise ValueError(f"frames must be at least 1, got {frames}.")
        super().__init__(env, IrregularRate((0.0,) * (frames - 1) + (1.0,)), Stream("action-repeat"))


def _layers(env: gym.Env) -> Iterator[gym.Env]:
    """`env` and all that it wraps."""
    yield env
    while isinstance(env, gym.Wrapper):
        env = env.env
        yield env
