"""The idea of a Neuronal Attention Circuit in one picture.

    python benchmarks/figures/nac_idea.py    # seconds; writes docs/figures/nac_idea.png

The champion drove the frames, `backbone_wiring` drew the circuit, and the curves are the layer's closed form
(`nac_drive.policies.nac.logits`). The weights are the softmax of their ends. Only the coefficients of the keys were
chosen, so that the curves differ.
"""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage

import nac_drive as nd
from nac_drive.policies import backbone_wiring
from nac_drive.policies.nac.logits import MODES
from nac_drive.storage.style import LARGE, NAC, NORMAL, PALETTE, SMALL, styled

WIDTH, HEIGHT = 9.0, 4.2
HEADING, SUBTITLE = 3.93, 3.71
"""Heights of the two lines above every part."""
TRACK, NOW = 900004, 240
AGES = (30, 15, 5)
"""Frames between the present frame and each key."""
COLOURS = (PALETTE[0], PALETTE[1], PALETTE[2])
PHI, OMEGA, TIME = (0.95, 0.90, 0.55), (0.4, 5.0, 0.8), (0.92, 0.80, 0.42)
"""Of each key: how strongly its logit rises, how fast it settles, how long it may rise."""
INK, SOFT = "#222222", "#6B6B6B"


def main(out: Path = Path("docs/figures")) -> None:
    """Write nac_idea.png into `out`."""
    with styled():
        figure = Figure(figsize=(WIDTH, HEIGHT))
        page: Any = figure.add_axes((0, 0, 1, 1))
        page.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
        page.axis("off")
        draw_frames(page)
        draw_circuit(page)
        draw_coefficients(page)
        weights = draw_logits(figure.add_axes((0.575, 0.2, 0.25, 0.6)))
        draw_weights(page, weights)
        out.mkdir(parents=True, exist_ok=True)
        figure.savefig(out / "nac_idea.png", dpi=180)


def frames() -> list[np.ndarray]:
    """The frames of the keys, oldest first, and the present frame."""
    images = []
    with closing(nd.make_env(nd.EnvConfig("continuous"))) as env:
        driver = nd.load_driver("champion-continuous")
        observation, _ = env.reset(seed=TRACK)
        state = driver.begin(env)
        for _ in range(NOW + 1):
            images.append(observation[:84])
            action, state = driver.act(observation, state, 1 / 50)
            observation = env.step(action)[0]
    return [images[NOW - age] for age in (*AGES, 0)]


def draw_frames(page: Any) -> None:
    """Left: three frames of the past, and the present one."""
    places = [(0.68, y) for y in (3.2, 2.34, 1.48, 0.5)]
    names = [f"key {number}" for number in (1, 2, 3)] + ["query"]
    for image, (x, y), colour, name in zip(frames(), places, (*COLOURS, INK), names, strict=True):
        box = AnnotationBbox(
            OffsetImage(image, zoom=0.6, interpolation="lanczos"), (x, y), pad=0.12,
            bboxprops={"edgecolor": colour, "linewidth": 2.2, "boxstyle": "round,pad=0.1"},
        )  # fmt: skip
        page.add_artist(box)
        page.text(x + 0.55, y, name, color=colour, fontsize=NORMAL, fontweight="bold", va="center")
    heading(page, 0.9, "Frames", "three of the past, and now")


def draw_circuit(page: Any) -> None:
    """Middle: every neuron and every synapse of a small backbone."""
    wiring = backbone_wiring(8, 12, 0.5, 3)
    layers = ("inter", "command", "motor")
    masks = [wiring.input_mask[:, wiring.group("inter")]]
    masks += [wiring.recurrent_mask[wiring.group(source), wiring.group(target)] for source, target in pairwise(layers)]
    sizes = [len(masks[0]), *(mask.shape[1] for mask in masks)]
    columns = [
        np.column_stack([np.full(size, x), 2.0 + spread * np.linspace(1, -1, size)])
        for x, size, spread in zip((2.35, 2.85, 3.4, 3.95), sizes, (1.05, 0.75, 1.05, 0.42), strict=True)
    ]
    for mask, sources, targets in zip(masks, columns[:-1], columns[1:], strict=True):
        for source, target in np.argwhere(mask):
            ends = np.array([sources[source], targets[target]])
            page.plot(ends[:, 0], ends[:, 1], color=NAC, linewidth=0.7, alpha=0.45, zorder=1)
    for places, colour in zip(columns, (SOFT, NAC, NAC, NAC), strict=True):
        page.scatter(places[:, 0], places[:, 1], s=46, color=colour, edgecolors="white", linewidths=0.8, zorder=2)
    heading(page, 3.2, "Sparse circuit", "wired like a worm's nervous system", NAC)
    arrow(page, (1.75, 2.34), (2.17, 2.2))
    arrow(page, (1.75, 0.62), (2.17, 1.2))


def draw_coefficients(page: Any) -> None:
    """Right of the circuit: the three numbers of a pair of query and key."""
    for y, symbol, meaning in ((2.42, "φ", "how strongly"), (1.58, "ω", "how fast"), (0.55, "t", "how long")):
        page.text(4.27, y, symbol, fontsize=15, color=INK, ha="center", va="center", fontstyle="italic")
        page.text(4.27, y - 0.24, meaning, fontsize=SMALL, color=SOFT, ha="center", va="center")
    page.text(3.0, 0.55, "age of a key", fontsize=SMALL, color=SOFT, ha="center", va="center")
    arrow(page, (3.5, 0.55), (4.1, 0.55))


def draw_logits(axis: Any) -> np.ndarray:
    """The logit of every key over time, and the dot where it is read. Returns the attention weights."""
    times = torch.linspace(0, 1, 200)
    logits = []
    for number, (phi, omega, end) in enumerate(zip(PHI, OMEGA, TIME, strict=True)):
        phi, omega = torch.tensor(phi), torch.tensor(omega)
        curve = MODES["exact"](phi, omega, times, 0)
        rising = times <= end
        logits.append(MODES["exact"](phi, omega, torch.tensor(end), 0))
        axis.plot(times[rising], curve[rising], color=COLOURS[number], linewidth=2.4)
        axis.plot(times[~rising], curve[~rising], color=COLOURS[number], linewidth=1.1, linestyle=(0, (1.5, 1.8)))
        axis.plot(end, logits[-1], "o", color=COLOURS[number], markersize=8, markeredgecolor="white", zorder=3)
    axis.set(xlim=(0, 1.03), ylim=(0, 0.9), xticks=[0, 0.5, 1], yticks=[0, 0.4, 0.8])
    axis.set_xlabel("time")
    for number, (x, y, text) in enumerate(
        ((0.29, 0.63, "strong and slow"), (0.55, 0.09, "settles early"), (0.44, 0.335, "stops early"))
    ):
        axis.text(x, y, text, color=COLOURS[number], fontsize=SMALL)
    return torch.softmax(torch.stack(logits), 0).numpy()


def draw_weights(page: Any, weights: np.ndarray) -> None:
    """Far right: the weights of the keys."""
    for y, weight, colour in zip((2.75, 2.05, 1.35), weights, COLOURS, strict=True):
        page.barh(y, 1.5 * weight, height=0.34, left=7.75, color=colour)
        page.text(7.82 + 1.5 * weight, y, f"{100 * weight:.0f} %", fontsize=NORMAL, va="center", color=colour)
    heading(page, 6.33, "Score of each key", "solves $\\dot a = φ - ω\\,a$, read at $t$")
    heading(page, 8.28, "Attention", "softmax of the scores")
    arrow(page, (7.45, 2.05), (7.68, 2.05))
    arrow(page, (4.55, 2.05), (4.85, 2.05))


def heading(page: Any, x: float, title: str, subtitle: str, colour: str = INK) -> None:
    page.text(x, HEADING, title, ha="center", fontsize=LARGE, fontweight="bold", color=colour)
    page.text(x, SUBTITLE, subtitle, ha="center", fontsize=SMALL, color=SOFT if colour == INK else colour)


def arrow(page: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    page.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": SOFT, "linewidth": 1.4, "shrinkA": 0})


if __name__ == "__main__":
    tyro.cli(main)
