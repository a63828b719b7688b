"""Changes of images that are made for training.

They change much, and are none of the tasks that a driver is tested on (docs/shifts.md). They perturb, too. Erased
rectangles reach the status bar, all others leave it as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from nac_drive.envs.perturbations.effects import KERNEL_UNIT, Blend, Convolved, Effect, Toned
from nac_drive.envs.perturbations.images import Corruption, FrameSize, require


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
        require("share", self.share, 0.0, 1.0, "it is the share of the convolved image.")

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
        require("share", self.share, 0.0, 1.0, "it is the share of the new image.")

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
        require("opacity", self.opacity, 0.0, 1.0, "it is the fraction of the picture in a pixel.")

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
        require("fraction", self.fraction, 0.0, 0.9, "it is the fraction of the image that is hidden.")

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
        require("rectangles", self.rectangles, 0, float("inf"), "it is a number of rectangles.")
        require("fraction", self.fraction, 0.02, 0.9, "it is the largest fraction of the image in one rectangle.")

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


def _picture(rng: np.random.Generator, size: FrameSize) -> NDArray[np.float32]:
    """Draw a picture (H, W, 3) of soft patches, 0-255.

    A quarter of all pictures are flat. Every value of a patch is uniform in -128 to 383 and clipped, so that half of
    them are black or full.
    """
    cells = max(rng.integers(-2, 12, endpoint=True), 1)  # patches along a side
    colours = np.clip(rng.uniform(-128.0, 383.0, (cells, cells, 3)), 0.0, 255.0).astype(np.float32)
    picture: NDArray[np.float32] = np.asarray(cv2.resize(colours, (size.width, size.height)), np.float32)
    return picture
