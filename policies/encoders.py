"""Encoders: frames in, features out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FRAMES_PER_CHUNK = 64
"""Frames are convolved in groups of this size: the intermediate images then stay in the CPU's caches."""


class ConvEncoder(nn.Module):
    """Convolutions of stride 2 with ReLU, dropout, a dense layer, LayerNorm.

    The NAC paper passes its 2430 features to the recurrent layer. Here a dense layer reduces them to `features`, so
    that every core has the same, moderate input. Neighbouring frames are nearly equal and mostly grass: without centred
    pixels and LayerNorm the features grow together until they saturate the core, which then learns the frequency of
    each action and nothing else.

    Args:
        frame_shape: Height, width and channels of a frame.
        features: Number of output features.
        dropout: Fraction of convolutional features dropped in training.
        layers: Filters, kernel and padding of every convolution. Padding counts as black.

    Raises:
        ValueError: The frames are too small for the convolutions, or do not have three channels.
    """

    def __init__(
        self,
        frame_shape: tuple[int, int, int],
        features: int,
        dropout: float,
        layers: tuple[tuple[int, int, int], ...],
    ) -> None:
        super().__init__()
        height, width, channels = frame_shape
        least = 1
        for _, kernel, padding in reversed(layers):
            least = max(2 * (least - 1) + kernel - 2 * padding, 1)
        if channels != 3 or height < least or width < least:
            raise ValueError(f"frame_shape: must be (H >= {least}, W >= {least}, 3), got {tuple(frame_shape)}.")
        self.convolutions = nn.ModuleList()
        for filters, kernel, padding in layers:
            conv = nn.Conv2d(channels, filters, kernel, stride=2, padding=padding)
            conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)
            self.convolutions.append(conv)
            height, width = ((size + 2 * padding - kernel) // 2 + 1 for size in (height, width))
            channels = filters
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(channels * height * width, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, frames: Tensor) -> Tensor:
        """Return features (..., features) of frames (..., H, W, 3), uint8 in 0..255 or float in 0..1."""
        batch = frames.shape[:-3]
        images = frames.flatten(0, -4).permute(0, 3, 1, 2)  # (N, 3, H, W), channels last in memory: no copy
        scale = 255.0 if frames.dtype == torch.uint8 else 1.0
        first: Any = self.convolutions[0]
        weight = first.weight / scale  # folds the scaling to 0..1
        bias = first.bias - 0.5 * first.weight.sum(dim=(1, 2, 3))  # and the centring around 0.5
        maps = [self._convolve(chunk.to(weight.dtype), weight, bias) for chunk in images.split(FRAMES_PER_CHUNK)]
        features = maps[0] if len(maps) == 1 else torch.cat(maps)  # (N, C h w)
        return self.norm(self.dense(self.dropout(features))).unflatten(0, batch)

    def _convolve(self, images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Convolve images (n, 3, H, W) to (n, C h w)."""
        first: Any = self.convolutions[0]
        x = F.conv2d(images, weight, bias, stride=2, padding=first.padding).relu_()  # (n, C1, H/2, W/2)
        for conv in list(self.convolutions)[1:]:
            x = conv(x).relu_()  # (n, C, h, w), h and w halved
        return x.flatten(1)


def zero_black(features: Tensor, frames: Tensor) -> Tensor:
    """Return features (..., d), zeros where the frame (..., H, W, 3) is black all over."""
    return features * frames.flatten(-3).any(dim=-1, keepdim=True)


class ZeroBlack(nn.Module):
    """An encoder whose features are zeros where a frame is black all over."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, frames: Tensor) -> Tensor:
        """Return features (..., d) of frames (..., H, W, 3)."""
        return zero_black(self.encoder(frames), frames)


PAPER = ((10, 3, 0), (20, 5, 0), (30, 5, 0))
"""Filters, kernel and padding (NAC paper, Table 4; the middle layer and the strides are those of the published code):
2430 features of a 96 x 96 frame."""
COMPACT = ((16, 5, 2), (32, 3, 1), (32, 3, 1), (16, 3, 1))
"""576 features, a third of the parameters. Without padding every stride of 2 may leave out the last row and column. The
paper's convolutions miss five of a frame's 96 rows and columns, with half of the speed gauge; these miss none."""

ENCODERS: dict[str, Callable[[tuple[int, int, int], int, float], nn.Module]] = {
    "paper": partial(ConvEncoder, layers=PAPER),
    "compact": partial(ConvEncoder, layers=COMPACT),
}
"""Name -> (frame_shape, features, dropout) -> module: frames (..., H, W, 3) -> features (..., features)."""
