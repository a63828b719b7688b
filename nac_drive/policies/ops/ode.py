"""Ordinary differential equations: a midpoint solver, and initial time constants."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

FASTEST, SLOWEST = 0.03, 3.0
"""Seconds: one and a half frames of 20 ms, and about the time that a bend takes."""


def initial_log_tau(units: int) -> Tensor:
    """Return ln tau (units,), evenly spread.

    tau is in seconds, from FASTEST to SLOWEST.
    """
    return torch.linspace(math.log(FASTEST), math.log(SLOWEST), units)


def midpoint_path(field: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Tensor:
    """Solve dz/du = field(z) on 0 <= u <= 1.

    Equal midpoint steps are of second order.

    Args:
        field: The derivative; it takes and returns a tensor of the shape of `start`.
        start: z at u = 0.
        steps: The number of steps.

    Returns:
        z at the ends of the steps, (steps + 1, *start.shape).
    """
    nodes = torch.linspace(0.0, 1.0, steps + 1, device=start.device, dtype=start.dtype)
    path = [start]
    for du in nodes.diff():
        path.append(path[-1] + du * field(path[-1] + field(path[-1]) * (0.5 * du)))
    return torch.stack(path)
