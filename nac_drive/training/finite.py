"""Training that diverged, seen at the first such number.

Such a number is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

KEPT = "the last checkpoint is kept; lower the learning rate in a new run"
"""What a run folder holds after a divergence, and the fix."""


class DivergedError(ValueError):
    """A loss, a weight or a score is NaN or infinite. The message is one line."""

    exit_status = 1
    """Of the command line."""


def require_finite_number(what: str, value: float, fix: str = KEPT) -> None:
    """Check a loss.

    Args:
        what: Its name.
        value: The number.
        fix: End of the message.

    Raises:
        DivergedError: It is NaN or infinite.
    """
    if not math.isfinite(value):
        raise _diverged(f"{what} is {value}", fix)


def require_finite_weights(what: str, tensors: Iterable[tuple[str, Tensor]], fix: str = KEPT) -> None:
    """Check weights by name.

    Args:
        what: Their owner.
        tensors: Name and weights of each layer.
        fix: End of the message.

    Raises:
        DivergedError: One of them is NaN or infinite.
    """
    checks = {name: torch.isfinite(tensor).all() for name, tensor in tensors if tensor.is_floating_point()}
    finite = torch.stack(list(checks.values())).tolist() if checks else []  # one wait for the device
    for name, weights_finite in zip(checks, finite, strict=True):
        if not weights_finite:
            raise _diverged(f"the weights {name!r} of {what} are not finite", fix)


def require_finite_row(row: dict[str, Any]) -> None:
    """Check the numbers of a row of metrics, nested ones included.

    Raises:
        DivergedError: One of them is NaN or infinite.
    """

    def check(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                check(f"{name}.{key}", inner)
        elif isinstance(value, list | tuple):
            for inner in value:
                check(name, inner)
        elif isinstance(value, float):
            require_finite_number(f"{name} of step {row['step']}", value)

    for key, value in row.items():
        check(key, value)


def _diverged(fact: str, fix: str) -> DivergedError:
    return DivergedError(f"the training has diverged: {fact}; {fix}.")
