"""Changes of the images that a driver is trained on: masked, flipped, augmented."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nac_drive.envs import Augmentation, EnvConfig, EnvSpec
from nac_drive.training.device_effects import apply_on_device


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


def augmented(frames: Tensor, specs: Sequence[str], rng: np.random.Generator) -> Tensor:
    """Put each sequence under one of `specs` or leave it clean, all equally likely.

    Static perturbations are drawn once per sequence; noise is drawn per frame. On a GPU the images change there, and
    noise has other numbers than on the CPU; all else is the same.

    Args:
        frames: (B, T, H, W, 3) uint8.
        specs: Perturbations of images, such as "gaussian-noise:1" and "shadows:2+colour:3".
        rng: Draws perturbations and noise.

    Returns:
        (B, T, H, W, 3) uint8, a copy.
    """
    augmentation, (height, width) = Augmentation(specs), frames.shape[2:4]
    effects = [augmentation.draw(rng, (height, width)) for _ in frames]
    if frames.is_cuda:
        generator = torch.Generator(frames.device).manual_seed(int(rng.integers(2**63)))
        pairs = zip(effects, frames, strict=True)
        return torch.stack([apply_on_device(effect, sequence, generator) for effect, sequence in pairs])
    corrupted = [effect(sequence.cpu().numpy()) for effect, sequence in zip(effects, frames, strict=True)]
    return torch.from_numpy(np.stack(corrupted)).to(frames.device)


def masked(frames: np.ndarray, env: EnvConfig) -> np.ndarray:
    """`frames` (N, 96, 96, 3), with a black status bar if `env` masks it: changed in place."""
    if env.mask_bar and env.spec.bar_top is not None:
        frames[:, env.spec.bar_top :] = 0
    return frames
