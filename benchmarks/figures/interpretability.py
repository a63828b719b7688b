"""The papers' pictures of what drivers look at and of what their neurons do (docs/interpretability.md).

    python benchmarks/figures/interpretability.py --drivers runs/nac-exact runs/lstm runs/ncp --maps-of runs/ncp

saliency_grid.png: the same frames of one episode of the expert, and under them the maps of every driver by
VisualBackProp, Grad-CAM and the gradient of the steering (NAC paper, Fig. 6; thesis, section 6.4). neuron_maps.png: the
track that a driver drove, painted with the activity of single neurons of its core (thesis, section 6.4; NAC paper,
Fig. 4). A map is scaled by its largest value above the status bar.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

import nac_drive as nd
from nac_drive.analysis.recording import Recording, record
from nac_drive.analysis.saliency import grad_cam, input_gradient, visual_backprop
from nac_drive.data_collection.drivers import driver_name
from nac_drive.data_collection.trained_env import env_for
from nac_drive.envs.readings import ZOOM_FRAMES
from nac_drive.envs.wrappers import BAR_TOP

METHODS = ("VisualBackProp", "Grad-CAM", "input gradient")
NEURONS = 12


@dataclass
class Options:
    """Drivers and where the figures go."""

    drivers: tuple[str, ...]
    """Drivers of the saliency grid."""
    maps_of: str
    """Driver of the neuron maps."""
    out: Path = Path("docs/figures")
    track: int = 800000
    """The first validation track."""


def main(options: Options) -> None:
    """Draw both figures."""
    torch.set_num_threads(1)
    expert = _episode("expert", options.track)
    _grid(expert, options.drivers).savefig(options.out / "saliency_grid.png", dpi=110)
    _neuron_maps(_episode(options.maps_of, options.track)).savefig(options.out / "neuron_maps.png", dpi=110)


def _episode(name: str, track: int) -> Recording:
    driver = nd.resolve_driver(name, nd.EnvConfig("continuous"))
    with closing(nd.make_env(env_for(driver, "continuous"))) as env:
        return record(env, driver, track, name=driver_name(name))


def _moments(episode: Recording) -> dict[str, int]:
    """Name -> frame: a straight, the sharpest bends, and the fastest moment."""
    bend = episode.series["curvature"].copy()
    bend[: ZOOM_FRAMES + 10] = np.nan
    speed = np.where(np.isnan(bend), -np.inf, episode.series["speed"])
    return {
        "straight": int(np.nanargmin(np.abs(bend))),
        "left": int(np.nanargmax(bend)),
        "right": int(np.nanargmin(bend)),
        "fastest": int(speed.argmax()),
    }


def _grid(episode: Recording, drivers: tuple[str, ...]) -> Figure:
    moments = _moments(episode)
    frames, dt = torch.from_numpy(episode.frames), torch.from_numpy(episode.series["dt"])
    columns = [(method, name, frame) for method in METHODS for name, frame in moments.items()]
    figure = Figure(figsize=(1.05 * len(columns) + 1, 1.12 * (len(drivers) + 1) + 0.4))
    axes = figure.subplots(len(drivers) + 1, len(columns), squeeze=False)
    for axis, (method, name, frame) in zip(axes[0], columns, strict=True):
        axis.imshow(episode.frames[frame])
        axis.set_title(f"{method}\n{name}" if name == "straight" else name, fontsize=8, loc="left")
    axes[0][0].set_ylabel("frame", fontsize=9)
    for row, spec in zip(axes[1:], drivers, strict=True):
        driver = nd.resolve_driver(spec, nd.EnvConfig("continuous"))
        assert isinstance(driver, nd.Driver)
        each = visual_backprop(driver, frames), grad_cam(driver, frames, dt), input_gradient(driver, frames, dt)
        maps: dict[str, torch.Tensor] = dict(zip(METHODS, each, strict=True))
        row[0].set_ylabel(driver_name(spec), fontsize=9)
        for axis, (method, _, frame) in zip(row, columns, strict=True):
            heat = maps[method][frame].numpy(force=True)
            grey = episode.frames[frame].mean(axis=-1)
            axis.imshow(grey, cmap="gray", vmin=0, vmax=510)
            axis.imshow(heat, vmin=0, vmax=max(heat[:BAR_TOP].max(), 1e-12), cmap="inferno", alpha=0.7)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    figure.tight_layout(pad=0.4)
    return figure


def _neuron_maps(episode: Recording) -> Figure:
    """The neurons of the core's state, or of its output, that change most with the manoeuvre."""
    group = next(name for name in [*episode.activity] if name not in ("features",))
    activity = episode.activity[group][ZOOM_FRAMES:]
    steer = episode.series["steer"][ZOOM_FRAMES:]
    spread = activity.std(axis=0)
    alike = np.array(
        [np.corrcoef(steer, neuron)[0, 1] if sd > 1e-6 else 0.0 for neuron, sd in zip(activity.T, spread, strict=True)]
    )
    chosen = np.argsort(-np.abs(alike))[:NEURONS]
    road = episode.position[ZOOM_FRAMES:]
    segments = np.stack([road[:-1], road[1:]], axis=1)
    figure = Figure(figsize=(10, 6.2))
    for axis, neuron in zip(figure.subplots(3, 4).flat, chosen, strict=False):
        lines = LineCollection(list(segments), cmap="viridis", linewidths=4)
        lines.set_array(activity[:-1, neuron])
        axis.add_collection(lines)
        axis.autoscale()
        axis.set_aspect("equal")
        axis.axis("off")
        axis.set_title(f"{group} {neuron}, r = {alike[neuron]:+.2f}", fontsize=9)
        figure.colorbar(lines, ax=axis, shrink=0.6).ax.tick_params(labelsize=7)
    figure.tight_layout()
    return figure


if __name__ == "__main__":
    main(tyro.cli(Options))
