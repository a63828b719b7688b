"""Lost frames, and the driver's observation instead of them.

`info["dt"]` is the time in seconds since the previous query of the driver. It is true under every loss: its sum over an
episode is the time by which the simulator has advanced.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from nac_drive.envs.car_racing import CarRacing
from nac_drive.envs.perturbations.base import require_probability
from nac_drive.envs.perturbations.stream import Stream
from nac_drive.envs.perturbations.timing import TimedPerturbation, Timing
from nac_drive.envs.wrappers import look, wrappers_of
from nac_drive.plain import whole

Missing = Literal["hold", "zero", "skip"]


@dataclass(frozen=True)
class FrameLoss(TimedPerturbation):
    """Base class of perturbations that lose frames."""

    missing: Missing = field(default="hold", kw_only=True)
    """Replacement of a lost frame.

    hold: the last frame that arrived. zero: a black frame. Under both the driver is queried at every frame, dt is the
    usual 1/50 s, and `info["frame_lost"]` marks lost frames.
    skip: none. The driver is not queried, its last action stays, and the next frame that arrives has a longer dt.
    """

    def __post_init__(self) -> None:
        if self.missing not in get_args(Missing):
            raise ValueError(f"missing must be one of {get_args(Missing)}, got {self.missing!r}.")

    def wrap(self, env: gym.Env, stream: Stream, episode_frames: int, bar_top: int | None) -> gym.Env:
        return (SkippedFrames if self.missing == "skip" else StaleFrames)(env, self, stream)

    def retime(self, timing: Timing, rng: np.random.Generator) -> Timing:
        queries = len(timing.rows)
        return timing.lose(self.lost_of(queries, rng), self.missing)

    def lost_of(self, queries: int, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Draw the lost frames of a recorded sequence, (queries,) bool.

        The first frame is never lost.
        """
        return np.fromiter(itertools.islice(self.lost(rng), queries), np.bool_, queries)

    @abstractmethod
    def lost(self, rng: np.random.Generator) -> Iterator[bool]:
        """Iterate over the frames of an episode: is it lost?

        Args:
            rng: Source of all randomness.

        Yields:
            False for frame 0, which `reset` returns; then one value per simulator frame, without end.
        """


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
class Blackouts(FrameLoss):
    """Frames are lost in blackouts of irregular length, `frames` on average, which cover a `fraction` of the time.

    A Markov chain with two states (E. N. Gilbert, Capacity of a burst-noise channel, 1960): a blackout goes on in the
    next frame with probability 1 - 1 / `frames`. Lengths and distances are geometric, so none can be foreseen.
    """

    fraction: float
    frames: int
    missing: Missing = field(default="zero", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        most = self.frames / (self.frames + 1) if self.frames > 0 else 0.0
        if not (self.frames >= 1 and 0 <= self.fraction <= most):
            raise ValueError(
                f"frames must be at least 1 and fraction in [0, frames / (frames + 1)], got {self.frames} and "
                f"{self.fraction}: between two blackouts one frame arrives."
            )

    def lost(self, rng: np.random.Generator) -> Iterator[bool]:
        leave = 1 / self.frames
        enter = leave * self.fraction / (1 - self.fraction)
        lost = False
        while True:
            yield lost
            lost = bool(rng.random() < (1 - leave if lost else enter))


@dataclass(frozen=True)
class Gaps(FrameLoss):
    """A `fraction` of the `frames` of an episode is lost in `pieces` gaps, evenly spaced.

    A single gap lies in the middle. The protocol is taken from PDNA, section 4, here in closed loop. The places are
    fixed, so that all drivers meet the same gaps. An episode that ends before its last gap loses less than `fraction`.
    """

    fraction: float
    pieces: int = 1
    frames: int = 1000
    missing: Missing = field(default="zero", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.fraction < 1:
            raise ValueError(f"fraction must lie in [0, 1), got {self.fraction}; 0.05 takes away 5 % of the frames.")
        if min(whole("pieces", self.pieces), whole("frames", self.frames)) < 1:
            raise ValueError(f"pieces and frames must be at least 1, got {self.pieces} and {self.frames}.")

    def wrap(self, env: gym.Env, stream: Stream, episode_frames: int, bar_top: int | None) -> gym.Env:
        return FrameLoss.wrap(replace(self, frames=episode_frames), env, stream, episode_frames, bar_top)

    def lost_of(self, queries: int, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Place the gaps of a recorded sequence at random.

        A sequence counts as an episode (PDNA, section 4).
        """
        lost = np.zeros(queries, dtype=np.bool_)
        for span in replace(self, frames=queries).spans():
            lost[span] = True
        lost = np.roll(lost, rng.integers(queries))
        lost[0] = False
        return lost

    def spans(self) -> list[range]:
        """Return the frames of each gap."""
        removed = round(self.fraction * self.frames)
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
    """The next frame comes after n/50 s, and n is drawn each time.

    n is i + 1 with probability `weights[i]`. The physics advance by n frames under one action, and the n - 1 frames
    between are lost.
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


@dataclass(frozen=True)
class EveryNth(FrameLoss):
    """One frame of `frames` arrives, and every action is held for as many (action repeat)."""

    frames: int
    missing: Missing = field(default="skip", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("frames", self.frames, 1)

    def lost(self, rng: np.random.Generator) -> Iterator[bool]:
        return itertools.chain((False,), itertools.cycle([True] * (self.frames - 1) + [False]))


class _LossyEnv(gym.Wrapper):
    """Base class of environments under a `FrameLoss`. A copy has no episode and begins with a reset."""

    def __init__(self, env: gym.Env, loss: FrameLoss, stream: Stream):
        super().__init__(env)
        self._loss, self._stream = loss, stream
        self._lost: Iterator[bool] = iter(())

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_lost": iter(())}


class StaleFrames(_LossyEnv):
    """Environment under a `FrameLoss` that queries at every frame.

    `missing` is hold or zero.

    dt is the environment's own. `info["frame_lost"]` is true where the observation is not the present frame.
    """

    def __init__(self, env: gym.Env, loss: FrameLoss, stream: Stream):
        super().__init__(env, loss, stream)
        self.frame_lost = False
        """True while the observation is not the present frame; privileged drivers read it."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = self.env.reset(seed=seed, options=options)
        self._lost = self._loss.lost(self._stream.restart(seed))
        return self._arriving(observation, info)

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation, info = self._arriving(observation, info)
        return observation, reward, terminated, truncated, info

    def _arriving(self, observation: np.ndarray, info: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
        lost = next(self._lost)
        self.frame_lost = lost or info.get("frame_lost", False)
        info = info | {"frame_lost": self.frame_lost}
        if not lost:
            self._last = observation.copy()
            return observation, info
        return self._last.copy() if self._loss.missing == "hold" else np.zeros_like(observation), info


class SkippedFrames(_LossyEnv):
    """Environment under a `FrameLoss` that skips lost frames.

    The last action stays meanwhile.

    dt and reward are the sums over the frames that passed. `info["crash"]` is the first crash among them. CarRacing
    draws only the frames that arrive, and the last frame of an episode. If every frame is lost, the first action stays
    until the episode ends.
    """

    def __init__(self, env: gym.Env, loss: FrameLoss, stream: Stream):
        super().__init__(env, loss, stream)
        self._simulator: CarRacing | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = self.env.reset(seed=seed, options=options)
        simulator = self.env.unwrapped
        needs_all = any(isinstance(layer, StaleFrames) for layer in wrappers_of(self.env))  # it may return a past one
        self._simulator = simulator if isinstance(simulator, CarRacing) and not needs_all else None
        self._lost = self._loss.lost(self._stream.restart(seed))
        next(self._lost)
        return observation, info

    def step(self, action):
        total, dt, crash = 0.0, 0.0, None
        while True:
            lost = next(self._lost, False)  # without an episode the environment refuses the step
            observation, reward, terminated, truncated, info = self._advance(action, draw=not lost)
            total += float(reward)
            dt += info["dt"]
            crash = crash or info.get("crash")
            if not lost or terminated or truncated:
                if lost and self._simulator and self._simulator.observe:
                    observation = look(self.env)
                info = info | {"dt": dt} | ({"crash": crash} if "crash" in info else {})
                return observation, total, terminated, truncated, info

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
    """Environment that holds every action and draws the last frame.

    Rewards are summed. The episode ends in the frame in which it ends without this wrapper. `info` belongs to the last
    frame, with dt the time of all of them and `crash` the first crash among them.

    Args:
        env: The environment.
        frames: Simulator frames per action, at least 1.

    Raises:
        ValueError: If `frames` is less than 1.
    """

    def __init__(self, env: gym.Env, frames: int):
        super().__init__(env, EveryNth(frames), Stream("action-repeat"))
