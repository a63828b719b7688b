"""Offline accuracy: how often driver and expert agree.

They are compared frame by frame. Definitions: docs/metrics.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nac_drive.data_collection.dataset.frames import Frames
from nac_drive.envs import EnvConfig, EnvSpec
from nac_drive.evaluation.formulas import CAR_RACING, agrees, steering_commands
from nac_drive.policies import Driver
from nac_drive.storage.read import FRACTION, NOT_NEGATIVE
from nac_drive.training.data.images import masked
from nac_drive.training.data.read_ahead import read_ahead

_Fraction = Annotated[float, FRACTION]
_NotNegative = Annotated[float, NOT_NEGATIVE]


@dataclass(frozen=True)
class Accuracy:
    """Offline steering accuracy. Fractions in [0, 1]; None where nothing could be counted."""

    accuracy: _Fraction
    """Fraction of frames with the expert's action (continuous: steering within 0.1)."""
    macro_f1: _Fraction | None
    """Mean F1 over the actions that occur, discrete actions only."""
    at_changes: _Fraction | None
    """Accuracy on the frames where the expert's action changes, discrete actions only."""
    steering_mse: _NotNegative | None = None
    """Mean squared error of the steering, of -1 to 1, continuous actions only."""
    steering_mae: _NotNegative | None = None
    """Mean absolute error of the steering, of -1 to 1, continuous actions only."""


def measure_accuracy(
    predicted: NDArray, labels: NDArray, changes: NDArray[np.bool_], spec: EnvSpec = CAR_RACING
) -> Accuracy:
    """Compare actions with the expert's.

    Args:
        predicted: (N,) discrete actions or (N, K) continuous ones.
        labels: The expert's, of the same shape.
        changes: (N,) the frames where the expert's action changes.
        spec: The environment, which says what steers.
    """
    if labels.ndim == 1:
        correct = predicted == labels
        f1: float | None = macro_f1(predicted, labels)
    else:
        correct = np.array([agrees(a, b, spec) for a, b in zip(predicted, labels, strict=True)])
        f1 = None
    steers = labels.ndim == 2 and spec.steering_part is not None
    error = steering_commands(predicted, spec) - steering_commands(labels, spec) if steers else None
    return Accuracy(
        accuracy=float(correct.mean()),
        macro_f1=f1,
        at_changes=float(correct[changes].mean()) if labels.ndim == 1 and changes.any() else None,
        steering_mse=None if error is None else float(np.square(error).mean()),
        steering_mae=None if error is None else float(np.abs(error).mean()),
    )


def counted(frames: Frames) -> NDArray[np.bool_]:
    """Return the mask (N,) of the compared frames.

    They are labelled, and lie after the zoom.
    """
    return ~frames.zooming if frames.labelled is None else ~frames.zooming & frames.labelled


@torch.no_grad()
def offline_accuracy(driver: Driver, frames: Frames, env: EnvConfig, features: Tensor | None = None) -> Accuracy:
    """Measure how well `driver` predicts the expert's labels.

    It streams over whole episodes.

    The zoom at the start of an episode, and frames without a label, are seen but not counted.

    Args:
        driver: The driver, in evaluation mode.
        frames: Episodes, in memory or in their files. If `env` masks the status bar, it is masked in place.
        env: The environment of the driver.
        features: (N, d) features of the frames by the encoder of `driver`, to spare computing them.
    """
    device, decide = driver.device, driver if features is None else driver.decide
    begins = set(frames.offsets.tolist())
    spans = [
        slice(start, min(start + 256, end))
        for first, end in zip(frames.offsets[:-1], frames.offsets[1:], strict=True)
        for start in range(first, end, 256)
    ]

    def read(rows: slice) -> Tensor:
        return torch.from_numpy(masked(frames.frames[rows], env)) if features is None else features[rows]

    outputs, state = [], driver.initial_state(1)
    for rows, seen in zip(spans, read_ahead(read, spans, 256 * math.prod(env.spec.frame_shape)), strict=True):
        if rows.start in begins:
            state = driver.initial_state(1)
        dt = torch.as_tensor(frames.dt[rows])[None].to(device)
        prediction, state = decide(seen[None].to(device), dt, state)
        outputs.append(driver.action_head.action(prediction[0]))
    changes = action_changes(frames.labels, frames.offsets)
    rows = counted(frames)
    return measure_accuracy(np.concatenate(outputs)[rows], frames.labels[rows], changes[rows], env.spec)


def action_changes(labels: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Mark the frames whose label differs from the last one.

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


def macro_f1(predicted: NDArray, labels: NDArray) -> float:
    """Unweighted mean of the actions' F1 scores.

    Actions count that occur in `labels` or `predicted`.
    """
    scores = []
    for action in np.union1d(predicted, labels):
        hits = np.sum((predicted == action) & (labels == action))
        total = np.sum(predicted == action) + np.sum(labels == action)
        scores.append(2 * hits / total)
    return float(np.mean(scores))
