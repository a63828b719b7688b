"""The shifted tasks of AttentionAgent at their published settings.

Tang, Nguyen and Ha, Neuroevolution of self-interpretable agents, 2020, train on clean frames and drive in these. The
settings are read in their code, google/brain-tokyo-workshop, AttentionAgent/car_racing_variants, car_racing.py and
car_dynamics.py (commit dcf3704). They have one level. docs/shifts.md says where these
frames differ from theirs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.box2d.car_racing import STATE_H, STATE_W, WINDOW_H, WINDOW_W
from numpy.typing import NDArray

from nac_drive.envs.car_racing import CarRacing
from nac_drive.envs.perturbations.base import Perturbation
from nac_drive.envs.perturbations.effects import FrameArray
from nac_drive.envs.perturbations.stream import Stream
from nac_drive.envs.wrappers import wrappers_of

RED = (204, 0, 0)
"""The colour of the car, and of the blob."""
_PERTURBATIONS = __name__.rpartition(".")[0]
GRASS_GREENS = (202, 228)
"""Green of the two shades of grass in a frame: 204 and 230 before gymnasium scales its picture down."""


@dataclass(frozen=True)
class PublishedTask(Perturbation):
    """Base class of the published tasks.

    They change the simulator's own frame, so they come before other perturbations.
    """

    needs_car_racing = True

    def wrap(self, env: gym.Env, stream: Stream, episode_frames: int, bar_top: int | None) -> gym.Env:
        return PublishedFrames(env, self, stream, bar_top)

    def check(self, simulator: CarRacing, below: list[gym.Env]) -> None:
        """Check that the task has a meaning in an environment.

        Args:
            simulator: The simulator.
            below: Its perturbations so far.

        Raises:
            ValueError: It has none.
        """
        if not all(isinstance(layer, PublishedFrames) for layer in below):
            raise ValueError("a published task changes the simulator's frame; name it before other perturbations.")

    @abstractmethod
    def begin(self, simulator: CarRacing, rng: np.random.Generator, bar_top: int) -> Callable[[FrameArray], FrameArray]:
        """Return the function from frames to frames of an episode.

        Args:
            simulator: The simulator, after its reset.
            rng: Source of all randomness, of the returned function too.
            bar_top: First row below the world.
        """


@dataclass(frozen=True)
class PublishedColours(PublishedTask):
    """Road and grass become lighter or darker.

    It is AttentionAgent's CarRacingColor. A number, uniform from minus `shift` to `shift`, is added to red, green and
    blue of the road, another one to the grass, white being 1. They are drawn once. The lighter patches of the grass
    keep their colour. The frame is drawn anew, so this perturbation comes first. After car_racing.py, lines 356 to 364
    and 515 to 522.
    """

    shift: float

    def check(self, simulator: CarRacing, below: list[gym.Env]) -> None:
        if below:
            raise ValueError("published-colour draws the frame anew, so it comes first; name it before the others.")

    def begin(self, simulator: CarRacing, rng: np.random.Generator, bar_top: int) -> Callable[[FrameArray], FrameArray]:
        road, grass = np.rint(255 * rng.uniform(-self.shift, self.shift, 2)).astype(int).tolist()

        def repainted(frame: FrameArray) -> FrameArray:
            result = frame.copy()  # perhaps with a masked status bar
            result[:bar_top] = simulator.frame_repainted(road, grass)[:bar_top]
            return result

        return repainted


@dataclass(frozen=True)
class PublishedBars(PublishedTask):
    """A black upright bar stands at either side.

    It is AttentionAgent's CarRacingBar. A pixel is black if its centre lies within `width` of a side, as a fraction of
    the frame's width. After car_racing.py, lines 553 to 563.
    """

    width: float

    def begin(self, simulator: CarRacing, rng: np.random.Generator, bar_top: int) -> Callable[[FrameArray], FrameArray]:
        def barred(frame: FrameArray) -> FrameArray:
            across = (np.arange(frame.shape[1]) + 0.5) / frame.shape[1]
            result = frame.copy()
            result[:bar_top, np.minimum(across, 1 - across) < self.width] = 0
            return result

        return barred


@dataclass(frozen=True)
class PublishedBlob(PublishedTask):
    """A red square goes with the car.

    It is AttentionAgent's CarRacingBlob. The square's side, and the distances of its near corner from the car to the
    right and ahead, are in the simulator's units. A pixel is red if its centre lies inside. It is drawn in the car's
    own frame and grows with the opening zoom. After car_dynamics.py, lines 240 to 251.
    """

    side: float
    right: float
    ahead: float

    def check(self, simulator: CarRacing, below: list[gym.Env]) -> None:
        super().check(simulator, below)
        _require_above(simulator, "published-blob")

    def begin(self, simulator: CarRacing, rng: np.random.Generator, bar_top: int) -> Callable[[FrameArray], FrameArray]:
        rows, columns = np.mgrid[:STATE_H, :STATE_W] + 0.5
        right = (columns / STATE_W - 0.5) * WINDOW_W  # from the car, in pixels of gymnasium's window
        ahead = (0.75 - rows / STATE_H) * WINDOW_H

        def marked(frame: FrameArray) -> FrameArray:
            x, y = right / simulator.zoom - self.right, ahead / simulator.zoom - self.ahead  # from its near corner
            result = frame.copy()
            result[(x >= 0) & (x < self.side) & (y >= 0) & (y < self.side)] = RED
            return result

        return marked


@dataclass(frozen=True)
class PublishedNoise(PublishedTask):
    """The grass is noise.

    It is AttentionAgent's CarRacingNoise. Each value of each of its pixels is uniform in 0 to `largest`, anew in every
    frame. The grass is where the clean frame has the green of one of its two shades; pixels that mix it with something
    else stay. After car_racing.py, lines 499 to 505.
    """

    largest: int

    def check(self, simulator: CarRacing, below: list[gym.Env]) -> None:
        super().check(simulator, below)
        _require_above(simulator, "published-noise")

    def begin(self, simulator: CarRacing, rng: np.random.Generator, bar_top: int) -> Callable[[FrameArray], FrameArray]:
        def noisy(frame: FrameArray) -> FrameArray:
            grass = np.isin(simulator.state[..., 1], GRASS_GREENS)  # (H, W)
            grass[bar_top:] = False
            noise: NDArray[np.uint8] = rng.integers(self.largest, size=frame.shape, dtype=np.uint8, endpoint=True)
            return np.where(grass[..., None], noise, frame)

        return noisy


class PublishedFrames(gym.ObservationWrapper):
    """Environment under a `PublishedTask`.

    `env.unwrapped.state`, rewards, physics and dt stay as they are.

    Raises:
        ValueError: If `env` is not a CarRacing, and as `PublishedTask.check`.
    """

    def __init__(self, env: gym.Env, task: PublishedTask, stream: Stream, bar_top: int | None):
        simulator = env.unwrapped
        if not isinstance(simulator, CarRacing):
            raise ValueError(f"a published task needs CarRacing's picture, got {simulator}; leave it out.")
        task.check(simulator, [layer for layer in wrappers_of(env) if _PERTURBATIONS in type(layer).__module__])
        super().__init__(env)
        self._task, self._stream = task, stream
        self._bar_top = simulator.size[1] if bar_top is None else bar_top

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = self.env.reset(seed=seed, options=options)
        simulator: Any = self.unwrapped
        self._change = self._task.begin(simulator, self._stream.restart(seed), self._bar_top)
        return self._change(observation), info

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return self._change(observation)


def _require_above(simulator: CarRacing, name: str) -> None:
    if simulator.view != "above":
        raise ValueError(f"{name} is drawn in the view from above, got the view {simulator.view!r}; leave it out.")
