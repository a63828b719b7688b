"""The ends of a driver: frames in, actions out (NAC paper, Table 4: three convolutions 10-20-30, dense 64)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

FRAMES_PER_CHUNK = 64
"""Frames are convolved in groups of this many: the intermediate images then stay in the CPU's caches."""


class VisionHead(nn.Module):
    """Three convolutions (10, 20, 30 filters; kernels 3, 5, 5; stride 2; ReLU), dropout, a dense layer, LayerNorm.

    The convolutions turn a 96 x 96 frame into 2430 features. The paper hands those to the recurrent layer itself; here
    one dense layer brings them to `features`, so that every core has the same, moderate input. Neighbouring frames are
    nearly equal and mostly grass: without centred pixels and LayerNorm the features grow together until they saturate
    the core, which then learns no more than how often each action occurs.

    Raises ValueError if the frames are too small for three convolutions, or not of three channels.
    """

    def __init__(self, frame_shape: tuple[int, int, int], features: int, dropout: float) -> None:
        super().__init__()
        height, width, channels = frame_shape
        for kernel in (3, 5, 5):
            height, width = (height - kernel) // 2 + 1, (width - kernel) // 2 + 1
        if channels != 3 or height < 1 or width < 1:
            raise ValueError(f"frame_shape: must be (H >= 27, W >= 27, 3), got {tuple(frame_shape)}.")
        self.conv1 = nn.Conv2d(3, 10, 3, stride=2)
        self.conv2 = nn.Conv2d(10, 20, 5, stride=2)
        self.conv3 = nn.Conv2d(20, 30, 5, stride=2)
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(30 * height * width, features)
        self.norm = nn.LayerNorm(features)
        for conv in (self.conv1, self.conv2, self.conv3):
            conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)

    def forward(self, frames: Tensor) -> Tensor:
        """frames (..., H, W, 3), uint8 in 0..255 or float in 0..1 -> features (..., features)."""
        batch = frames.shape[:-3]
        images = frames.flatten(0, -4).permute(0, 3, 1, 2)  # (N, 3, H, W), channels last in memory: no copy
        scale = 255.0 if frames.dtype == torch.uint8 else 1.0
        weight = self.conv1.weight / scale  # folds the scaling to 0..1
        offset: Any = self.conv1.bias
        bias = offset - 0.5 * self.conv1.weight.sum(dim=(1, 2, 3))  # and the centring around 0.5
        maps = [self._convolve(chunk.to(weight.dtype), weight, bias) for chunk in images.split(FRAMES_PER_CHUNK)]
        features = maps[0] if len(maps) == 1 else torch.cat(maps)  # (N, 30 h w)
        return self.norm(self.dense(self.dropout(features))).unflatten(0, batch)

    def _convolve(self, images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """images (n, 3, H, W) -> (n, 30 h w)."""
        x = F.conv2d(images, weight, bias, stride=2).relu_()  # (n, 10, H/2, W/2)
        x = self.conv2(x).relu_()  # (n, 20, H/4, W/4)
        x = self.conv3(x).relu_()  # (n, 30, h, w)
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
