"""Steering error by the frames since the last seen one.

    python benchmarks/protocols/blind_error.py runs/lead/lstm-0 runs/lead/nac-sharp-0 --dataset broken

Drivers predict the labels of the episodes that a comparison keeps out of training. A black frame counts as lost. A row
has one driver under one perturbation; its columns say for how many frames the driver has seen nothing. The memory of a
window ends where the error rises at its length.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import nac_drive as nd
from nac_drive.data_collection.dataset.frames import Frames
from nac_drive.markdown import markdown_table
from nac_drive.policies.encoders import ZeroBlack
from nac_drive.training.config import TrainConfig
from nac_drive.training.data.features import frozen_features
from nac_drive.training.data.memory import read_episodes

BINS = (0, 1, 3, 5, 8, 13)
"""First number of lost frames of every column."""
_CPU = torch.device("cpu")
_CHUNK = 256


def frames_blind(lost: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the frames since the last seen one.

    Args:
        lost: (N,), whether a frame is lost.
        offsets: (E + 1,): episode e is the rows offsets[e] to offsets[e + 1].
    """
    row = np.arange(len(lost))
    begins = np.repeat(offsets[:-1], np.diff(offsets)) - 1  # nothing is seen before the first frame
    return row - np.maximum(np.maximum.accumulate(np.where(lost, -1, row)), begins)


def steering_errors(driver: nd.Driver, frames: Frames, features: torch.Tensor) -> NDArray[np.float32]:
    """Return |steering - label| of every frame, (N,)."""
    outputs = []
    for first, end in pairwise(frames.offsets):
        state = driver.initial_state(1)
        for start in range(first, end, _CHUNK):
            rows = slice(start, min(start + _CHUNK, end))
            with torch.no_grad():
                prediction, state = driver.decide(features[None, rows], torch.as_tensor(frames.dt[None, rows]), state)
            outputs.append(driver.action_head.action(prediction[0])[:, 0])
    return np.abs(np.concatenate(outputs) - frames.labels[:, 0])


def rows_of(name: str, errors: NDArray, frames: Frames, blind: NDArray[np.int64], specs: list[str]) -> list[list[str]]:
    """Return mean errors in thousandths by perturbation."""
    rows = []
    which = np.repeat(frames.seeds, np.diff(frames.offsets)) % len(specs)
    column = np.searchsorted(BINS, blind, side="right") - 1
    for number, spec in enumerate(specs):
        counted = (which == number) & ~frames.zooming
        cells = [errors[counted], *(errors[counted & (column == place)] for place in range(len(BINS)))]
        rows.append([name, spec, *(f"{1000 * cell.mean():.0f}" if len(cell) else "" for cell in cells)])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Steering error by the frames since the last seen one.")
    parser.add_argument("runs", nargs="+", type=Path, help="runs in continuous control, each with a frozen encoder")
    parser.add_argument("--dataset", type=Path, required=True, help="the dataset that they learned from")
    options = parser.parse_args()
    dataset = nd.Demonstrations.open(options.dataset)
    _, seeds = dataset.split(TrainConfig().validation_fraction)
    frames = read_episodes(dataset, seeds, _CPU, stream=True)
    spans = [slice(start, start + _CHUNK) for start in range(0, len(frames), _CHUNK)]
    lost = np.concatenate([~frames.frames[rows].any(axis=(1, 2, 3)) for rows in spans])
    blind, specs = frames_blind(lost, frames.offsets), (dataset.meta.env.perturb or "none").split(",")
    rows = []
    for run in options.runs:
        driver = nd.load_driver(run).eval()
        encoder = ZeroBlack(driver.encoder) if driver.config.zero_lost_frames else driver.encoder
        (features,) = frozen_features(encoder, frames, dataset.meta.env, _CPU, dataset=options.dataset)
        rows += rows_of(run.name, steering_errors(driver, frames, features), frames, blind, specs)
    columns = [f"{first} to {after - 1}" if after > first + 1 else f"{first}" for first, after in pairwise(BINS)]
    print(markdown_table(("driver", "perturbation", "all", *columns, f"{BINS[-1]} and more"), rows, "ll" + 7 * "r"))


if __name__ == "__main__":
    main()
