"""Perturbations of images, for closed loop and for training.

`draw` of a corruption is called once per episode, or once per training sequence. It returns a function of frames
(..., H, W, 3) uint8, one frame or any batch of them. Static patterns (shadows, lines, occlusions, colours, exposure)
are drawn by `draw` and are the same on every frame. Noise is drawn for every pixel of every frame. Frames are never
changed in place.

Noise, exposure and erased rectangles belong to the camera and reach the status bar too. Shadows, lines, occlusions and
colours belong to the world: the status bar, which is drawn over the image, keeps its pixels.
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
    KERNEL_UNIT,
    BlackAndWhite,
    Blend,
    Convolved,
    Effect,
    Gain,
    Hidden,
    Light,
    Noise,
    Recolour,
    Toned,
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
        _require("variance", self.variance, 0.0, float("inf"), "images lie in [0, 1]; such as 0.1.")

    def draw(self, rng: np.random.Generator, size: FrameSize) -> Effect:
        return Noise(rng, np.float32(255.0 * np.sqrt(self.variance)))


@dataclass(frozen=True)
class SaltAndPepper(Corruption):
    """Every pixel of every frame turns black or white, equally likely, with probability `fraction`."""

    fraction: float

    def __post_init__(self) -> None:
        _require("fraction", self.fraction, 0.0, 1.0, "it is the fraction of pixels.")

    def draw(self, rng: np.random.Generator, size: FrameSize) -> Effect:
        return BlackAndWhite(rng, self.fraction)


@dataclass(frozen=True)
class Brightness(Corruption):
    """The exposure is wrong.

    All values are multiplied or, equally likely, divided by `factor`.
    """

    factor: float

    def __post_init__(self) -> None:
        _require("factor", self.factor, 1.0, float("inf"), "its inverse is drawn too, so pass 2 rather than 0.5.")

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
        _require("lines", self.lines, 0, float("inf"), "it is a number of lines.")
        _require("opacity", self.opacity, 0.0, 1.0, "it is the fraction of light that is taken away.")

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
        _require("opacity", self.opacity, 0.0, 1.0, "it is the fraction of the line's colour in a pixel.")

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
        _require("bars", self.bars, 0, float("inf"), "it is a number of bars.")
        _require("width", self.width, 0.0, 1.0, "it is a fraction of the image.")
        _require("bars x width", self.bars * self.width, 0.0, 1.0, "the bars must fit into the image.")

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
        _require("fraction", self.fraction, 0.0, 0.9, "it is the fraction of the image that is hidden.")

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
        _require("distance", self.distance, 0.0, 255.0, "it is a distance in RGB.")

    def draw(self, rng: np.random.Generator, size: FrameSize) -> Effect:
        directions = rng.standard_normal((2, 3))
        shifts = self.distance * directions / np.linalg.norm(directions, axis=1, keepdims=True)
        road, grass = shifts.astype(np.float32)
        return Recolour(road, grass, size.world_rows)


@dataclass(frozen=True)
class RandomConvolution(Corruption):
    """The world is convolved with a random kernel.

    The kernel has 3 x 3 pixels, from all colours to all colours. The result is mixed with the image, `share` of it.
    Shapes stay; colours, contrasts and sharpness change. The kernel is drawn once: its weights are normal, and their
    sum is uniform in 0.5 to 1.5 for every new colour. After Lee et al., Network randomization, 2020, and Xu et al.,
    RandConv, 2021.
    """

    share: float

    def __post_init__(self) -> None:
        _require("share", self.share, 0.0, 1.0, "it is the share of the convolved image.")

    def draw(self, rng: np.random.Generator, size: FrameSize) -> Effect:
        kernel = rng.standard_normal((3, 3, 3, 3)) / np.sqrt(27.0)  # (new, old, row, column)
        kernel += (rng.uniform(0.5, 1.5, (3, 1, 1, 1)) - kernel.sum(axis=(1, 2, 3), keepdims=True)) / 27.0
        kernel *= self.share
        kernel[np.arange(3), np.arange(3), 1, 1] += 1.0 - self.share
        return Convolved(np.rint(KERNEL_UNIT * kernel).astype(np.float32), size.world_rows)


@dataclass(frozen=True)
class ToneCurves(Corruption):
    """Every channel of the world gets a random tone curve.

    A curve leads from old values to new ones in straight lines through five random points, so it may fall, too. The
    result is mixed with the image, `share` of it. The curves are drawn once. After the nonlinear transformation of
    Zhou et al., Models Genesis, 2019, whose curves rise throughout or fall throughout.
    """

    share: float

    def __post_init__(self) -> None:
        _require("share", self.share, 0.0, 1.0, "it is the share of the new image.")

    def draw(self, rng: np.random.Generator, size: FrameSize) -> Effect:
        values = np.arange(256.0)
        points = rng.uniform(0.0, 255.0, (3, 5))
        curves = np.stack([np.interp(values, np.linspace(0.0, 255.0, 5), heights) for heights in points], axis=1)
        mixed = (1.0 - self.share) * values[:, None] + self.share * curves
        return Toned(np.rint(mixed).astype(np.uint8), size.world_rows)


@dataclass(frozen=True)
class RandomOverlay(Corruption):
    """A random picture lies over the world, `opacity` of it.

    The picture has soft coloured patches and is drawn once.
    """

    opacity: float

    def __post_init__(self) -> None:
        _require("opacity", self.opacity, 0.0, 1.0, "it is the fraction of the picture in a pixel.")

    def draw(self, rng: np.random.Generator, size: FrameSize) -> Effect:
        opacity = np.zeros((size.height, size.width, 1), np.float32)
        opacity[: size.world_rows] = self.opacity
        return Blend(opacity, _picture(rng, size))


@dataclass(frozen=True)
class CutOut(Corruption):
    """Coloured triangles hide at least the `fraction` of the world.

    Places, shapes and colours are drawn once. After DeVries and Taylor, Cutout, 2017, whose pieces are squares.
    """

    fraction: float

    def __post_init__(self) -> None:
        _require("fraction", self.fraction, 0.0, 0.9, "it is the fraction of the image that is hidden.")

    def draw(self, rng: np.random.Generator, size: FrameSize) -> Effect:
        height, width, world_rows = size
        hidden = np.zeros((height, width), np.uint8)
        while hidden[:world_rows].mean() < self.fraction:
            centre = rng.random(2) * (width, world_rows)
            corners = centre + rng.uniform(-0.3, 0.3, (3, 2)) * height
            cv2.fillPoly(hidden, [np.rint(corners).astype(np.int32)], 1)
            hidden[world_rows:] = 0
        return Blend(hidden[..., None].astype(np.float32), _picture(rng, size))


@dataclass(frozen=True)
class RandomErasing(Corruption):
    """Rectangles hide parts of the image.

    Each of the `rectangles` is drawn once: its area is uniform from 2 % to the `fraction` of the image, its height is
    0.3 to 3.3 times its width, and equally likely it is black, white, grey or full of random pixels. After Zhong et
    al., Random erasing, 2020, with one rectangle of up to 40 %. A side that is too long becomes as long as the image;
    there, such a rectangle is drawn anew.
    """

    rectangles: int
    fraction: float

    def __post_init__(self) -> None:
        _require("rectangles", self.rectangles, 0, float("inf"), "it is a number of rectangles.")
        _require("fraction", self.fraction, 0.02, 0.9, "it is the largest fraction of the image in one rectangle.")

    def draw(self, rng: np.random.Generator, size: FrameSize) -> Effect:
        opacity = np.zeros((size.height, size.width, 1), np.float32)
        picture = np.zeros((size.height, size.width, 3), np.float32)
        for _ in range(self.rectangles):
            area = rng.uniform(0.02, self.fraction) * size.height * size.width
            ratio = np.exp(rng.uniform(np.log(0.3), -np.log(0.3)))
            height = min(round(np.sqrt(area * ratio)), size.height)
            width = min(round(np.sqrt(area / ratio)), size.width)
            top = rng.integers(0, size.height - height, endpoint=True)
            left = rng.integers(0, size.width - width, endpoint=True)
            erased = np.s_[top : top + height, left : left + width]
            opacity[erased] = 1.0
            pixels = rng.uniform(0.0, 255.0, (height, width, 3))
            picture[erased] = (0.0, 128.0, 255.0, pixels)[rng.integers(4)]
        return Blend(opacity, picture)


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


def _picture(rng: np.random.Generator, size: FrameSize) -> NDArray[np.float32]:
    """Draw a picture (H, W, 3) of soft patches, 0-255.

    A quarter of all pictures are flat. Every value of a patch is uniform in -128 to 383 and clipped, so that half of
    them are black or full.
    """
    cells = max(rng.integers(-2, 12, endpoint=True), 1)  # patches along a side
    colours = np.clip(rng.uniform(-128.0, 383.0, (cells, cells, 3)), 0.0, 255.0).astype(np.float32)
    picture: NDArray[np.float32] = np.asarray(cv2.resize(colours, (size.width, size.height)), np.float32)
    return picture


def _blacked_out(hidden: NDArray[np.bool_]) -> Effect:
    return Hidden((~hidden).astype(np.uint8)[..., None])


def _require(name: str, value: float, low: float, high: float, hint: str) -> None:
    if not low <= value <= high or value == float("inf"):
        interval = f"at least {low:g} and finite" if high == float("inf") else f"in [{low:g}, {high:g}]"
        raise ValueError(f"{name} must be {interval}, got {value}; {hint}")
