"""Speed, place across the road and heading, read from a frame through each encoder by regression.

    nac-drive collect --driver controller --noise 0.15 --episodes 40 --out episodes
    python benchmarks/protocols/encoder_reach.py episodes

Speed stands in the status bar only, as a gauge of at most five rows at the bottom of the frame. Without padding,
strides of 2 leave out what does not fill a step: four of them leave out the last 15 rows and columns, the whole bar.
Prints the last row that the features of an encoder depend on, and the fraction of the variance that a new network
explains on every eighth episode, which it did not learn from.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import torch
from torch import nn

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.policies import ConvEncoder
from nac_drive.policies.encoders import COMPACT, PAPER

TARGETS = ("speed", "lateral_offset", "heading_error")
EPOCHS, BATCH = 4, 128
LAYERS = {"paper": PAPER, "compact": COMPACT, "compact, unpadded": ((16, 5, 0), (32, 3, 0), (32, 3, 0), (32, 3, 0))}


def last_row(layers: tuple[tuple[int, int, int], ...]) -> int:
    """The last of the 96 rows that the last row of the last map depends on."""
    size, sizes = 96, []
    for _, kernel, padding in layers:
        size = (size + 2 * padding - kernel) // 2 + 1
        sizes.append(size)
    row = sizes[-1] - 1
    for _, kernel, padding in reversed(layers):
        row = 2 * row + kernel - 1 - padding
    return min(row, 95)


def explained(layers: tuple[tuple[int, int, int], ...], episodes: Path) -> list[float]:
    frames = Demonstrations.open(episodes).load()
    images = torch.from_numpy(frames.frames)
    targets = np.stack([frames.telemetry[name] for name in TARGETS], axis=1)
    episode = np.repeat(np.arange(len(frames.seeds)), np.diff(frames.offsets))
    learned, validation = (np.flatnonzero(~frames.zooming & (episode % 8 == 7) == kept) for kept in (False, True))
    mean, sd = targets[learned].mean(axis=0), targets[learned].std(axis=0)
    scaled = torch.from_numpy((targets - mean) / sd).float()
    torch.manual_seed(0)
    network = nn.Sequential(ConvEncoder((96, 96, 3), 64, 0.0, layers), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    rng = np.random.default_rng(0)
    for _ in range(EPOCHS):
        for batch in np.split(rng.permutation(learned), range(BATCH, len(learned), BATCH)):
            loss = (network(images[batch]) - scaled[batch]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        read = torch.cat([network(images[rows]) for rows in np.array_split(validation, 32)])
    error = (read - scaled[validation]).square().mean(dim=0)
    return (1 - error / scaled[validation].var(dim=0)).tolist()


def main() -> None:
    parser = ArgumentParser(description="Speed, place and heading, read from a frame through each encoder.")
    parser.add_argument("episodes", type=Path)
    options = parser.parse_args()
    print("| encoder | last row seen, of 95 | " + " | ".join(TARGETS) + " |\n|---|---:|" + "---:|" * len(TARGETS))
    for name, layers in LAYERS.items():
        fractions = " | ".join(f"{fraction:.2f}" for fraction in explained(layers, options.episodes))
        print(f"| {name} | {last_row(layers)} | {fractions} |", flush=True)


if __name__ == "__main__":
    main()
