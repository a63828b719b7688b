"""Action heads: features in, actions out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

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

    def relative(self, action: Tensor) -> Tensor:
        """Return logits or actions as they are, see `ContinuousActionHead.relative`."""
        return action

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


PartRanges = Sequence[tuple[float, float]]
CAR_RACING: PartRanges = ((-1.0, 1.0), (0.0, 1.0), (0.0, 1.0))
"""Ranges of steering (+1 is right), gas and brake."""


class ContinuousActionHead(nn.Module):
    """Dense layer with ReLU, then K numbers in their ranges.

    A number from 0 on, such as gas, is a sigmoid times its largest value. Any other one, such as steering, is a tanh
    that is stretched to its range.

    Args:
        d_model: Features of the input.
        dense: Units of the dense layer.
        ranges: The least and the largest value of each number.
    """

    low: Tensor
    high: Tensor
    scale: Tensor
    middle: Tensor

    def __init__(self, d_model: int, dense: int, ranges: PartRanges = CAR_RACING) -> None:
        super().__init__()
        self.hidden = nn.Linear(d_model, dense)
        self.out = nn.Linear(dense, len(ranges))
        self.signed = [low != 0 for low, _ in ranges]
        """Whether each number is a tanh."""
        units = [(-1.0 if signed else 0.0, 1.0) for signed in self.signed]
        self._of_units = list(ranges) == units
        """The ranges are [-1, 1] and [0, 1], so that nothing is stretched."""
        low, high = torch.tensor(ranges, dtype=torch.float32).T
        signed = torch.tensor(self.signed)
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)
        self.register_buffer("scale", torch.where(signed, (high - low) / 2, high), persistent=False)
        self.register_buffer("middle", torch.where(signed, (high + low) / 2, 0.0), persistent=False)

    def forward(self, y: Tensor) -> Tensor:
        """Return the action (..., K) of features y (..., d)."""
        return self.squash(self.out(self.hidden(y).relu_()))

    def squash(self, z: Tensor) -> Tensor:
        """Return the action (..., K) of any numbers (..., K)."""
        return self.stretched(self._by_part(z, torch.tanh, torch.sigmoid))

    def stretched(self, units: Tensor) -> Tensor:
        """Stretch numbers in [-1, 1] and [0, 1] to actions (..., K)."""
        if self._of_units:
            return units
        middle, scale, low, high = (part.to(units.device) for part in (self.middle, self.scale, self.low, self.high))
        return (middle + scale * units).clamp(low, high)

    def relative(self, action: Tensor) -> Tensor:
        """Return an action (..., K) relative to its ranges.

        Its numbers are in [-1, 1] and [0, 1], so that their errors count alike.
        """
        return action if self._of_units else (action - self.middle) / self.scale

    def fractions(self, z: Tensor) -> Tensor:
        """Return places within the ranges of any numbers (..., K).

        They are 0 to 1.
        """
        return self._by_part(z, lambda part: (part.tanh() + 1) / 2, torch.sigmoid)

    def of_fractions(self, fractions: Tensor) -> Tensor:
        """Return the action (..., K) at places within the ranges."""
        return self.stretched(self._by_part(fractions, lambda part: 2 * part - 1, lambda part: part))

    def _by_part(
        self, values: Tensor, signed: Callable[[Tensor], Tensor], positive: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Map signed and positive numbers by a function each."""
        lengths = [len(list(alike)) for _, alike in groupby(self.signed)]
        kinds = [kind for kind, _ in groupby(self.signed)]
        runs = values.split(lengths, dim=-1)
        return torch.cat([(signed if kind else positive)(run) for kind, run in zip(kinds, runs, strict=True)], dim=-1)

    @staticmethod
    def loss(prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the weighted squared error over all numbers.

        Args:
            prediction: Predicted actions, (..., K).
            target: Actions, (..., K).
            weight: Weight of each frame, (...); None for 1. A frame of weight 0 has no effect.
        """
        return _weighted_mean((prediction - target).square().mean(dim=-1), weight)

    @staticmethod
    def action(prediction: Tensor) -> np.ndarray:
        """Return the prediction (..., K) as float32."""
        return prediction.float().numpy(force=True)


_LEAST = torch.finfo(torch.float32).tiny


def _weighted_mean(loss: Tensor, weight: Tensor | None) -> Tensor:
    return loss.mean() if weight is None else (loss * weight).sum() / weight.sum().clamp(min=_LEAST)


ActionHead = DiscreteActionHead | ContinuousActionHead


def build_action_head(
    control: str, d_model: int, dense: int, num_actions: int, ranges: PartRanges = CAR_RACING
) -> ActionHead:
    """Return the head for `control`.

    The discrete one has `num_actions` outputs, others have one for each of `ranges`.
    """
    return (
        DiscreteActionHead(d_model, dense, num_actions)
        if control == "discrete"
        else ContinuousActionHead(d_model, dense, ranges)
    )
