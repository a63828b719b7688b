"""Action heads: features in, actions out."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DiscreteActionHead(nn.Module):
    """Dense layer with ReLU, then A logits. CarRacing has five actions: nothing, right, left, gas, brake."""

    def __init__(self, d_model: int, dense: int, num_actions: int = 5) -> None:
        super().__init__()
        self.hidden = nn.Linear(d_model, dense)
        self.out = nn.Linear(dense, num_actions)

    def forward(self, y: Tensor) -> Tensor:
        """Return the logits (..., A) of features y (..., d)."""
        return self.out(self.hidden(y).relu_())

    @staticmethod
    def loss(prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the weighted mean of the cross-entropy. A frame of weight 0 has no effect.

        Args:
            prediction: Logits, (..., A).
            target: Actions, (...) int64.
            weight: Weight of each frame, (...); None for 1.
        """
        loss = F.cross_entropy(prediction.flatten(0, -2), target.flatten(), reduction="none").view(target.shape)
        return _weighted_mean(loss, weight)

    @staticmethod
    def action(prediction: Tensor) -> np.ndarray:
        """Return the best action (...), int64, of logits (..., A)."""
        return prediction.argmax(dim=-1).numpy(force=True)


class ContinuousActionHead(nn.Module):
    """Dense layer with ReLU, then steering in [-1, 1] (+1 is right), gas and brake in [0, 1]."""

    def __init__(self, d_model: int, dense: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(d_model, dense)
        self.out = nn.Linear(dense, 3)

    def forward(self, y: Tensor) -> Tensor:
        """Return the action (..., 3) of features y (..., d)."""
        return self.squash(self.out(self.hidden(y).relu_()))

    @staticmethod
    def squash(z: Tensor) -> Tensor:
        """Return the action (..., 3) of any numbers (..., 3)."""
        return torch.cat((z[..., :1].tanh(), z[..., 1:].sigmoid()), dim=-1)

    @staticmethod
    def loss(prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the squared error, weighted, over three controls.

        Args:
            prediction: Predicted actions, (..., 3).
            target: Actions, (..., 3).
            weight: Weight of each frame, (...); None for 1. A frame of weight 0 has no effect.
        """
        return _weighted_mean((prediction - target).square().mean(dim=-1), weight)

    @staticmethod
    def action(prediction: Tensor) -> np.ndarray:
        """Return the prediction (..., 3) as float32."""
        return prediction.float().numpy(force=True)


_LEAST = torch.finfo(torch.float32).tiny


def _weighted_mean(loss: Tensor, weight: Tensor | None) -> Tensor:
    return loss.mean() if weight is None else (loss * weight).sum() / weight.sum().clamp(min=_LEAST)


ActionHead = DiscreteActionHead | ContinuousActionHead


def build_action_head(control: str, d_model: int, dense: int, num_actions: int) -> ActionHead:
    """Return the head for `control`. Only the discrete one has `num_actions` outputs."""
    return (
        DiscreteActionHead(d_model, dense, num_actions)
        if control == "discrete"
        else ContinuousActionHead(d_model, dense)
    )
