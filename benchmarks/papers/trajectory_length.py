"""Trajectory length: how far the state of a core moves while its input goes round a circle.

Source: thesis, section 9.2, after Raghu et al. 2017, "On the Expressive Power of Deep Neural Networks".
"""

from __future__ import annotations

import math

import numpy as np
import torch
from activity import principal_components
from torch import Tensor

from nac_drive.policies import Core


def circle(frames: int) -> Tensor:
    """Return the input (sin t, cos t) at `frames` + 1 equally spaced times t from 0 to 2 pi, (frames + 1, 2)."""
    t = torch.linspace(0.0, 2.0 * math.pi, frames + 1, dtype=torch.float64)
    return torch.stack((t.sin(), t.cos()), dim=1)


def arc_length(path: np.ndarray) -> float:
    """Return the length of a path (T, N), the integral of |dx/dt|, along straight lines between its points."""
    return float(np.linalg.norm(np.diff(path, axis=0), axis=1).sum())


def latent_path(activity: np.ndarray) -> np.ndarray:
    """Return an activity (T, N) along its first two principal components, (T, 2)."""
    return principal_components(activity).scores[:, :2]


@torch.no_grad()
def trajectory_length(core: Core, inputs: Tensor, seconds: float) -> float:
    """Return the length of the outputs of a core along their first two principal components.

    Args:
        core: The core; it starts without a memory.
        inputs: Its inputs, (T, F), such as `circle`.
        seconds: Time between two of them.
    """
    weight = next(core.parameters())
    x = inputs.to(weight).unsqueeze(0)  # (1, T, F)
    dt = torch.full_like(x[:, :, 0], seconds)
    dt[:, 0] = 0.0
    y, _ = core(x, dt, core.initial_state(1))
    return arc_length(latent_path(y[0].double().cpu().numpy()))
