"""Where learned time constants start."""

from __future__ import annotations

import math

import torch
from torch import Tensor

FASTEST, SLOWEST = 0.03, 3.0
"""Seconds: one and a half frames of 20 ms, and about the time that a bend takes."""


def initial_log_tau(units: int) -> Tensor:
    """Natural logarithms (units,) of time constants in seconds, evenly spread from log FASTEST to log SLOWEST."""
    return torch.linspace(math.log(FASTEST), math.log(SLOWEST), units)
