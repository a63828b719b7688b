"""Sequences of frames for training, and the images in them: masked, flipped, augmented."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from nac_drive.data_collection.dataset.frames import Frames
from nac_drive.envs import Augmentation, EnvConfig, EnvSpec
from nac_drive.training.config import DataConfig


@dataclass(frozen=True)
class Sequences:
    """B sequences of T frames."""

    frames: Tensor
    """(B, T, 96, 96, 3) uint8, or the features (B, T, d) of a frozen encoder."""
    labels: Tensor
    """(B, T) discrete actions or (B, T, 3) continuous ones."""
    dt: Tensor
    """(B, T) seconds."""
    weight: Tensor | None
    """(B, T); None where all frames weigh the same."""

    def to(self, device: torch.device) -> Sequences:
        """On another device."""
        weight = None if self.weight is None else self.weight.to(device)
        return Sequences(self.frames.to(device), self.labels.to(device), self.dt.to(device), weight)


class TrainingData:
    """Labelled episodes on the device, and the sequences of an epoch. Episodes may be added at any time.

    Args:
        config: How frames become sequences.
        env: The environment of the driver.
        device: Where frames and labels are kept.
        encoder: If given, sequences hold its features in place of frames. They are computed once, in the mode that the
            encoder is in: those of the frames and, if the config flips, those of the flipped frames.

    Raises:
        ValueError: For class weights in continuous control.
    """

    def __init__(self, config: DataConfig, env: EnvConfig, device: torch.device, encoder: nn.Module | None = None):
        if config.class_weights and env.control != "discrete":
            raise ValueError("class_weights applies to discrete actions; this dataset has continuous control.")
        self.env, self.config, self.device, self._encoder = env, config, device, encoder
        self.length = config.sequence_length
        self.offsets = np.zeros(1, dtype=np.int64)
        """(E + 1,): episode e is the rows offsets[e] to offsets[e + 1]."""
        self.classes: Tensor | None = None
        """(A,) weight of each discrete action, or None."""
        self._counts = np.zeros(env.spec.num_actions, dtype=np.int64)
        self._begins: list[int] = []
        self._parts: list[Sequences] = []  # one per call of `add`, T = 1
        self._flipped: list[Sequences] = []  # the same, flipped; empty for frames, which are flipped later

    def __len__(self) -> int:
        """Number of frames."""
        return int(self.offsets[-1])

    def add(self, frames: Frames) -> None:
        """Add episodes.

        Raises:
            ValueError: No episode so far fills a sequence.
        """
        longest = max(np.diff(self.offsets), default=0), max(np.diff(frames.offsets))
        if max(longest) < self.length:
            raise ValueError(
                f"sequence_length must not exceed the longest episode ({max(longest)} frames), "
                f"got {self.length}; choose a shorter one."
            )
        weight = None
        if self.config.change_weight != 1:
            changes = action_changes(frames.labels, frames.offsets)
            weight = self._place(np.where(changes, self.config.change_weight, 1.0).astype(np.float32))
        images = self._place(masked(frames.frames, self.env))
        labels, dt = self._place(frames.labels), self._place(frames.dt)
        self._begins.append(len(self))
        if self._encoder is None:
            self._parts.append(Sequences(images, labels, dt, weight))
        else:
            self._parts.append(Sequences(features(self._encoder, images), labels, dt, weight))
            if self.config.horizontal_flip:
                images, labels = flipped(images, labels, self.env.spec)
                self._flipped.append(Sequences(features(self._encoder, images), labels, dt, weight))
        self.offsets = np.concatenate([self.offsets, len(self) + frames.offsets[1:]])
        if self.config.class_weights:
            self._counts += np.bincount(frames.labels, minlength=len(self._counts))
            counts = self._counts.clip(min=1)
            self.classes = torch.tensor(counts.mean() / counts, dtype=torch.float32, device=self.device)

    def to(self, device: torch.device) -> TrainingData:
        """On another device."""
        moved = copy(self)
        moved.device = device
        moved.classes = None if self.classes is None else self.classes.to(device)
        moved._parts, moved._flipped = ([part.to(device) for part in parts] for parts in (self._parts, self._flipped))
        return moved

    def _place(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.device)

    def starts(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the sequences of one epoch, which tile every episode from a random phase on.

        Args:
            rng: Draws phases and order.

        Returns:
            (B,) first rows, shuffled.
        """
        starts = []
        for first, end in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            if end - first >= self.length:
                tiles = np.arange(first - rng.integers(self.length), end, self.length)
                starts.append(np.unique(tiles.clip(first, end - self.length)))
        return rng.permutation(np.concatenate(starts))

    def sequences(self, starts: np.ndarray, flip: np.ndarray) -> Sequences:
        """Copy sequences.

        Args:
            starts: (B,) their first rows.
            flip: (B,) bool: those to flip left to right; features can be flipped only with `horizontal_flip`.
        """
        parts = np.searchsorted(self._begins, starts, side="right") - 1
        places = [
            ((self._flipped if is_flipped and self._encoder else self._parts)[part], start - self._begins[part])
            for part, start, is_flipped in zip(parts, starts, flip, strict=True)
        ]

        def stack(name: str) -> Tensor:
            return torch.stack([getattr(part, name)[first : first + self.length] for part, first in places])

        weight = None if self.config.change_weight == 1 else stack("weight")
        frames, labels = stack("frames"), stack("labels")
        if self._encoder is None:
            rows = torch.from_numpy(flip).to(self.device)
            frames[rows], labels[rows] = flipped(frames[rows], labels[rows], self.env.spec)
        return Sequences(frames, labels, stack("dt"), weight)


@torch.no_grad()
def features(encoder: nn.Module, frames: Tensor) -> Tensor:
    """The features (N, d) of `frames` (N, 96, 96, 3) by `encoder`, without gradients."""
    return encoder(frames)


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
    if spec.bar_top is None or spec.flipped_bar_columns is None:
        result = frames.flip(-2)
    else:
        world = frames[..., : spec.bar_top, :, :].flip(-2)
        bar = frames[..., spec.bar_top :, list(spec.flipped_bar_columns), :]
        result = torch.cat([world, bar], dim=-3)
    if labels.is_floating_point():
        return result, labels * labels.new_tensor([-1.0, 1.0, 1.0])
    return result, labels.new_tensor(spec.flipped_actions)[labels]


def augmented(frames: Tensor, specs: Sequence[str], rng: np.random.Generator) -> Tensor:
    """Put each sequence under one of `specs` or leave it clean, all equally likely.

    Static perturbations are drawn once per sequence; noise is drawn per frame.

    Args:
        frames: (B, T, H, W, 3) uint8.
        specs: Perturbations of images, such as "gaussian-noise:1" and "shadows:2+colour:3".
        rng: Draws perturbations and noise.

    Returns:
        (B, T, H, W, 3) uint8, a copy.
    """
    augmentation, (height, width) = Augmentation(specs), frames.shape[2:4]
    effects = [augmentation.draw(rng, (height, width)) for _ in frames]
    corrupted = [effect(sequence.cpu().numpy()) for effect, sequence in zip(effects, frames, strict=True)]
    return torch.from_numpy(np.stack(corrupted)).to(frames.device)


def masked(frames: np.ndarray, env: EnvConfig) -> np.ndarray:
    """`frames` (N, 96, 96, 3), with a black status bar if `env` masks it: changed in place."""
    if env.mask_bar and env.spec.bar_top is not None:
        frames[:, env.spec.bar_top :] = 0
    return frames


def action_changes(labels: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Mark the frames whose label differs from that of the frame before, within their episode.

    Args:
        labels: (N,) discrete actions or (N, 3) continuous ones.
        offsets: (E + 1,): episode e is the rows offsets[e] to offsets[e + 1].

    Returns:
        (N,) bool.
    """
    different = labels[1:] != labels[:-1]
    changes = np.concatenate([[False], different if labels.ndim == 1 else different.any(axis=1)])
    changes[offsets[:-1]] = False
    return changes
