"""A wiring as a figure: discs for neurons, lines for synapses."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from nac_drive.policies.wiring.wiring import GROUPS, Wiring

COLUMNS = ("inputs", *GROUPS)
COLOURS = {
    "inputs": "#5c6670",
    "sensory": "#1b9e77",
    "inter": "#3b6fb6",
    "command": "#d1711c",
    "motor": "#b3285e",
}
DISABLED = "#c9c9c9"

ROWS = 24
"""A group with more neurons than this takes several columns, staggered."""

RADIUS = 0.33
"""Radius of a disc; the neurons of a column are 1 apart."""


def draw_wiring(wiring: Wiring, title: str | None = None) -> Figure:
    """Draw the columns inputs | sensory | inter | command | motor. Signals run from left to right.

    Every synapse of both masks is one line, for any weight or sign: straight to the next active column, bent within a
    column, across columns and backwards. Disabled groups are grey, empty ones have a title and no disc. Artists carry
    gids such as "neurons:inter" and "synapses:inter:command".

    Args:
        wiring: The wiring.
        title: Title of the figure; None for none.

    Returns:
        The figure, free of pyplot; save it with `figure.savefig(path)`.
    """
    disabled = set(GROUPS) - set(wiring.active_groups)
    sizes = {"inputs": wiring.inputs} | {name: len(range(wiring.units)[wiring.group(name)]) for name in GROUPS}
    places, centres, width, rows = _places(sizes)
    # Inches per unit of distance: small wirings get large discs, large ones a larger figure.
    scale = min(0.55, 7.0 / (rows + 1))
    figure = Figure(figsize=(max(7.0, scale * width + 1.0), max(2.5, scale * rows + 1.4)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_aspect("equal")
    axes.axis("off")
    counts = []
    for source, target, block in _blocks(wiring):
        ends = np.argwhere(block)
        if len(ends):
            _draw_synapses(axes, wiring, source, target, places[source][ends[:, 0]], places[target][ends[:, 1]])
            counts.append(f"{source}→{target} {len(ends)}")
    for name in COLUMNS:
        colour = DISABLED if name in disabled else COLOURS[name]
        discs = PatchCollection([Circle((x, y), RADIUS) for x, y in places[name]], zorder=3)
        discs.set(facecolor=colour, edgecolor="white" if name not in disabled else "#ededed", linewidth=0.5)
        discs.set_gid(f"neurons:{name}")
        axes.add_collection(discs)
    drawn = axes.dataLim  # arcs may reach beyond the discs
    inch = 1.0 / scale
    top, bottom = drawn.y1 + (0.6 if disabled else 0.4) * inch, drawn.y0 - 0.1 * inch
    for name in COLUMNS:
        label = f"{name}\n{sizes[name]}" + ("\n(disabled)" if name in disabled else "")
        ink = "#8a8a8a" if name in disabled else COLOURS[name]
        axes.text(centres[name], top, label, ha="center", va="top", color=ink, fontsize=10)
    caption = textwrap.fill("synapses: " + ", ".join(counts), max(60, int(scale * width * 11)))
    axes.text(0.5 * width, bottom, caption, ha="center", va="top", fontsize=9, color="#444444")
    axes.set_xlim(min(-1.5, drawn.x0 - 0.5), max(width + 1.5, drawn.x1 + 0.5))
    axes.set_ylim(bottom - 0.2 * inch * (1 + caption.count("\n")), top)
    if title:
        figure.suptitle(title, fontsize=12, parse_math=False)
    return figure


def _places(sizes: dict[str, int]) -> tuple[dict[str, np.ndarray], dict[str, float], float, int]:
    """Return each group's positions and centre, the width, the number of rows."""
    columns = {name: max(1, -(-size // ROWS)) for name, size in sizes.items()}
    rows = {name: -(-size // columns[name]) for name, size in sizes.items()}
    highest = max(rows.values())
    gap = max(3.0, 0.4 * highest)
    places, centres, x = {}, {}, 0.0
    for name in COLUMNS:
        spacing = np.clip(highest / max(1, rows[name]), 1.0, 1.5)
        row, column = np.divmod(np.arange(sizes[name]), columns[name])
        staggered = (0.25 - 0.5 * (column % 2)) if columns[name] > 1 else 0.0
        y = spacing * (0.5 * (rows[name] - 1) - row + staggered)
        places[name] = np.stack([x + column, y], axis=1)
        centres[name] = x + 0.5 * (columns[name] - 1)
        x += columns[name] - 1 + gap
    return places, centres, x - gap, highest


def _blocks(wiring: Wiring) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield source, target and mask block of every pair of groups."""
    for target in GROUPS:
        yield "inputs", target, wiring.input_mask[:, wiring.group(target)]
    for source in GROUPS:
        for target in GROUPS:
            yield source, target, wiring.recurrent_mask[wiring.group(source), wiring.group(target)]


def _draw_synapses(axes: Axes, wiring: Wiring, source: str, target: str, starts: np.ndarray, ends: np.ndarray) -> None:
    path = ("inputs", *wiring.active_groups)
    ahead = path.index(target) - path.index(source)
    if ahead == 1:
        curves = np.stack([starts, ends], axis=1)  # (n, 2, 2)
    else:
        curves = _bent(starts, ends, loops=ahead == 0)
    # The more lines, the fainter each: a dense block stays a texture, a sparse one stays countable.
    alpha = float(np.clip(8.0 / np.sqrt(len(starts)), 0.18, 0.8))
    lines = LineCollection(list(curves), colors=[to_rgba(COLOURS[source], alpha)], linewidths=0.7, zorder=1)
    lines.set_gid(f"synapses:{source}:{target}")
    axes.add_collection(lines)


def _bent(starts: np.ndarray, ends: np.ndarray, *, loops: bool) -> np.ndarray:
    """Return quadratic arcs (n, 25, 2) that swing to the right.

    A neuron's synapse onto itself is a loop beside it.
    """
    s = np.linspace(0.0, 1.0, 25)[:, None]
    curves = []
    for start, end in zip(starts, ends, strict=True):
        if loops and np.array_equal(start, end):
            angle = 2.0 * np.pi * s
            curves.append(start + 0.9 * RADIUS * np.hstack([1.0 - np.cos(angle), np.sin(angle)]))
            continue
        along = end - start
        middle = 0.5 * (start + end) + (0.35 if loops else 0.2) * np.array([along[1], -along[0]])
        curves.append((1 - s) ** 2 * start + 2 * s * (1 - s) * middle + s**2 * end)
    return np.array(curves)
