"""Draw three moments from above and from the seat.

The figure is docs/figures/seat_views.png. Its third line shows the regions of the frames from the seat.

python benchmarks/figures/seat_views.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import nac_drive as nd
from nac_drive.envs import Step, rollout
from nac_drive.envs.seat import SEAT_REGIONS, seat_regions
from nac_drive.storage.figure import write_figure
from nac_drive.storage.style import styled

OUT = Path("docs/figures/seat_views.png")
TRACK, FRAMES, SIZE = 900_003, (90, 147, 438), (192, 192)
COLOURS = ("#8fd08f", "#f2b134", "#5b6770", "#9aa5ad", "#d6453d", "#c9b8ea", "#a9d3f5", "#111111")
"""A colour of each region."""


@styled()
def main() -> None:
    """Drive with the controller, and draw."""
    moments: list[list[np.ndarray]] = []
    env: Any = nd.make_env(nd.EnvConfig("continuous"))

    def note(step: Step) -> None:
        if step.index in FRAMES:
            simulator = env.unwrapped
            labels = seat_regions(simulator, SIZE)
            moments.append([simulator.frame_from("above"), simulator.frame_from("seat", SIZE), labels])

    rollout(env, nd.resolve_driver("controller", nd.EnvConfig("continuous")), TRACK, subscribers=[note])
    palette = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in COLOURS], np.uint8)
    figure = Figure(figsize=(7.2, 5.2), layout="constrained")
    axes: Any = figure.subplots(3, len(FRAMES))
    for column, (above, seat, labels) in enumerate(moments):
        for row, image in enumerate((above, seat, palette[labels])):
            axes[row, column].imshow(image)
            axes[row, column].set_axis_off()
    handles = [axes[0, 0].plot([], [], "s", color=colour)[0] for colour in COLOURS]
    figure.legend(handles, SEAT_REGIONS, loc="outside right center", frameon=False)
    write_figure(OUT, figure)


if __name__ == "__main__":
    main()
