"""Action heads: features in, actions out."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
