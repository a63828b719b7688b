"""The form of an encoder: convolutions and their features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

_CHUNK = 64
"""Frames that a CPU convolves at a time: the intermediate images then stay in its caches."""
_CHUNK_ON_CUDA = 2048
"""Frames that a GPU convolves at a time. It waits for the starts of many small kernels; this bounds its memory."""


class Encoder(nn.Module, ABC):
    """A network from frames to features.

    Frames are (..., H, W, 3), uint8 in 0..255 or float in 0..1; features are (..., features).

    `prepare` is the part without weights. What learns from the same frames many times does it once.
    """

    convolutions: nn.ModuleList
    """Convolutions, each followed by ReLU."""
    image_size: tuple[int, int]
    """Height and width of the image that the first of them sees."""

    def forward(self, frames: Tensor) -> Tensor:
        """Return features (..., features) of frames (..., H, W, 3)."""
        return self.encode(self.prepare(frames))

    def prepare(self, frames: Tensor) -> Tensor:
        """Return frames (..., H, W, 3) as `encode` takes them."""
        return frames

    @abstractmethod
    def encode(self, prepared: Tensor) -> Tensor:
        """Return the features (..., features) of what `prepare` returned.

        It is (..., shape of one frame's part).
        """

    @abstractmethod
    def maps(self, prepared: Tensor) -> Iterator[Tensor]:
        """Yield the maps (n, C, h, w) of every convolution.

        They come after ReLU, from what `prepare` returned (n, ...).
        """

    @abstractmethod
    def read(self, maps: Tensor, prepared: Tensor) -> Tensor:
        """Return the features (n, features) of the maps of the last convolution."""


def in_chunks(frames: Tensor, smaller: int = 1) -> tuple[Tensor, ...]:
    """Split frames into groups to convolve.

    Args:
        frames: (n, ...).
        smaller: How many times smaller they are than the frames of a camera.
    """
    return frames.split(smaller * (_CHUNK_ON_CUDA if frames.is_cuda else _CHUNK))


def strided_convolutions(
    channels: int, size: tuple[int, int], layers: Sequence[Sequence[int]]
) -> tuple[nn.ModuleList, int]:
    """Return convolutions and the number of their features.

    They are channels last in memory.

    Args:
        channels: Channels of an image.
        size: Its height and width.
        layers: Filters, kernel, padding and stride of every convolution; without a stride, 2.
    """
    convolutions, (height, width) = nn.ModuleList(), size
    for filters, kernel, padding, *given in layers:
        stride = given[0] if given else 2
        conv = nn.Conv2d(channels, filters, kernel, stride=stride, padding=padding)
        conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)
        convolutions.append(conv)
        height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
        channels = filters
    return convolutions, channels * height * width


def last_maps(maps: Iterator[Tensor]) -> Tensor:
    """Return the maps of the last convolution. The others are freed as soon as the next ones are there."""
    return deque(maps, maxlen=1)[0]
