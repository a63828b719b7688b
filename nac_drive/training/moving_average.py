"""A moving average of the weights.

It is validated and saved instead of the weights.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


def averaged(model: nn.Module, decay: float) -> AveragedModel:
    """Return the exponential moving average of a model's weights.

    It is updated after every update of the model.

    Args:
        model: The model; the average begins with its weights.
        decay: Of the average, per update.
    """
    return AveragedModel(model, avg_fn=partial(moving_average, decay))


def moving_average(decay: float, average: Tensor, weight: Tensor, updates: Tensor | int) -> Tensor:
    """Return the updated average.

    The decay is min(`decay`, (1 + updates) / (10 + updates)).

    Early averages span few updates, so that the random first weights soon have no part in them.
    """
    weight_of_old = min(decay, (1 + float(updates)) / (10 + float(updates)))
    return average + (1 - weight_of_old) * (weight - average)
