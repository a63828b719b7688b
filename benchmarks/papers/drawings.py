"""Figures of recorded episodes.

They show cells on the track, saliency maps, their similarity under noise, steepness and components.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nac_drive.analysis.cells import BACKBONE, COUPLING, SIGNALS
from nac_drive.analysis.probe import FEATURES
from nac_drive.envs import PERTURBATIONS, readings
from nac_drive.storage.figure import write_figure
from nac_drive.storage.style import HEAT_MAP, SMALL, SOFT, looks_of, styled

if TYPE_CHECKING:  # slow to import
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

MOMENTS = 6
"""Frames of a row of saliency maps."""
MAPS = 28
"""Most neurons that are drawn one by one."""
METHOD = "Grad-CAM"


@dataclass(frozen=True)
class Seen:
    """One recorded episode of an entry, and its row."""

    arrays: Mapping[str, np.ndarray]
    """What `Recording.save` wrote, without the zoom-in of the first second."""
    row: Mapping[str, Any]

    @classmethod
    def read(cls, file: Path, row: Mapping[str, Any]) -> Seen:
        """Read an episode."""
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        count = len(arrays["frames"])
        over_time = {name for name, values in arrays.items() if values.ndim and len(values) == count}
        return cls(arrays | {name: arrays[name][readings.ZOOM_FRAMES :] for name in over_time}, row)

    def has(self, group: str) -> bool:
        """Return whether a group of neurons or cells was recorded."""
        return self.activity(group) is not None

    def activity(self, group: str) -> np.ndarray | None:
        """Return the values (T, N) of a group."""
        return self.arrays.get(f"activity/{group}", self.arrays.get(f"signals/{group}"))

    @property
    def neurons(self) -> str:
        """The core's first group of neurons.

        It is the output where there is none.
        """
        groups = (name.removeprefix("activity/") for name in self.arrays if name.startswith("activity/"))
        return next(name for name in groups if name != FEATURES)


@styled()
def draw_cells(path: Path, seen: Mapping[str, Seen]) -> None:
    """Draw every group of cells on the track.

    All its neurons are below (NAC paper, Fig. 4). The track shows the mean of the group, the paper's centroid.

    Args:
        path: The new PNG.
        seen: One entry.
    """
    from matplotlib.figure import Figure

    ((name, episode),) = seen.items()
    rows = [[group for group in line if episode.has(group)]
            for line in (("q", "k", "v"), BACKBONE, SIGNALS)]  # fmt: skip
    rows = [line for line in rows if line]
    wide = max(map(len, rows))
    figure = Figure(figsize=(3.1 * wide, 4.2 * len(rows)), layout="constrained")
    heights = [height for _ in rows for height in (3.2, 1)]
    axes = figure.subplots(2 * len(rows), wide, height_ratios=heights, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for number, line in enumerate(rows):
        for column, group in enumerate(line):
            values = episode.activity(group)
            assert values is not None
            track, below = axes[2 * number, column], axes[2 * number + 1, column]
            _track(track, episode.arrays["position"], values.mean(axis=1), f"{group} ({values.shape[1]})")
            below.axis("on")
            below.grid(visible=False)
            below.imshow(_scaled(values).T, aspect="auto", cmap=HEAT_MAP, interpolation="nearest")
            below.set_yticks([])
            below.set_xlabel("frames" if number == len(rows) - 1 else "", fontsize=SMALL)
    figure.suptitle(f"{name}: mean of each group on the track, and every cell over time, each on its own scale")
    write_figure(path, figure)


@styled()
def draw_maps(path: Path, seen: Mapping[str, Seen]) -> None:
    """Draw every neuron on the track (thesis, Fig. 6.6 to 6.8).

    Of LTC and NCP, also how fast it follows its inputs.

    Args:
        path: The new PNG.
        seen: One entry.
    """
    from matplotlib.figure import Figure

    ((name, episode),) = seen.items()
    wide, kinds = 7, {episode.neurons: "", **({COUPLING: ", seconds"} if episode.has(COUPLING) else {})}
    neurons = {kind: _most_varied(episode.arrays[f"activity/{kind}"]) for kind in kinds}
    lines = [-(-len(numbers) // wide) for numbers in neurons.values()]
    figure = Figure(figsize=(1.9 * wide, 0.4 + 1.6 * sum(lines)), layout="constrained")
    blocks = figure.subfigures(len(kinds), 1, height_ratios=lines, squeeze=False).flat
    for block, count, (kind, numbers) in zip(blocks, lines, neurons.items(), strict=True):
        axes = block.subplots(count, wide, squeeze=False).ravel()
        for axis in axes:
            axis.axis("off")
        for axis, number in zip(axes, numbers, strict=False):
            values = episode.arrays[f"activity/{kind}"][:, number]
            _track(axis, episode.arrays["position"], values, str(number), bar=bool(kinds[kind]))
        block.suptitle(f"{kind}{kinds[kind]}", fontsize=SMALL)
    figure.suptitle(f"{name}: neurons on the track")
    write_figure(path, figure)


@styled()
def draw_saliency(path: Path, seen: Mapping[str, Seen]) -> None:
    """Draw frames of every network's own drive, and their saliency.

    See the NAC paper, Fig. 6, and the thesis, Fig. 6.5.

    Args:
        path: The new PNG.
        seen: The entries.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.75 * MOMENTS, 1.85 * len(seen)), layout="constrained")
    axes = figure.subplots(len(seen), MOMENTS, squeeze=False)
    for line, (name, episode) in zip(axes, seen.items(), strict=True):
        frames, maps = episode.arrays["frames"], episode.arrays[f"saliency/{METHOD}"]
        for axis, moment in zip(line, _moments(len(frames)), strict=True):
            heat = maps[moment] / 255
            axis.imshow(frames[moment])
            axis.imshow(heat, cmap="inferno", alpha=0.75 * heat / max(heat.max(), 1e-6), interpolation="bilinear")
            axis.set_xticks([])
            axis.set_yticks([])
            axis.grid(visible=False)
        line[0].set_ylabel(name, fontsize=SMALL)
    figure.suptitle(f"{METHOD} of the steering, {MOMENTS} moments of each network's own drive")
    write_figure(path, figure)


@styled()
def draw_noise(path: Path, seen: Mapping[str, Seen]) -> None:
    """Draw the similarity of saliency maps under noise (thesis, Fig. 6.4b).

    Args:
        path: The new PNG.
        seen: The entries.
    """
    levels = [level.variance for level in PERTURBATIONS["gaussian-noise"]]  # type: ignore[attr-defined]
    lines = {
        name: ([0, *levels], [1, *(episode.row[f"similarity_{number}"] for number in range(1, len(levels) + 1))])
        for name, episode in seen.items()
    }
    _draw_lines(path, lines, "variance of the noise on the camera", "similarity of saliency maps (SSIM)", marks=True)


@styled()
def draw_steepness(path: Path, seen: Mapping[str, Seen]) -> None:
    """Draw the steepest change of every neuron, sorted (thesis, Fig. 6.4c).

    Args:
        path: The new PNG.
        seen: The entries.
    """
    lines = {
        name: (np.linspace(0, 100, len(each.row["steepest"])), each.row["steepest"]) for name, each in seen.items()
    }
    _draw_lines(path, lines, "neurons, sorted, %", "steepest change per frame", scale="log")


def _draw_lines(
    path: Path,
    lines: Mapping[str, tuple[ArrayLike, ArrayLike]],
    xlabel: str,
    ylabel: str,
    *,
    scale: str = "linear",
    marks: bool = False,
) -> None:
    """Draw one line of (x, y) for each name."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.8), layout="constrained")
    axis = figure.subplots()
    for name, look in looks_of(lines).items():
        axis.plot(
            *lines[name], label=name, color=look.color, ls=look.linestyle, marker=look.marker if marks else None
        )  # fmt: skip
    axis.set_xlabel(xlabel)
    axis.set_ylabel(ylabel)
    axis.set_yscale(scale)
    axis.legend()
    write_figure(path, figure)


@styled()
def draw_components(path: Path, seen: Mapping[str, Seen]) -> None:
    """Draw principal components (thesis, Fig. 6.5f to n).

    Bars show the variance that they explain; the first two are on the track.

    Args:
        path: The new PNG.
        seen: The entries.
    """
    from activity import principal_components  # beside this file
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.7 * len(seen), 7.4), layout="constrained")
    axes = figure.subplots(3, len(seen), squeeze=False)
    looks = looks_of(seen)
    for column, (name, episode) in enumerate(seen.items()):
        shares = 100 * np.array(episode.row["components"])
        bars, *tracks = axes[:, column]
        places = np.arange(1, len(shares) + 1)
        bars.bar(places, shares, color=looks[name].color)
        bars.plot(places, shares.cumsum(), color=SOFT, marker="o")
        bars.set_ylim(0, 103)
        bars.set_title(name)
        bars.set_xlabel("component")
        bars.set_ylabel("variance, %" if column == 0 else "")
        scores = principal_components(episode.arrays[f"activity/{episode.neurons}"]).scores
        for number, axis in enumerate(tracks):
            _track(axis, episode.arrays["position"], scores[:, number], f"component {number + 1}")
    write_figure(path, figure)


def _track(axis: Axes, position: np.ndarray, values: np.ndarray, title: str, *, bar: bool = True) -> None:
    """Paint the driven line with values (T,).

    The colours span 2 % to 98 % of them.
    """
    from matplotlib.collections import LineCollection

    axis.axis("off")
    axis.set_aspect("equal")
    axis.set_title(title, fontsize=SMALL, fontweight="normal")
    lines = LineCollection([*np.stack([position[:-1], position[1:]], axis=1)], cmap=HEAT_MAP, linewidths=3.0)
    low, high = np.quantile(values, (0.02, 0.98))
    lines.set_array(values[:-1])
    lines.set_clim(low, high if high > low else low + 1)
    axis.add_collection(lines)
    axis.autoscale_view()
    if bar and axis.figure is not None:
        mappable = axis.figure.colorbar(lines, ax=axis, shrink=0.6, pad=0.02)  # type: ignore[union-attr]
        mappable.ax.tick_params(labelsize=SMALL - 2)
        mappable.outline.set_visible(False)  # type: ignore[operator]


def _most_varied(values: np.ndarray) -> list[int]:
    """Return the neurons that vary most, in their order."""
    varied = np.argsort(values.std(axis=0))[::-1][:MAPS]
    return sorted(varied.tolist())


def _moments(count: int) -> Sequence[int]:
    return np.linspace(0, count - 1, MOMENTS + 2).round().astype(int)[1:-1].tolist()


def _scaled(values: np.ndarray) -> np.ndarray:
    low, high = values.min(axis=0), values.max(axis=0)
    return (values - low) / np.where(high > low, high - low, 1)
