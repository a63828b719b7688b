"""What networks look at, and what their neurons do.

The papers' figures have numbers beside. Every network learns as in `Cloning`, then drives and is recorded as `inspect`
records it. A `Picture` says what is measured of the recorded episodes, and how they are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from activity import MANOEUVRES, lipschitz, manoeuvres, principal_components, separation
from drawings import Seen, draw_cells, draw_components, draw_maps, draw_noise, draw_saliency, draw_steepness
from similarity import ssim

from nac_drive.analysis.cells import COUPLING, SIGNALS
from nac_drive.analysis.probe import FEATURES
from nac_drive.analysis.recording import SALIENCY, Recording, record
from nac_drive.analysis.saliency import visual_backprop
from nac_drive.data_collection.trained_env import env_for
from nac_drive.envs import PERTURBATIONS, make_env, readings, track_seeds
from nac_drive.envs.perturbations.images import FrameSize
from nac_drive.evaluation.metric import Number
from nac_drive.experiments.cloning import Cloning
from nac_drive.experiments.driving import folder_name
from nac_drive.experiments.paper import PaperTask, ResultColumn, Row, Whole
from nac_drive.policies import Driver
from nac_drive.policies.checkpoint import load_driver
from nac_drive.storage.figure import try_to_draw

EPISODES = "episodes"
NOISE = "gaussian-noise"
_NOISY_EVERY = 5
"""Of so many frames, one has its saliency maps compared."""
_FIRST = 8
"""Principal components that are drawn."""


@dataclass(frozen=True)
class Picture:
    """A figure, and the numbers that it shows."""

    measure: Callable[[Driver, Sequence[Recording]], Row]
    columns: tuple[ResultColumn, ...]
    draw: Callable[[Path, Mapping[str, Seen]], None]
    """Draws a file of the episodes of all entries."""
    each: bool = False
    """A figure of its own for every entry."""
    lists: tuple[str, ...] = ()
    """Numbers that are lists."""
    needs: str | None = None
    """Group without which an entry is left out."""


@dataclass(frozen=True)
class Pictures(Cloning):
    """Train networks, record what they do, and draw it. Fields are settings of a protocol."""

    perturbations: list[str] = field(default_factory=lambda: [f"{NOISE}:3"])
    runs: Whole = 1
    pictures: list[str] = field(default_factory=list)
    """Names in `PICTURES`."""
    seen_tracks: str = "val-3"
    """Tracks of the recorded episodes; the first one of the first run is drawn."""

    def check(self) -> None:
        super().check()
        track_seeds(self.seen_tracks)
        if unknown := [name for name in self.pictures if name not in PICTURES]:
            raise ValueError(f"pictures must be among {', '.join(PICTURES)}, got {unknown[0]!r}.")

    def measure(self, folder: Path, task: PaperTask) -> Row:
        """Return the numbers of `Cloning` and of every picture."""
        row = super().measure(folder, task)
        driver = load_driver(self.run_folder(folder, task))
        episodes = [_recorded(driver, task.entry, track) for track in track_seeds(self.seen_tracks)]
        for name in self.pictures:
            row |= PICTURES[name].measure(driver, episodes)
        if dict(task.place)["run"] == 0:
            (folder / EPISODES).mkdir(exist_ok=True)
            episodes[0].save(_file(folder, task.entry))
        return row

    def numbers(self, task: PaperTask) -> dict[str, Any]:
        kinds = super().numbers(task)
        for picture in map(PICTURES.__getitem__, self.pictures):
            kinds |= {column.value: Number | None for column in picture.columns}
            kinds |= dict.fromkeys(picture.lists, list[Number])
        return kinds

    def columns(self) -> list[ResultColumn]:
        of_pictures = [column for name in self.pictures for column in PICTURES[name].columns]
        return [*super().columns()[: 1 + len(self.perturbations)], *of_pictures]

    def describe(self) -> str:
        shared = {*track_seeds(self.seen_tracks)} & {*track_seeds(self.validation_tracks)}
        chosen = " These tracks also picked the best round of each network." if shared and self.rounds else ""
        return (
            f"{super().describe()} Then every network drove {self.seen_tracks}, was recorded as `nac-drive inspect` "
            f"records it, and the first second, in which the camera zooms in, was left out.{chosen}"
        )

    def conclude(self, folder: Path, rows: Sequence[Row]) -> str:
        """Draw the figures; return them in Markdown."""
        entries = list(dict.fromkeys(row["entry"] for row in rows))
        first = {row["entry"]: row for row in reversed(rows)}
        seen = {name: Seen.read(_file(folder, name), first[name]) for name in entries if _file(folder, name).exists()}
        lines = []
        for name in self.pictures:
            picture = PICTURES[name]
            whole = {entry: each for entry, each in seen.items() if picture.needs is None or each.has(picture.needs)}
            alone = {f"{name}-{folder_name(entry)}": {entry: each} for entry, each in whole.items()}
            for file, shown in (alone if picture.each else {name: whole}).items():
                if shown and try_to_draw(picture.draw, folder / f"{file}.png", shown):
                    lines.append(f"![{file.replace('-', ' ')}]({file}.png)")
        return "\n\n".join(lines)


def _file(folder: Path, entry: str) -> Path:
    return folder / EPISODES / f"{folder_name(entry)}.npz"


def _recorded(driver: Driver, name: str, track: int) -> Recording:
    config = env_for(driver)
    with closing(make_env(config)) as env:
        return record(env, driver, track, name=name, spec=config.spec)


def after_zoom(values: np.ndarray) -> np.ndarray:
    """Return the rows after the zoom-in of the first second."""
    return values[readings.ZOOM_FRAMES :]


def _joined(episodes: Sequence[Recording], values: Callable[[Recording], np.ndarray]) -> np.ndarray:
    return np.concatenate([after_zoom(values(each)) for each in episodes])


def neurons(episode: Recording) -> np.ndarray:
    """Return the activity (T, N) of the core's neurons.

    It is their first group, or the output where there is none.
    """
    return episode.activity[next(name for name in episode.activity if name != FEATURES)]


def _signals(driver: Driver, episodes: Sequence[Recording]) -> Row:
    """How well phi, omega, t and a tell manoeuvres.

    The numbers belong to the head that tells left from right best.
    """
    row: Row = {}
    labels = _joined(episodes, lambda each: manoeuvres(each.series["curvature"]))
    for name in SIGNALS:
        if name not in episodes[0].signals:
            continue
        values = _joined(episodes, lambda each, name=name: each.signals[name])
        best = max(
            (separation(values[:, head], labels) for head in range(values.shape[1])),
            key=lambda each: abs(each.left_or_right - 0.5),
        )
        row |= {f"{name}_explained": best.explained, f"{name}_left_or_right": best.left_or_right}
        if name == "omega":
            row |= {f"omega_{side}": mean for side, mean in zip(MANOEUVRES, best.means, strict=True)}
    return {key: value for key, value in row.items() if np.isfinite(value)}


def _noise(driver: Driver, episodes: Sequence[Recording]) -> Row:
    """Similarity of the saliency maps of clean and noisy frames.

    The driver does not drive by the noisy ones.
    """
    row: Row = {}
    for number, level in enumerate(PERTURBATIONS[NOISE], start=1):
        similar = [
            value for each in episodes for value in similarities(driver, each, noisy_frames(driver, each, level))
        ]
        row[f"similarity_{number}"] = float(np.mean(similar))
    return row


def noisy_frames(driver: Driver, episode: Recording, level: Any) -> np.ndarray:
    """Return the frames of an episode under one level of noise."""
    size = FrameSize.of(episode.frames.shape[1:], env_for(driver).spec.bar_top)
    corrupt = level.draw(np.random.default_rng(episode.track), size)
    return np.stack([corrupt(frame) for frame in episode.frames])


def similarities(driver: Driver, episode: Recording, noisy: np.ndarray) -> list[float]:
    """Return the similarity of VisualBackProp of clean and noisy frames, for one frame of five."""
    pairs = (after_zoom(frames)[::_NOISY_EVERY] for frames in (episode.frames, noisy))
    maps = (visual_backprop(driver, torch.from_numpy(frames)).numpy() for frames in pairs)
    return [ssim(*pair) for pair in zip(*maps, strict=True)]


def _steepness(driver: Driver, episodes: Sequence[Recording]) -> Row:
    """The steepest change of every neuron per frame."""
    steepest = np.max([lipschitz(after_zoom(neurons(each))) for each in episodes], axis=0)
    deviation = _joined(episodes, neurons).std(axis=0)
    relative = steepest / np.where(deviation > 0, deviation, 1)
    return {
        "steepest": np.sort(steepest)[::-1].tolist(), "steepest_of_all": float(steepest.max()),
        "steepest_median": float(np.median(steepest)), "steepest_relative": float(np.median(relative)),
    }  # fmt: skip


def _components(driver: Driver, episodes: Sequence[Recording]) -> Row:
    explained = [principal_components(after_zoom(neurons(each))).explained for each in episodes]
    first = np.mean([each[0] for each in explained])
    needed = np.mean([int(np.searchsorted(each.cumsum(), 0.9)) + 1 for each in explained])
    shown = np.mean([np.pad(each, (0, _FIRST))[:_FIRST] for each in explained], axis=0)
    return {"first_component": float(first), "components_for_90": float(needed), "components": shown.tolist()}


def _saliency(driver: Driver, episodes: Sequence[Recording]) -> Row:
    """Mean fraction of the saliency on two regions.

    They are the far road and, from the seat, the horizon.
    """
    row: Row = {}
    for region in ("far road", "horizon"):
        for method in ("area", *SALIENCY):
            if f"{method} on {region}" in episodes[0].series:
                values = _joined(episodes, lambda each, name=f"{method} on {region}": each.series[name])
                row[f"{method}_{region}"] = float(values.mean())
    return row


def _maps(driver: Driver, episodes: Sequence[Recording]) -> Row:
    """Range of the coupling sensitivities in seconds.

    It is the range from 5 % to 95 % of all neurons and frames.
    """
    if COUPLING not in episodes[0].activity:
        return {}
    tau = _joined(episodes, lambda each: each.activity[COUPLING])
    low, high = np.quantile(tau, (0.05, 0.95))
    swing = np.median(np.quantile(tau, 0.95, axis=0) / np.quantile(tau, 0.05, axis=0))
    return {"tau_low": float(low), "tau_high": float(high), "tau_swing": float(swing)}


def _columns(**headings: str) -> tuple[ResultColumn, ...]:
    return tuple(ResultColumn(key, heading, key, {}, 2) for key, heading in headings.items())


def _percent(**headings: str) -> tuple[ResultColumn, ...]:
    return tuple(ResultColumn(key, heading, key, {}, 0, 100) for key, heading in headings.items())


PICTURES: dict[str, Picture] = {
    "cells": Picture(
        _signals,
        (
            *_columns(**{f"omega_{side}": f"omega, {side}" for side in MANOEUVRES}),
            *_percent(**{f"{name}_explained": f"variance of {name} between manoeuvres, %" for name in SIGNALS}),
            *_columns(**{f"{name}_left_or_right": f"{name}, left above right" for name in SIGNALS}),
        ),
        draw_cells,
        each=True,
        needs="phi",
    ),
    "saliency": Picture(
        _saliency,
        _percent(**{
            f"{method}_{region}": f"{method} on the {region}, %"
            for region in ("far road", "horizon") for method in ("area", *SALIENCY)
        }),
        draw_saliency,
    ),
    "noise": Picture(
        _noise, _columns(**{f"similarity_{number}": f"similarity, `{NOISE}:{number}`" for number in (1, 2, 3)}),
        draw_noise,
    ),
    "steepness": Picture(
        _steepness,
        _columns(
            steepest_of_all="steepest change of any neuron", steepest_median="of the median neuron",
            steepest_relative="of the median neuron, in its standard deviations",
        ),
        draw_steepness, lists=("steepest",),
    ),
    "components": Picture(
        _components,
        (*_percent(first_component="first component, %"), *_columns(components_for_90="components for 90 %")),
        draw_components, lists=("components",),
    ),
    "maps": Picture(
        _maps,
        _columns(
            tau_low="coupling sensitivity, 5 %, s", tau_high="95 %, s",
            tau_swing="ratio of both within the median neuron",
        ),
        draw_maps, each=True,
    ),
}  # fmt: skip
"""Name -> picture."""
