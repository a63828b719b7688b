"""Sequences of frames for training, and the images in them: masked, flipped, augmented."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from nac_drive.data_collection.dataset.frames import Frames
from nac_drive.envs import BAR_TOP, Augmentation, EnvConfig
from nac_drive.training.config import DataConfig


@dataclass(frozen=True)
class Sequences:
    """B sequences of T frames: frames (B, T, 96, 96, 3) uint8, or their features (B, T, d), labels (B, T) or (B, T, 3),
    dt (B, T) seconds, weight (B, T), or None where all frames weigh the same."""

    frames: Tensor
    labels: Tensor
    dt: Tensor
    weight: Tensor | None

    def to(self, device: torch.device) -> Sequences:
        """On another device."""
        weight = None if self.weight is None else self.weight.to(device)
        return Sequences(self.frames.to(device), self.labels.to(device), self.dt.to(device), weight)


class TrainingData:
    """Labelled episodes on the device, and the sequences that an epoch goes through. Episodes may be added at any time.

    encoder: with it, sequences hold what this encoder, in the mode it is in, makes of frames, in place of frames;
    that is computed once, of the frames as they are and, where the config flips, flipped.
    Raises ValueError for class weights without classes.
    """

    def __init__(self, config: DataConfig, env: EnvConfig, device: torch.device, encoder: nn.Module | None = None):
        if config.class_weights and env.control != "discrete":
            raise ValueError("class_weights applies to discrete actions; this dataset has continuous control.")
        self.env, self.config, self.device, self._encoder = env, config, device, encoder
        self.length = config.sequence_length
        self.offsets = np.zeros(1, dtype=np.int64)
        """(E + 1,): episode e is the rows offsets[e] to offsets[e + 1]."""
        self.classes: Tensor | None = None
        """(5,) weight of each action, or None."""
        self._counts = np.zeros(5, dtype=np.int64)
        self._begins: list[int] = []
        self._parts: list[Sequences] = []  # what was added at one time, T = 1
        self._flipped: list[Sequences] = []  # the same, flipped; empty for frames, which are flipped later

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def add(self, frames: Frames) -> None:
        """More episodes. Raises ValueError when none so far fills a sequence."""
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
                images, labels = flipped(images, labels)
                self._flipped.append(Sequences(features(self._encoder, images), labels, dt, weight))
        self.offsets = np.concatenate([self.offsets, len(self) + frames.offsets[1:]])
        if self.config.class_weights:
            self._counts += np.bincount(frames.labels, minlength=5)
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
        """First rows of the sequences of one epoch, shuffled: they tile every episode from a random phase on."""
        starts = []
        for first, end in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            if end - first >= self.length:
                tiles = np.arange(first - rng.integers(self.length), end, self.length)
                starts.append(np.unique(tiles.clip(first, end - self.length)))
        return rng.permutation(np.concatenate(starts))

    def sequences(self, starts: np.ndarray, flip: np.ndarray) -> Sequences:
        """A copy of the sequences that begin at the rows `starts` (B,), flipped where `flip` (B,) is true, which of
        features takes a config with `horizontal_flip`."""
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
            frames[rows], labels[rows] = flipped(frames[rows], labels[rows])
        return Sequences(frames, labels, stack("dt"), weight)


@torch.no_grad()
def features(encoder: nn.Module, frames: Tensor) -> Tensor:
    """What `encoder` makes of frames (N, 96, 96, 3): (N, d), without gradients."""
    return encoder(frames)


def flipped(frames: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Frames (..., 96, 96, 3) and actions flipped left to right.

    Of the status bar, the speed and wheel gauges stay; the steering gauge (centre at column 48) and the gyroscope
    (column 72) are turned about their own centres.
    """
    columns = [*range(36), *range(59, 35, -1), *range(83, 59, -1), *range(84, 96)]
    world, bar = frames[..., :BAR_TOP, :, :].flip(-2), frames[..., BAR_TOP:, columns, :]
    result = torch.cat([world, bar], dim=-3)
    if labels.is_floating_point():
        return result, labels * labels.new_tensor([-1.0, 1.0, 1.0])
    return result, labels.new_tensor([0, 2, 1, 3, 4])[labels]


def augmented(frames: Tensor, specs: Sequence[str], rng: np.random.Generator) -> Tensor:
    """(B, T, H, W, 3) frames: each sequence under one of `specs` or clean, all equally likely.

    What is static under a perturbation is drawn once per sequence; noise is drawn per frame.
    """
    augmentation, (height, width) = Augmentation(specs), frames.shape[2:4]
    effects = [augmentation.draw(rng, (height, width)) for _ in frames]
    corrupted = [effect(sequence.cpu().numpy()) for effect, sequence in zip(effects, frames, strict=True)]
    return torch.from_numpy(np.stack(corrupted)).to(frames.device)


def masked(frames: np.ndarray, env: EnvConfig) -> np.ndarray:
    """The (N, 96, 96, 3) frames, in place with a black status bar if `env` says so."""
    if env.mask_bar:
        frames[:, BAR_TOP:] = 0
    return frames


def action_changes(labels: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """(N,) bool: the frames whose label differs from the one before, within their episode."""
    different = labels[1:] != labels[:-1]
    changes = np.concatenate([[False], different if labels.ndim == 1 else different.any(axis=1)])
    changes[offsets[:-1]] = False
    return changes
