"""The effects of `envs.perturbations.effects` on a GPU.

Equal draws give equal images. Noise has its own generator.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nac_drive.envs.perturbations.effects import (
    GRASS,
    KERNEL_UNIT,
    ROAD,
    BlackAndWhite,
    Blend,
    Chain,
    Convolved,
    Effect,
    Gain,
    Hidden,
    Light,
    Noise,
    Recolour,
    Toned,
)


def apply_on_device(effect: Effect, frames: Tensor, generator: torch.Generator) -> Tensor:
    """Apply an effect where the frames are.

    Args:
        effect: The result of `Augmentation.draw`.
        frames: (..., H, W, 3) uint8, not changed.
        generator: Draws the noise, on the device of the frames.

    Returns:
        (..., H, W, 3) uint8. Without noise it is what `effect` returns, bit for bit.
    """
    match effect:
        case Chain(effects):
            for each in effects:
                frames = apply_on_device(each, frames, generator)
            return frames
        case Noise(_, deviation):
            noise = torch.randn(frames.shape, generator=generator, device=frames.device)
            return _uint8(noise * float(deviation) + frames)
        case BlackAndWhite(_, fraction):
            chance = torch.rand((*frames.shape[:-1], 1), generator=generator, device=frames.device)  # (..., H, W, 1)
            result = frames.masked_fill(chance < 0.5 * fraction, 0)
            return result.masked_fill(chance >= 1.0 - 0.5 * fraction, 255)
        case Gain():
            return _like(effect.table, frames)[frames.long()]
        case Light(light):
            return _uint8(frames * _like(light, frames))
        case Blend(opacity, picture):
            mixed = _like(opacity, frames)
            return _uint8(frames * (1 - mixed) + mixed * _like(picture, frames))
        case Convolved(kernel, rows):
            return _convolved(frames, _like(kernel, frames), rows)
        case Toned(table, rows):
            channels = torch.arange(3, device=frames.device)
            toned = _like(table, frames)[frames[..., :rows, :, :].long(), channels]
            return torch.cat([toned, frames[..., rows:, :, :]], dim=-3)
        case Hidden(visible):
            return frames * _like(visible, frames)
        case Recolour(road, grass, rows):
            return _recoloured(frames, _like(road, frames), _like(grass, frames), rows)
    raise TypeError(f"effect: must be one of envs.perturbations.effects, got {effect!r}; add it to apply_on_device.")


def _convolved(frames: Tensor, kernel: Tensor, rows: int) -> Tensor:
    world = frames[..., :rows, :, :].flatten(0, -4).permute(0, 3, 1, 2).float()  # (n, 3, rows, W)
    sums = F.conv2d(F.pad(world, (1, 1, 1, 1), mode="reflect"), kernel)  # whole numbers: exact in any order
    moved = _uint8(sums / KERNEL_UNIT).permute(0, 2, 3, 1).reshape(frames[..., :rows, :, :].shape)
    return torch.cat([moved, frames[..., rows:, :, :]], dim=-3)


def _recoloured(frames: Tensor, road: Tensor, grass: Tensor, rows: int) -> Tensor:
    world = frames[..., :rows, :, :].float()  # (..., rows, W, 3)
    red, middle, blue = world.unbind(-1)
    red_or_blue = torch.maximum(red, blue)
    low, high = world.amin(-1), world.amax(-1)
    green = ((middle - red_or_blue) / GRASS).clamp(0.0, 1.0)
    grey = (1.0 - (high - low) / GRASS).clamp(0.0, 1.0)
    grey = grey * ((low - 0.8 * ROAD) / (0.1 * ROAD)).clamp(0.0, 1.0)
    grey = grey * ((2.0 * ROAD - low) / (0.5 * ROAD)).clamp(0.0, 1.0)
    moved = world + grey[..., None] * road + green[..., None] * grass
    return torch.cat([_uint8(moved), frames[..., rows:, :, :]], dim=-3)


def _like(values: Any, frames: Tensor) -> Tensor:
    return torch.from_numpy(values).to(frames.device)


def _uint8(values: Tensor) -> Tensor:
    """Round and clip to 0-255."""
    return values.round().clamp(0, 255).to(torch.uint8)
