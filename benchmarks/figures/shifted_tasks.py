"""A frame of every published task, two draws each.

python benchmarks/figures/shifted_tasks.py                  # seconds; writes docs/figures/shifts.png
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tyro
from matplotlib.figure import Figure

from nac_drive.envs import PERTURBATIONS, make_env, perturb
from nac_drive.envs.perturbations.published import PublishedTask
from nac_drive.storage.style import NORMAL, styled

TRACK, SEEDS, FRAMES = 3, (2, 7), 79


def seen(spec: str, seed: int) -> np.ndarray:
    """Return the frame after 1.6 s of driving."""
    env = perturb(make_env(), spec, seed)
    frame, _ = env.reset(seed=TRACK)
    for i in range(FRAMES):
        frame, *_ = env.step(np.int64(3 if i % 4 else 2))
    return frame


@styled()
def main(out: Path = Path("docs/figures")) -> None:
    """Write shifts.png into `out`."""
    names = [name for name, (least, *_) in PERTURBATIONS.items() if isinstance(least, PublishedTask)]
    figure = Figure(figsize=(11, 5.4), layout="constrained")
    grid = figure.subplots(len(SEEDS), len(names))
    for row, seed in zip(grid, SEEDS, strict=True):
        for axes, name in zip(row, names, strict=True):
            axes.imshow(seen(f"{name}:1", seed))
            axes.set(xticks=[], yticks=[])
            axes.set_title(name, fontsize=NORMAL, fontweight="normal")
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "shifts.png", dpi=100)


if __name__ == "__main__":
    tyro.cli(main)
