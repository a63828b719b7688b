"""Sequences of frames for training, from memory or files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from nac_drive.data_collection.dataset.frames import Frames
from nac_drive.data_collection.dataset.stored_frames import StoredFrames
from nac_drive.envs import EnvConfig, EnvSpec
from nac_drive.evaluation.formulas import steering_commands
from nac_drive.training.config import DataConfig
from nac_drive.training.data.features import frozen_features
from nac_drive.training.data.images import flipped, flipped_labels, masked, move
from nac_drive.training.data.read_ahead import read_ahead


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

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of values (B, T) with a weight."""
        values = values.float()
        if self.weight is None:
            return values.mean()
        counted = self.weight > 0
        return values.where(counted, 0).sum() / counted.sum().clamp(min=1)

    def take(self, rows: np.ndarray) -> Sequences:
        """Return some of the sequences."""
        weight = None if self.weight is None else self.weight[rows]
        return Sequences(self.frames[rows], self.labels[rows], self.dt[rows], weight)

    def move(self, pixels: np.ndarray, steering: float, spec: EnvSpec) -> None:
        """Move the frames to one side, and steer back.

        See `images.move`.
        """
        move(self.frames, self.labels, pixels, steering, spec)


@dataclass(frozen=True)
class _Part:
    """The N frames of one call of `add`."""

    frames: Tensor | StoredFrames
    """(N, 96, 96, 3) uint8, in memory or in their files, or features (N, d)."""
    labels: Tensor
    dt: Tensor
    weight: Tensor | None

    def to(self, device: torch.device) -> _Part:
        """On another device; frames in their files stay there."""
        frames = self.frames if isinstance(self.frames, StoredFrames) else self.frames.to(device)
        weight = None if self.weight is None else self.weight.to(device)
        return _Part(frames, self.labels.to(device), self.dt.to(device), weight)


class TrainingData:
    """Labelled episodes, and the sequences of an epoch. Episodes may be added at any time.

    Labels are on the device. So are frames that were added from memory; those in their files are decoded batch by
    batch.

    Args:
        config: How frames become sequences.
        env: The environment of the driver.
        device: Where frames and labels are kept.
        encoder: If given, sequences hold its features in place of frames. They are computed once, in the mode that the
            encoder is in: features of the frames and, if the config flips, of the flipped frames.
        dataset: The dataset folder beside whose episodes the features are kept for the next run, see
            `frozen_features`; None keeps none.

    Raises:
        ValueError: For shifts or curve weights in discrete control.
    """

    def __init__(
        self,
        config: DataConfig,
        env: EnvConfig,
        device: torch.device,
        encoder: nn.Module | None = None,
        dataset: Path | None = None,
    ):
        if config.shift and env.control == "discrete":
            raise ValueError("shift corrects the steering of continuous actions; this dataset has discrete control.")
        if config.shift >= (width := env.spec.frame_shape[1]):
            raise ValueError(
                f"shift must be less than the width of the frames ({width} pixels), got {config.shift}: nothing of an "
                "image would stay; 8 is usual."
            )
        if config.curve_weight and env.control == "discrete":
            raise ValueError("curve_weight needs the steering of continuous actions; this dataset is discrete.")
        self.env, self.config, self.device, self._encoder, self._dataset = env, config, device, encoder, dataset
        self.length = config.sequence_length
        self.black = torch.zeros(env.spec.frame_shape, dtype=torch.uint8, device=device)
        """A black frame as sequences hold it: (H, W, 3) zeros, or its features (d,)."""
        if encoder is not None:
            with torch.no_grad():
                self.black = encoder(self.black.unsqueeze(0))[0]
        self.offsets = np.zeros(1, dtype=np.int64)
        """(E + 1,): episode e is the rows offsets[e] to offsets[e + 1]."""
        self._unlabelled = np.zeros(0, dtype=np.int64)  # rows without a label, ascending
        self._begins: list[int] = []
        self._parts: list[_Part] = []  # one per call of `add`
        self._flipped: list[_Part] = []  # the same, flipped; empty for frames, which are flipped later

    def __len__(self) -> int:
        """Number of frames."""
        return int(self.offsets[-1])

    @property
    def frozen(self) -> bool:
        """True if sequences hold features."""
        return self._encoder is not None

    def add(self, frames: Frames) -> None:
        """Add episodes.

        Raises:
            ValueError: No episode so far fills a sequence.
            DatasetError: If frames that are read for their features are damaged.
        """
        longest = max(np.diff(self.offsets), default=0), max(np.diff(frames.offsets))
        if max(longest) < self.length:
            raise ValueError(
                f"sequence_length must not exceed the longest episode ({max(longest)} frames), "
                f"got {self.length}; choose a shorter one."
            )
        weight = None
        labelled = np.ones(len(frames), np.bool_) if frames.labelled is None else frames.labelled
        if self.config.curve_weight or not labelled.all():
            weights = labelled.astype(np.float32)
            if self.config.curve_weight:
                weights *= curve_weights(frames.labels, self.config.curve_weight, self.env.spec)
            weight = self._place(weights)
        self._unlabelled = np.concatenate([self._unlabelled, len(self) + np.flatnonzero(~labelled)])
        labels, dt = self._place(frames.labels), self._place(frames.dt)
        self._begins.append(len(self))
        if self._encoder is not None:
            flips = (False, True) if self.config.horizontal_flip else (False,)
            seen = frozen_features(self._encoder, frames, self.env, self.device, flips, self._dataset)
            self._parts.append(_Part(seen[0], labels, dt, weight))
            if self.config.horizontal_flip:
                self._flipped.append(_Part(seen[1], flipped_labels(labels, self.env.spec), dt, weight))
        elif isinstance(frames.frames, StoredFrames):
            self._parts.append(_Part(frames.frames, labels, dt, weight))
        else:
            self._parts.append(_Part(self._place(masked(frames.frames, self.env)), labels, dt, weight))
        self.offsets = np.concatenate([self.offsets, len(self) + frames.offsets[1:]])

    def to(self, device: torch.device) -> TrainingData:
        """On another device."""
        moved = copy(self)
        moved.device = device
        moved.black = self.black.to(device)
        moved._parts, moved._flipped = ([part.to(device) for part in parts] for parts in (self._parts, self._flipped))
        return moved

    def _place(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.device)

    def starts(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the sequences of one epoch.

        They tile every episode from a random phase on.

        Sequences without a label are left out.

        Args:
            rng: Draws phases and order.

        Returns:
            (B,) first rows, shuffled.

        Raises:
            ValueError: If no frame has a label.
        """
        starts = []
        for first, end in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            if end - first >= self.length:
                tiles = np.arange(first - rng.integers(self.length), end, self.length)
                starts.append(np.unique(tiles.clip(first, end - self.length)))
        starts = np.concatenate(starts)
        unlabelled = np.searchsorted(self._unlabelled, [starts, starts + self.length])
        starts = starts[unlabelled[1] - unlabelled[0] < self.length]
        if not len(starts):
            raise ValueError("no frame of these episodes has a label of an expert or a person; record others.")
        return rng.permutation(starts)

    def sequences(self, starts: np.ndarray, flip: np.ndarray, frames: Tensor | None = None) -> Sequences:
        """Copy sequences.

        Args:
            starts: (B,) their first rows.
            flip: (B,) bool: those to flip left to right; features can be flipped only with `horizontal_flip`.
            frames: Their frames as they are stored, of `read_ahead`; changed in place. They are read if not given.
        """
        places = self._places(starts, flip)

        def stack(name: str) -> Tensor:
            return torch.stack([getattr(part, name)[rows] for part, rows in places])

        weight = None
        if any(part.weight is not None for part in self._parts):
            ones = self.black.new_ones(self.length, dtype=torch.float32)
            weight = torch.stack([ones if part.weight is None else part.weight[rows] for part, rows in places])
        labels, dt = stack("labels"), stack("dt")
        if self.frozen:
            return Sequences(stack("frames"), labels, dt, weight)
        frames = (self._read(starts) if frames is None else frames).to(self.device, non_blocking=True)
        if flip.any():
            rows = torch.from_numpy(np.flatnonzero(flip)).to(self.device)
            frames[rows], labels[rows] = flipped(frames[rows], labels[rows], self.env.spec)
        return Sequences(frames, labels, dt, weight)

    def read_ahead(self, batches: Sequence[np.ndarray]) -> Iterator[Tensor | None]:
        """Read the frames of the next batches from files.

        It happens while one is trained on.

        Args:
            batches: First rows of the sequences of each batch.

        Yields:
            The frames (B, T, 96, 96, 3) of a batch, for `sequences`; None where all frames are in memory.

        Raises:
            DatasetError: If a file is damaged or has changed.
        """
        if any(isinstance(part.frames, StoredFrames) for part in self._parts):
            size = max(map(len, batches)) * self.length * math.prod(self.env.spec.frame_shape)
            yield from read_ahead(self._read, batches, size)
        else:
            yield from repeat(None, len(batches))

    def _read(self, starts: np.ndarray) -> Tensor:
        """Copy the frames (B, T, 96, 96, 3) of sequences, masked.

        Frames in files go to memory that a GPU can read.
        """
        places = [(part.frames, rows) for part, rows in self._places(starts)]
        if not any(isinstance(frames, StoredFrames) for frames, _ in places):
            return torch.stack([frames[rows] for frames, rows in places])  # type: ignore[misc]
        shape = (len(starts), self.length, *self.env.spec.frame_shape)
        result = torch.empty(shape, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        for sequence, (frames, rows) in zip(result, places, strict=True):
            if isinstance(frames, StoredFrames):
                frames.read(rows.start, sequence.numpy())
            else:
                sequence.copy_(frames[rows])
        masked(result.numpy().reshape(-1, *shape[2:]), self.env)
        return result

    def _places(self, starts: np.ndarray, flip: np.ndarray | None = None) -> list[tuple[_Part, slice]]:
        """Return the part of each sequence, and its rows there.

        Sequences with `flip` are among flipped features.
        """
        places = []
        for number, part in enumerate(np.searchsorted(self._begins, starts, side="right") - 1):
            first = int(starts[number]) - self._begins[part]
            of_flipped = self.frozen and flip is not None and flip[number]
            parts = self._flipped if of_flipped else self._parts
            places.append((parts[part], slice(first, first + self.length)))
        return places


def curve_weights(labels: np.ndarray, alpha: float, spec: EnvSpec) -> np.ndarray:
    """Return the weights (N,) exp(alpha |steering|) of actions.

    The actions (N, K) are continuous, and one of their numbers steers, of -1 to 1; weights are float32.
    """
    return np.exp(alpha * np.abs(steering_commands(labels, spec))).astype(np.float32)
