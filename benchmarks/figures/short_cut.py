"""Draw a lap with a short cut.

The figure has the map, the place, and what the driver sees there.

python benchmarks/figures/short_cut.py runs/seat-hard 42037     # writes docs/figures/short_cut.png
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from matplotlib.figure import Figure

import nac_drive as nd
from nac_drive.data_collection.trained_env import env_for
from nac_drive.envs import Step, rollout
from nac_drive.storage.figure import write_figure
from nac_drive.storage.style import NORMAL, styled

SKIPPED = 10
"""Tiles between two frames that make a short cut."""
BEFORE, AFTER, SHOWN, EVERY = 28, 12, 8, 5
"""First frame before the cut, path after it, number of frames, and their distance."""
NEAR = 50.0
"""Half the width of the place, in units."""


@styled()
def main(
    driver: Annotated[str, tyro.conf.Positional],
    track: Annotated[int, tyro.conf.Positional],
    out: Path = Path("docs/figures/short_cut.png"),
) -> None:
    """Drive one lap and draw it.

    Args:
        driver: Name or folder of a driver.
        track: Seed of the track.
        out: The figure.
    """
    loaded = nd.resolve_driver(driver, nd.EnvConfig("continuous"))
    env: Any = nd.make_env(env_for(loaded))
    frames, places, tiles = [], [], []

    def note(step: Step) -> None:
        simulator = env.unwrapped
        frames.append(step.observation)
        places.append(simulator.car.hull.position)
        tiles.append(simulator.pose.index)

    rollout(env, loaded, track, subscribers=[note])
    line, path = env.unwrapped.centre_line.points, np.array(places)
    count = len(line)
    steps = (np.diff(tiles) + count // 2) % count - count // 2
    cuts = np.flatnonzero(np.abs(steps) > SKIPPED)
    if not len(cuts):
        sys.exit(f"track: {driver} takes no short cut on track {track}; name another track.")
    cut = int(cuts[0])
    figure = Figure(figsize=(7.2, 5), layout="constrained")
    grid = figure.add_gridspec(3, SHOWN // 2, height_ratios=(2.2, 1, 1))
    whole, near = figure.add_subplot(grid[0, : SHOWN // 4]), figure.add_subplot(grid[0, SHOWN // 4 :])
    for axes, width in ((whole, 4), (near, 16)):
        axes.plot(*np.vstack((line, line[:1])).T, color="0.75", linewidth=width, solid_joinstyle="round")
        axes.plot(*path[: cut + AFTER * 2].T, color="#d6453d", linewidth=1.5)
        axes.set_aspect("equal")
        axes.set_axis_off()
    x, y = path[cut]
    near.set(xlim=(x - NEAR, x + NEAR), ylim=(y - NEAR / 2, y + NEAR / 2))
    for number in range(SHOWN):
        frame = min(max(0, cut - BEFORE + number * EVERY), len(frames) - 1)
        axes = figure.add_subplot(grid[1 + number // (SHOWN // 2), number % (SHOWN // 2)])
        axes.imshow(frames[frame])
        axes.set_title(f"{(frame - cut) / 50:+.2f} s", fontsize=NORMAL, fontweight="normal")
        axes.set_axis_off()
    write_figure(out, figure)


if __name__ == "__main__":
    tyro.cli(main)
