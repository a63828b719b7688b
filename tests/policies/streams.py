"""Inputs of the tests of cores: streams in double precision."""

from __future__ import annotations

import torch
from torch import Tensor

from nac_drive.policies.cores.base import Core


def random_stream() -> tuple[Tensor, Tensor]:
    """x (3, 9, 5) and dt (3, 9), the same each time."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 9, 5, dtype=torch.float64, generator=generator)
    return x, torch.rand(3, 9, dtype=torch.float64, generator=generator)


def run(core: Core, x: Tensor, dt: Tensor) -> Tensor:
    """The outputs of `core` from the start of an episode."""
    return core(x, dt, core.initial_state(len(x)))[0]
