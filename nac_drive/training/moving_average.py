"""A moving average of the weights.

It is validated and saved instead of the weights.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Generic, TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)
_LISTS: Any = torch  # torch's own optimizers use its operations on lists, which have no public names


class MovingAverage(Generic[Module]):
    """The exponential moving average of a model's weights.

    It is updated after every update of the model, all weights at once: on a GPU that is a few kernels, and nothing
    waits for it. Buffers are copied.

    Args:
        model: The model; the average begins with its weights.
        decay: Of the average, per update.
    """

    def __init__(self, model: Module, decay: float) -> None:
        self.module = deepcopy(model)
        """A copy of the model with the averaged weights."""
        self.updates = 0
        """Number of updates so far."""
        self._decay = decay

    @torch.no_grad()
    def update(self, model: Module) -> None:
        """Update the average after an update of the model."""
        averages, weights = list(self.module.parameters()), list(model.parameters())
        if self.updates:
            changes = _LISTS._foreach_sub(weights, averages)
            _LISTS._foreach_mul_(changes, 1 - moving_average_decay(self._decay, self.updates))
            _LISTS._foreach_add_(averages, changes)
        else:
            _LISTS._foreach_copy_(averages, weights)
        if buffers := list(model.buffers()):
            _LISTS._foreach_copy_(list(self.module.buffers()), buffers)
        self.updates += 1


def moving_average_decay(decay: float, updates: int) -> float:
    """Return min(`decay`, (1 + updates) / (10 + updates)).

    Early averages span few updates, so that the random first weights soon have no part in them.
    """
    return min(decay, (1 + updates) / (10 + updates))
