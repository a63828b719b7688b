"""Figures of the published tasks.

Two draws of every task, and what the encoder chroma sees of it.

python benchmarks/figures/shifted_tasks.py                  # seconds; writes docs/figures/shifts.png and chroma.png
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from matplotlib.figure import Figure

from nac_drive.envs import PERTURBATIONS, make_env, perturb
from nac_drive.envs.perturbations.published import PublishedTask
from nac_drive.policies import ENCODERS
from nac_drive.storage.style import NORMAL, styled

TRACK, SEEDS, FRAMES = 3, (2, 7), 79


def seen(spec: str, seed: int) -> np.ndarray:
    """Return the frame after 1.6 s of driving."""
    env = perturb(make_env(), spec, seed)
    frame, _ = env.reset(seed=TRACK)
    for i in range(FRAMES):
        frame, *_ = env.step(np.int64(3 if i % 4 else 2))
    return frame


def seen_by_chroma(frame: np.ndarray) -> np.ndarray:
    """Return what the encoder sees, within black and white."""
    encoder: Any = ENCODERS["chroma"](frame.shape, 8, 0.0)
    return encoder.seen(torch.from_numpy(frame)[None])[0].detach().clamp(0, 255).byte().numpy()


@styled()
def main(out: Path = Path("docs/figures")) -> None:
    """Write shifts.png and chroma.png into `out`."""
    names = [name for name, (least, *_) in PERTURBATIONS.items() if isinstance(least, PublishedTask)]
    draws = [{name: seen(f"{name}:1", seed) for name in names} for seed in SEEDS]
    undisturbed = {"undisturbed": seen("gap:0", SEEDS[0])} | draws[1]
    out.mkdir(parents=True, exist_ok=True)
    draw(draws).savefig(out / "shifts.png", dpi=100)
    below = {f"{name}, chroma": seen_by_chroma(frame) for name, frame in undisturbed.items()}
    draw([undisturbed, below]).savefig(out / "chroma.png", dpi=100)


def draw(rows: list[dict[str, np.ndarray]]) -> Figure:
    """Return a figure of frames under their names."""
    figure = Figure(figsize=(2.75 * len(rows[0]), 5.4), layout="constrained")
    for line, row in zip(figure.subplots(len(rows), len(rows[0])), rows, strict=True):
        for axes, (name, frame) in zip(line, row.items(), strict=True):
            axes.imshow(frame)
            axes.set(xticks=[], yticks=[])
            axes.set_title(name, fontsize=NORMAL, fontweight="normal")
    return figure


if __name__ == "__main__":
    tyro.cli(main)
