"""Changes of the images that a driver is trained on: masked, flipped."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nac_drive.envs import EnvConfig, EnvSpec


def flipped(frames: Tensor, labels: Tensor, spec: EnvSpec) -> tuple[Tensor, Tensor]:
    """Flip frames and actions left to right.

    The status bar is flipped as the environment says: of CarRacing, gauges without a sign stay where they are.

    Args:
        frames: (..., H, W, 3).
        labels: (...) discrete actions or (..., 3) continuous ones.
        spec: The environment.

    Returns:
        Flipped copies of both.
    """
    return flip_frames(frames, spec), flipped_labels(labels, spec)


def flip_frames(frames: Tensor, spec: EnvSpec) -> Tensor:
    """The frames (..., H, W, 3) as seen in a mirror, a copy."""
    if spec.bar_top is None or spec.flipped_bar_columns is None:
        return frames.flip(-2)
    world = frames[..., : spec.bar_top, :, :].flip(-2)
    bar = frames[..., spec.bar_top :, list(spec.flipped_bar_columns), :]
    return torch.cat([world, bar], dim=-3)


def flipped_labels(labels: Tensor, spec: EnvSpec) -> Tensor:
    """The actions (...) or (..., 3) as seen in a mirror."""
    if labels.is_floating_point():
        return labels * labels.new_tensor([-1.0, 1.0, 1.0])
    return labels.new_tensor(spec.flipped_actions)[labels]


def masked(frames: np.ndarray, env: EnvConfig) -> np.ndarray:
    """`frames` (N, 96, 96, 3), with a black status bar if `env` masks it: changed in place."""
    if env.mask_bar and env.spec.bar_top is not None:
        frames[:, env.spec.bar_top :] = 0
    return frames
