"""Images of training that are masked, flipped or moved."""

from __future__ import annotations

from functools import lru_cache

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
    bar = frames[..., spec.bar_top :, _constant(spec.flipped_bar_columns, torch.int64, frames.device), :]
    return torch.cat([world, bar], dim=-3)


def flipped_labels(labels: Tensor, spec: EnvSpec) -> Tensor:
    """The actions (...) or (..., K) as seen in a mirror."""
    if labels.is_floating_point():
        return labels * _constant(spec.flipped_parts, labels.dtype, labels.device)
    return _constant(spec.flipped_actions, labels.dtype, labels.device)[labels]


@lru_cache
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return numbers as a tensor, which a GPU receives once."""
    return torch.tensor(values, dtype=dtype, device=device)


def move(frames: Tensor, labels: Tensor, pixels: np.ndarray, steering: float, spec: EnvSpec) -> None:
    """Move images to one side and steer back, in place.

    The status bar stays. What moves in from outside is black.

    Args:
        frames: B sequences (B, T, H, W, 3).
        labels: Continuous actions (B, T, 3).
        pixels: (B,) columns to the right; negative ones to the left.
        steering: Added to the steering per pixel to the right.
        spec: The environment.
    """
    for world, right in zip(frames[..., : spec.bar_top, :, :], pixels.tolist(), strict=True):
        world.copy_(world.roll(right, dims=-2))
        edge = slice(0, right) if right > 0 else slice(max(world.shape[-2] + right, 0), None)
        world[..., edge, :] = 0
    change = torch.from_numpy(pixels).to(labels) * steering  # (B,)
    part = spec.steering_part
    assert part is not None
    labels[..., part] = (labels[..., part] + change[:, None]).clamp(*spec.part_ranges[part])


def masked(frames: np.ndarray, env: EnvConfig) -> np.ndarray:
    """Black out the status bar of `frames` if `env` does.

    `frames` (N, 96, 96, 3) are changed in place.
    """
    if env.mask_bar and env.spec.bar_top is not None:
        frames[:, env.spec.bar_top :] = 0
    return frames
