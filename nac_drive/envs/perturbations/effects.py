"""Effects of drawn corruptions on frames (..., H, W, 3) uint8.

Their fields are all that decides the result, so that another library can apply them: on a GPU
`nac_drive.training.data.device_effects` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

FrameArray = NDArray[np.uint8]
Effect = Callable[[FrameArray], FrameArray]
"""A function from frames (..., H, W, 3) uint8 to corrupted frames, a new array."""

ROAD = 103.0
"""Mean grey of the road, 0-255."""
GRASS = 100.0
"""By how much the green of grass exceeds its red and blue, at least."""


@dataclass(frozen=True)
class Noise:
    """Normal noise on every value, then clipped."""

    rng: np.random.Generator
    deviation: np.float32
    """Standard deviation, 0-255."""

    def __call__(self, frames: FrameArray) -> FrameArray:
        values = self.rng.standard_normal(frames.shape, dtype=np.float32)
        values *= self.deviation
        values += frames
        return _uint8(values)


@dataclass(frozen=True)
class BlackAndWhite:
    """Random pixels become black or white, equally likely."""

    rng: np.random.Generator
    fraction: float
    """Probability of a pixel."""

    def __call__(self, frames: FrameArray) -> FrameArray:
        chance = self.rng.random(frames.shape[:-1], dtype=np.float32)  # (..., H, W)
        result = frames.copy()
        result[chance < 0.5 * self.fraction] = 0
        result[chance >= 1.0 - 0.5 * self.fraction] = 255
        return result


@dataclass(frozen=True)
class Gain:
    """All values are multiplied."""

    gain: float

    @property
    def table(self) -> FrameArray:
        """(256,): the new value of each value."""
        return _uint8(self.gain * np.arange(256, dtype=np.float32))

    def __call__(self, frames: FrameArray) -> FrameArray:
        return self.table[frames]


@dataclass(frozen=True)
class Light:
    """Every pixel has its own light."""

    light: NDArray[np.float32]
    """(H, W, 1) in [0, 1]."""

    def __call__(self, frames: FrameArray) -> FrameArray:
        return _uint8(frames * self.light)


@dataclass(frozen=True)
class Blend:
    """Every pixel is mixed with a picture."""

    opacity: NDArray[np.float32]
    """(H, W, 1) in [0, 1]: fraction of the picture."""
    picture: NDArray[np.float32]
    """(H, W, 3), or (1, 1, 1) of one grey, 0-255."""

    def __call__(self, frames: FrameArray) -> FrameArray:
        values = frames * (1 - self.opacity)
        values += self.opacity * self.picture
        return _uint8(values)


KERNEL_UNIT = 256
"""Kernels are whole multiples of 1 / 256, so that every order of a sum gives the same bits."""


@dataclass(frozen=True)
class Convolved:
    """The world is convolved with one kernel."""

    kernel: NDArray[np.float32]
    """(3, 3, 3, 3): weight of (new channel, old channel, row, column), whole numbers of `KERNEL_UNIT`."""
    rows: int
    """Rows above the status bar."""

    def __call__(self, frames: FrameArray) -> FrameArray:
        result = frames.copy()
        for frame, new in zip(
            frames.reshape(-1, *frames.shape[-3:]), result.reshape(-1, *frames.shape[-3:]), strict=True
        ):
            planes = cv2.split(frame[: self.rows].astype(np.float32))
            for i, of_channel in enumerate(self.kernel):
                parts = [cv2.filter2D(plane, -1, part) for plane, part in zip(planes, of_channel, strict=True)]
                new[: self.rows, :, i] = _uint8(np.sum(parts, axis=0) / np.float32(KERNEL_UNIT))
        return result


@dataclass(frozen=True)
class Toned:
    """Every value of the world is replaced by another one."""

    table: NDArray[np.uint8]
    """(256, 3): the new value for every old one, of each channel."""
    rows: int
    """Rows above the status bar."""

    def __call__(self, frames: FrameArray) -> FrameArray:
        result = frames.copy()
        world = frames[..., : self.rows, :, :]
        result[..., : self.rows, :, :] = self.table[world, np.arange(3)]
        return result


@dataclass(frozen=True)
class Hidden:
    """Some pixels are black."""

    visible: NDArray[np.uint8]
    """(H, W, 1): 1 or, where it is hidden, 0."""

    def __call__(self, frames: FrameArray) -> FrameArray:
        return frames * self.visible


@dataclass(frozen=True)
class Recolour:
    """Road and grass move in RGB."""

    road: NDArray[np.float32]
    """(3,) shift of the road, 0-255."""
    grass: NDArray[np.float32]
    """(3,) shift of the grass."""
    rows: int
    """Rows above the status bar."""

    def __call__(self, frames: FrameArray) -> FrameArray:
        planes = [frames[..., : self.rows, :, i].astype(np.float32) for i in range(3)]  # each (..., rows, W)
        red_or_blue = np.maximum(planes[0], planes[2])
        low = np.minimum(np.minimum(planes[0], planes[2]), planes[1])
        high = np.maximum(red_or_blue, planes[1])
        green = np.clip((planes[1] - red_or_blue) / GRASS, 0.0, 1.0)
        grey = np.clip(1.0 - (high - low) / GRASS, 0.0, 1.0)
        grey *= np.clip((low - 0.8 * ROAD) / (0.1 * ROAD), 0.0, 1.0)  # neither black tyres
        grey *= np.clip((2.0 * ROAD - low) / (0.5 * ROAD), 0.0, 1.0)  # nor white kerbs
        result = frames.copy()
        for i, plane in enumerate(planes):
            result[..., : self.rows, :, i] = _uint8(plane + grey * self.road[i] + green * self.grass[i])
        return result


@dataclass(frozen=True)
class Chain:
    """Several effects, the first one first."""

    effects: tuple[Effect, ...]

    def __call__(self, frames: FrameArray) -> FrameArray:
        for effect in self.effects:
            frames = effect(frames)
        return frames


def _uint8(values: NDArray[np.float32]) -> FrameArray:
    """Return `values` rounded and clipped to 0-255. Overwrites `values`."""
    np.rint(values, out=values)
    return np.clip(values, 0, 255, out=values).astype(np.uint8)
