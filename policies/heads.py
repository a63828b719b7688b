"""The ends of a driver: frames in, actions out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

FRAMES_PER_CHUNK = 64
"""Frames are convolved in groups of this many: the intermediate images then stay in the CPU's caches."""


VISIONS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "paper": ((10, 3, 0), (20, 5, 0), (30, 5, 0)),  # NAC paper, Table 4: 2430 features of a 96 x 96 frame
    "compact": ((16, 5, 2), (32, 3, 1), (32, 3, 1), (16, 3, 1)),  # 576 features: a third of the parameters
}
"""Name -> filters, kernel and padding of every convolution.

Without padding every stride of 2 may leave out the last row and column. The paper's convolutions so miss the last five
of a frame's 96, among them half of the speed gauge; `compact` sees the whole frame, as driving near the limit must."""


class VisionHead(nn.Module):
    """Convolutions of stride 2 with ReLU, dropout, a dense layer, LayerNorm.

    layers: filters, kernel and padding of every convolution, see `VISIONS`; what is padded counts as black. The paper
    hands its 2430 features to the recurrent layer itself; here one dense layer brings them to `features`, so that every
    core has the same, moderate input. Neighbouring frames are nearly equal and mostly grass: without centred pixels and
    LayerNorm the features grow together until they saturate the core, which then learns no more than how often each
    action occurs.

    Raises ValueError if the frames are too small for the convolutions, or not of three channels.
    """

    def __init__(
        self,
        frame_shape: tuple[int, int, int],
        features: int,
        dropout: float,
        layers: tuple[tuple[int, int, int], ...] = VISIONS["paper"],
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
        """frames (..., H, W, 3), uint8 in 0..255 or float in 0..1 -> features (..., features)."""
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
        """images (n, 3, H, W) -> (n, C h w)."""
        first: Any = self.convolutions[0]
        x = F.conv2d(images, weight, bias, stride=2, padding=first.padding).relu_()  # (n, C1, H/2, W/2)
        for conv in list(self.convolutions)[1:]:
            x = conv(x).relu_()  # (n, C, h, w), h and w halved
        return x.flatten(1)


class DiscreteActionHead(nn.Module):
    """Dense (ReLU), then five logits: nothing, right, left, gas, brake."""

    size = 5

    def __init__(self, d_model: int, dense: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(d_model, dense)
        self.out = nn.Linear(dense, self.size)

    def forward(self, y: Tensor) -> Tensor:
        """y (..., d) -> logits (..., 5)."""
        return self.out(self.hidden(y).relu_())

    @staticmethod
    def loss(prediction: Tensor, target: Tensor, weight: Tensor | None = None, classes: Tensor | None = None) -> Tensor:
        """Cross-entropy of logits (..., 5) with actions (...) int64: the mean weighted by `weight` (...) per frame
        times `classes` (5,) per action. A frame of weight 0 plays no part."""
        loss = F.cross_entropy(prediction.flatten(0, -2), target.flatten(), reduction="none").view(target.shape)
        if classes is not None:
            weight = classes[target] if weight is None else weight * classes[target]
        return _weighted_mean(loss, weight)

    @staticmethod
    def action(prediction: Tensor) -> np.ndarray:
        """Logits (..., 5) -> the best action (...), int64."""
        return prediction.argmax(dim=-1).numpy(force=True)


class ContinuousActionHead(nn.Module):
    """Dense (ReLU), then steering in [-1, 1] (+1 is right), gas and brake in [0, 1]."""

    size = 3

    def __init__(self, d_model: int, dense: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(d_model, dense)
        self.out = nn.Linear(dense, self.size)

    def forward(self, y: Tensor) -> Tensor:
        """y (..., d) -> action (..., 3)."""
        z = self.out(self.hidden(y).relu_())
        return torch.cat((z[..., :1].tanh(), z[..., 1:].sigmoid()), dim=-1)

    @staticmethod
    def loss(prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        """Squared error of actions (..., 3), averaged over the three controls; the mean is weighted by `weight` (...)
        per frame. A frame of weight 0 plays no part."""
        return _weighted_mean((prediction - target).square().mean(dim=-1), weight)

    @staticmethod
    def action(prediction: Tensor) -> np.ndarray:
        """The prediction (..., 3) as float32."""
        return prediction.float().numpy(force=True)


def _weighted_mean(loss: Tensor, weight: Tensor | None) -> Tensor:
    return loss.mean() if weight is None else (loss * weight).sum() / weight.sum()


ACTION_HEADS: dict[str, type[DiscreteActionHead] | type[ContinuousActionHead]] = {
    "discrete": DiscreteActionHead,
    "continuous": ContinuousActionHead,
}
