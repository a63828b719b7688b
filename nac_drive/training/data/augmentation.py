"""Training sequences under random perturbations of images and time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nac_drive.envs import Augmentation
from nac_drive.envs.perturbations.images import FrameSize
from nac_drive.envs.perturbations.registry import Augmented
from nac_drive.envs.perturbations.timing import BLACK
from nac_drive.training.data.device_effects import apply_on_device
from nac_drive.training.data.sequences import Sequences


def augmented(
    sequences: Sequences,
    specs: Sequence[str],
    rng: np.random.Generator,
    *,
    bar_top: int | None,
    black: Tensor | None = None,
) -> Sequences:
    """Put each sequence under one of `specs`, or none.

    All are equally likely.

    Static perturbations are drawn once per sequence; noise is drawn per frame. Frames are lost, and actions delayed,
    after the images have changed: the sequence then holds the queries of a driver, with the seconds between them. Those
    that are left out move to its end with the weight 0. On a GPU the images change there, and noise has other numbers
    than on the CPU; all else is the same.

    Args:
        sequences: B sequences of T frames (B, T, H, W, 3) or features (B, T, d); features only for perturbations in
            time.
        specs: Perturbations, such as "gaussian-noise:1" and "shadows:2+frame-drop:1:zero".
        rng: Draws perturbations and noise.
        bar_top: First row of the status bar in a frame; None for none.
        black: A black frame (H, W, 3) or its features (d,), where frames are lost.

    Returns:
        Copies of the sequences.
    """
    augmentation, frames = Augmentation(specs), sequences.frames
    size = FrameSize.of(frames.shape[2:] if frames.dim() == 5 else (0, 0), bar_top)
    drawn = [augmentation.draw(rng, size) for _ in frames]
    if frames.dim() == 5:
        frames = _changed(frames, drawn, rng)
    changed = Sequences(frames, sequences.labels, sequences.dt, sequences.weight)
    return changed if augmentation.images_only else _retimed(changed, drawn, rng, black)


def _changed(frames: Tensor, drawn: Sequence[Augmented], rng: np.random.Generator) -> Tensor:
    """Return the images (B, T, H, W, 3), changed by the effects."""
    if frames.is_cuda:
        generator = torch.Generator(frames.device).manual_seed(int(rng.integers(2**63)))
        pairs = zip(drawn, frames, strict=True)
        return torch.stack([apply_on_device(each.effect, sequence, generator) for each, sequence in pairs])
    corrupted = [each.effect(sequence.cpu().numpy()) for each, sequence in zip(drawn, frames, strict=True)]
    return torch.from_numpy(np.stack(corrupted)).to(frames.device)


def _retimed(
    sequences: Sequences, drawn: Sequence[Augmented], rng: np.random.Generator, black: Tensor | None
) -> Sequences:
    """Return the queries along sequences with changed images."""
    batch, length = sequences.dt.shape
    shown, labels = np.zeros((2, batch, length), dtype=np.int64)  # (B, T) each
    dt, present = sequences.dt.cpu().numpy().copy(), np.zeros((batch, length), dtype=np.float32)
    for row, each in enumerate(drawn):
        timing = each.timing(length, rng)
        count = len(timing.rows)
        shown[row, :count], labels[row, :count] = timing.shown, timing.labels
        dt[row, :count] = timing.seconds(dt[row])
        present[row, :count] = 1.0
    device, lost = sequences.dt.device, torch.from_numpy(shown == BLACK)
    at = torch.arange(batch, device=device).unsqueeze(1)  # (B, 1)
    shown, labels = (torch.from_numpy(index.clip(min=0)).to(device) for index in (shown, labels))
    frames, weight = sequences.frames[at, shown], torch.from_numpy(present).to(device)
    if lost.any():
        frames[lost.to(device)] = frames.new_zeros(frames.shape[2:]) if black is None else black
    if sequences.weight is not None:
        weight = weight * sequences.weight[at, labels]
    return Sequences(frames, sequences.labels[at, labels], torch.from_numpy(dt).to(device), weight)
