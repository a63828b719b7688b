"""Perturbations of images, for closed loop and for training.

`draw` of a corruption is called once per episode, or once per training sequence. It returns a function of frames
(..., H, W, 3) uint8, one frame or any batch of them. Static patterns (shadows, lines, occlusions, colours, exposure)
are drawn by `draw` and are the same on every frame. Noise is drawn for every pixel of every frame. Frames are never
changed in place.

Noise and exposure belong to the camera and reach the status bar too. Shadows, lines, occlusions and colours belong to
the world: the status bar, which is drawn over the image, keeps its pixels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import cv2
import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from nac_drive.envs.perturbations.base import Perturbation
from nac_drive.envs.perturbations.effects import (
    BlackAndWhite,
    Blend,
    Effect,
    Gain,
    Hidden,
    Light,
    Noise,
    Recolour,
)
from nac_drive.envs.perturbations.stream import Stream


class FrameSize(NamedTuple):
    """Size of a frame, in pixels."""

    height: int
    width: int
    world_rows: int
    """Rows above the status bar."""

    @classmethod
    def of(cls, frame_shape: Sequence[int], bar_top: int | None) -> FrameSize:
        """Return the size (height, width) of the world in frames.

        A status bar begins at row `bar_top`; None for no bar.
        """
        height, width = frame_shape[:2]
        return cls(height, width, height if bar_top is None else min(bar_top, height))


@dataclass(frozen=True)
class Corruption(Perturbation):
    """Base class of perturbations of images, for training too."""

    def wrap(self, env: gym.Env, stream: Stream, episode_frames: int, bar_top: int | None) -> gym.Env:
        return CorruptedFrames(env, self, stream, bar_top)

    @abstractmethod
    def draw(self, rng: np.random.Generator, size: FrameSize) -> Effect:
        """Draw the corruption of one episode or training sequence.

        Args:
            rng: Source of all randomness, of the returned function too.
            size: Size of the frames, in pixels.

        Returns:
            A function from frames (..., H, W, 3) uint8 to corrupted frames, a new array.
        """


@dataclass(frozen=True)
class GaussianNoise(Corruption):
    """Independent normal noise on every channel of every pixel of every frame, on images in [0, 1].

    `variance` is that before the result is clipped to [0, 1]. Clipping removes a part of it: on mid-grey,
    0.1 / 0.2 / 0.3 leave 0.081 / 0.118 / 0.138. After Hasani's thesis, ch. 6.
    """

    variance: float

    def __post_init__(self) -> None:
        require("variance", self.variance, 0.0, float("inf"), "images lie in [0, 1]; such as 0.1.")

    def draw(self, rng: np.random.Generator, size: FrameSize) -> Effect:
        return Noise(rng, np.float32(255.0 * np.sqrt(self.variance)))


@dataclass(frozen=True)
class SaltAndPepper(Corruption):
    """Every pixel of every frame turns black or white, equally likely, with probability `fraction`."""

    fraction: float

    def __post_init__(self) -> None:
        require("fraction", self.fraction, 0.0, 1.0, "it is the fraction of pixels.")

    def draw(self, rng: np.random.Generator, size: FrameSize) -> Effect:
        return BlackAndWhite(rng, self.fraction)


@dataclass(frozen=True)
class Brightness(Corruption):
    """The exposure is wrong.

    All values are multiplied or, equally likely, divided by `factor`.
    """

    factor: float

    def __post_init__(self) -> None:
        require("factor", self.factor, 1.0, float("inf"), "its inverse is drawn too, so pass 2 rather than 0.5.")

    def draw(self, rng: np.random.Generator, size: FrameSize) -> Effect:
        return Gain(self.factor if rng.random() < 0.5 else 1.0 / self.factor)


@dataclass(frozen=True)
class Shadows(Corruption):
    """Semi-transparent dark lines across the image. They take away the fraction `opacity` of the light.

    Places, angles and widths (6 to 16 % of the height) of the `lines` are drawn once. Crossings are not darker.
    """

    lines: int
    opacity: float

    def __post_init__(self) -> None:
        require("lines", self.lines, 0, float("inf"), "it is a number of lines.")
        require("opacity", self.opacity, 0.0, 1.0, "it is the fraction of light that is taken away.")

    def draw(self, rng: np.random.Generator, size: FrameSize) -> Effect:
        shade = _lines(rng, size, self.lines)
        return Light((1.0 - self.opacity / 255.0 * shade).astype(np.float32)[..., None])


@dataclass(frozen=True)
class Line(Corruption):
    """One semi-transparent line across the image, black or, equally likely, white, of the given `opacity`.

    Place, angle and width (6 to 16 % of the height) are uniform and, like the colour, drawn once. After the shadow
    augmentation of Hasani's thesis, section 6.2, which draws a line over each training image and gives no numbers.
    """

    opacity: float

    def __post_init__(self) -> None:
        require("opacity", self.opacity, 0.0, 1.0, "it is the fraction of the line's colour in a pixel.")

    def draw(self, rng: np.random.Generator, size: FrameSize) -> Effect:
        opacity = (self.opacity / 255.0 * _lines(rng, size, 1)).astype(np.float32)[..., None]
        return Blend(opacity, np.full((1, 1, 1), 0.0 if rng.random() < 0.5 else 255.0, np.float32))


@dataclass(frozen=True)
class OcclusionBars(Corruption):
    """Black bars lie across the world.

    They do not overlap, and are all upright or all level. `width` is the width of one bar, as a fraction of the world's
    width or height.
    """

    bars: int
    width: float

    def __post_init__(self) -> None:
        require("bars", self.bars, 0, float("inf"), "it is a number of bars.")
        require("width", self.width, 0.0, 1.0, "it is a fraction of the image.")
        require("bars x width", self.bars * self.width, 0.0, 1.0, "the bars must fit into the image.")

    def draw(self, rng: np.random.Generator, size: FrameSize) -> Effect:
        hidden = np.zeros((size.height, size.width), bool)
        upright = rng.random() < 0.5
        world = hidden[: size.world_rows]
        across = world if upright else world.T  # a view whose columns the bars fill
        length = across.shape[1]
        thickness = min(round(self.width * length), length // max(1, self.bars))
        gaps = np.sort(rng.integers(0, length - self.bars * thickness, self.bars, endpoint=True))
        for i, gap in enumerate(gaps):
            across[:, gap + i * thickness : gap + (i + 1) * thickness] = True
        return _blacked_out(hidden)


@dataclass(frozen=True)
class OcclusionBlobs(Corruption):
    """Black ellipses, as of dirt on the lens, hide at least the `fraction` of the world."""

    fraction: float

    def __post_init__(self) -> None:
        require("fraction", self.fraction, 0.0, 0.9, "it is the fraction of the image that is hidden.")

    def draw(self, rng: np.random.Generator, size: FrameSize) -> Effect:
        height, width, world_rows = size
        hidden = np.zeros((height, width), np.uint8)
        world = hidden[:world_rows]
        while world.mean() < self.fraction:
            centre = np.rint(rng.random(2) * (width, world_rows)).astype(int)
            axes = np.maximum(1, np.rint(rng.uniform(0.05, 0.15, 2) * height)).astype(int)
            cv2.ellipse(hidden, centre.tolist(), axes.tolist(), rng.uniform(0, 180), 0, 360, 1, -1)
        world_only = hidden.astype(bool)
        world_only[world_rows:] = False
        return _blacked_out(world_only)


@dataclass(frozen=True)
class ColourChange(Corruption):
    """Road and grass take other colours.

    Each moves by `distance` in RGB (0-255), in its own direction. The directions are drawn once. The colour of a pixel
    decides: green is grass, middle grey is road, a mixed pixel at the edge moves with both. Car, kerbs and status bar
    keep their colours. The two shades of grass keep their difference. Values are clipped to 0-255.
    """

    distance: float

    def __post_init__(self) -> None:
        require("distance", self.distance, 0.0, 255.0, "it is a distance in RGB.")

    def draw(self, rng: np.random.Generator, size: FrameSize) -> Effect:
        directions = rng.standard_normal((2, 3))
        shifts = self.distance * directions / np.linalg.norm(directions, axis=1, keepdims=True)
        road, grass = shifts.astype(np.float32)
        return Recolour(road, grass, size.world_rows)


class CorruptedFrames(gym.ObservationWrapper):
    """Environment with corrupted observations. `env.unwrapped.state`, rewards, physics and dt stay as they are."""

    def __init__(self, env: gym.Env, corruption: Corruption, stream: Stream, bar_top: int | None):
        super().__init__(env)
        self._corruption, self._stream, self._bar_top = corruption, stream, bar_top

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = self.env.reset(seed=seed, options=options)
        size = FrameSize.of(observation.shape, self._bar_top)
        self._effect = self._corruption.draw(self._stream.restart(seed), size)
        return self._effect(observation), info

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return self._effect(observation)


def _lines(rng: np.random.Generator, size: FrameSize, count: int) -> NDArray[np.uint8]:
    """Draw lines across the world as coverage (H, W), 0-255.

    It is 255 inside of a line, less along its edges, and 0 elsewhere.
    """
    height, width, world_rows = size
    drawn = np.zeros((height, width), np.uint8)
    for _ in range(count):
        centre = rng.random(2) * (width, world_rows)
        angle, thickness = rng.uniform(0, np.pi), rng.uniform(0.06, 0.16) * height
        reach = (height + width) * np.array([np.cos(angle), np.sin(angle)])
        start, end = np.rint(centre - reach).astype(int), np.rint(centre + reach).astype(int)
        cv2.line(drawn, start.tolist(), end.tolist(), 255, max(1, round(thickness)), cv2.LINE_AA)
    drawn[world_rows:] = 0
    return drawn


def _blacked_out(hidden: NDArray[np.bool_]) -> Effect:
    return Hidden((~hidden).astype(np.uint8)[..., None])


def require(name: str, value: float, low: float, high: float, hint: str) -> None:
    """Raise ValueError unless a setting lies in [low, high]."""
    if not low <= value <= high or value == float("inf"):
        interval = f"at least {low:g} and finite" if high == float("inf") else f"in [{low:g}, {high:g}]"
        raise ValueError(f"{name} must be {interval}, got {value}; {hint}")
