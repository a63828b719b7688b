"""Responses of single cells to a step and a sine, and the damage that their loss does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from ablation import ablated_predictions, without_cell
from characterisation import FREQUENCY, SECONDS, characterise
from msgspec import Meta
from response_figures import METRICS, draw_ablation, draw_capacity, draw_distributions
from response_statistics import (
    DAMAGES,
    PREDICTIONS,
    capacity,
    correlation,
    spread,
    verdict,
)

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.trained_env import env_for
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.evaluation.metric import Number
from nac_drive.experiments.cloning import DATASET, RUNS, Cloning
from nac_drive.experiments.driving import folder_name
from nac_drive.experiments.paper import (
    Map,
    PaperExperiment,
    PaperTask,
    Place,
    Rate,
    ResultColumn,
    Row,
    Whole,
    list_of,
    record_of,
)
from nac_drive.policies import Driver, load_driver
from nac_drive.storage.figure import try_to_draw
from nac_drive.training.offline import counted
from nac_drive.training.train import Splits, load_splits, train, train_plan

DISTRIBUTIONS, ABLATION, CAPACITY = (f"thesis-7-{name}.png" for name in ("distributions", "ablation", "capacity"))
_EXTREMES = (0.05, 0.95)
"""Quantiles of the features whose half distance is the amplitude of the signals."""


@dataclass(frozen=True)
class Responses(PaperExperiment):
    """Train each core at several widths, characterise its cells, and take them out one by one. Fields are settings."""

    units: list[Whole] = field(default_factory=lambda: [16, 32, 64, 128])
    """Cells of the networks."""
    width: Whole = 64
    """Cells of the networks in the table and the figures of single cells; these alone drive without some of them."""
    driven_cells: Whole = 16
    """Cells that are taken out in closed loop, evenly over the ranks of the amplitude."""
    runs: Whole = 1
    """Trainings of every entry and width, with the seeds 0, 1, ..."""
    tracks: str = "test-2"
    expert: str = "controller"
    episodes: Whole = 20
    epochs: Whole = 12
    learning_rate: Rate = 2e-3
    features: Whole = 64
    """Features of the frozen encoder of the driver "expert" which comes with the package."""

    def drivers(self) -> dict[str, str]:
        return self._driving(self.features).drivers()

    def prepare(self, folder: Path, each: Map) -> Iterator[str]:
        """Record the episodes and compute the features."""
        return self._driving(self.features).prepare(folder, each)

    def places(self) -> list[Place]:
        return [(("units", units), ("run", run)) for run in range(self.runs) for units in self.units]

    def measure(self, folder: Path, task: PaperTask) -> Row:
        """Return `return`, the mean and the sd over cells of METRICS, and rank correlations PREDICTION_DAMAGE.

        `cells` has each metric and `offline`, the increase of the squared error of steering on the validation tracks,
        of all cells; at `width`, `driven` has the `index` of some cells and the return that is lost without them.
        """
        place = dict(task.place)
        path = folder / RUNS / f"{folder_name(task.entry)}-{place['units']}-{place['run']}"
        config = self._driving(place["units"]).training(task.core, dict(task.core_args), place["run"])
        dataset, resume = Demonstrations.open(folder / DATASET), (path / "config.yaml").exists()
        splits = load_splits(train_plan(config, dataset, "cpu"), dataset)
        driver = load_driver(train(config, dataset, path, device="cpu", resume=resume, splits=splits))
        scale = _scale(splits)
        responses = characterise(driver.core, scale)
        cells = {metric: getattr(responses, metric).tolist() for metric in METRICS}
        error, cells["offline"] = offline_damage(driver, splits)
        intact = self._drive(driver)
        row: Row = {"scale": scale, "squared_error": error, "return": intact, "cells": cells}
        if place["units"] == self.width:
            index = spread(responses.amplitude, self.driven_cells)
            lost = [intact - self._drive(driver, cell) for cell in index]
            row["driven"] = {"index": index, "lost": lost}
        for metric in METRICS:
            row |= {metric: float(np.mean(cells[metric])), f"{metric}_sd": float(np.std(cells[metric]))}
        for prediction in PREDICTIONS:
            for damage in DAMAGES:
                if found := correlation([row], prediction, damage):
                    row[f"{prediction}_{damage}"] = found.mean
                    row[f"{prediction}_{damage}_interval"] = [found.low, found.high]
        return row

    def _drive(self, driver: Driver, without: int | None = None) -> float:
        """Return the mean return, perhaps without a cell; rounded, so that equal episodes are equally good."""
        env = env_for(driver)
        tested = driver if without is None else without_cell(driver, without)
        return round(evaluate(tested, self.tracks, env=env).summary.return_mean, 6)

    def _driving(self, units: int) -> Cloning:
        return Cloning(
            [], "continuous", expert=self.expert, episodes=self.episodes, epochs=self.epochs, d_model=units,
            features=self.features, learning_rate=self.learning_rate,
        )  # fmt: skip

    def numbers(self, task: PaperTask) -> dict[str, Any]:
        units = dict(task.place)["units"]
        of_cells = dict.fromkeys((*METRICS, "offline"), list_of(Number, units))
        numbers: dict[str, Any] = dict.fromkeys(("scale", "squared_error", "return"), Number)
        numbers |= {"cells": record_of(of_cells)} | {
            f"{metric}{end}": Number for metric in METRICS for end in ("", "_sd")
        }
        if units == self.width:
            driven = min(self.driven_cells, units)
            index = list_of(Annotated[int, Meta(ge=0, lt=units)], driven)
            numbers["driven"] = record_of({"index": index, "lost": list_of(Number, driven)})
        for key in (f"{prediction}_{damage}" for prediction in PREDICTIONS for damage in DAMAGES):
            numbers |= {key: Number | None, f"{key}_interval": list_of(Number, 2) | None}
        return numbers

    def columns(self) -> list[ResultColumn]:
        where = {"units": self.width}
        columns = [ResultColumn("return", "return", "return", where, 0)]
        for metric, (name, unit) in METRICS.items():
            heading = f"{name}, {unit}" if unit else name
            columns += [
                ResultColumn(metric, heading, metric, where, 3),
                ResultColumn(f"{metric}_sd", f"{name}, sd over cells", f"{metric}_sd", where, 3),
            ]
        return columns + [
            ResultColumn(key := f"{prediction}_{damage}", f"rank correlation, {of}, with {name}", key, where, 2)
            for damage, name in (("offline", "damage offline"), ("driven", "damage driven"))
            for prediction, of in PREDICTIONS.items()
        ]

    def describe(self) -> str:
        runs = "1 run" if self.runs == 1 else f"{self.runs} runs"
        return (
            f"{self.expert} drove {self.episodes} training tracks (continuous control). Cores of "
            f"{', '.join(map(str, self.units))} cells learned from them for {self.epochs} epochs on the "
            f"{self.features} features of the frozen encoder of expert, {runs} each. Every cell was then taken out of "
            "its core: the state of all others is 0 before every frame. All its inputs get the same signal of "
            f"{SECONDS:g} s at 50 frames a second, a step at half time or a sine of {FREQUENCY:g} Hz, as high as half "
            "the distance between the 5 % and 95 % quantiles of the features. Amplitude and frequency are those of the "
            "second half of the sine; the correlation is a sum over all its frames. Damage is done by one cell whose "
            "state and output are held at 0. Offline it is the increase of the squared error of steering on validation "
            f"tracks. Driven it is the loss of return on {self.tracks}, for {self.driven_cells} cells over all ranks "
            f"of the amplitude. The table is that of {self.width} cells."
        )

    def conclude(self, folder: Path, rows: Sequence[Row]) -> str:
        """Draw the figures, fit the exponents of the capacity, and compare predictions with damages."""
        wide = [row for row in rows if row["units"] == self.width]
        parts = []
        if wide:
            if try_to_draw(draw_distributions, folder / DISTRIBUTIONS, wide):
                parts += [
                    f"![Distributions of the metrics]({DISTRIBUTIONS})",
                    f"Metrics of the {self.width} cells of the first run, each sorted by its value (thesis, Fig. 7.3).",
                ]
            if try_to_draw(draw_ablation, folder / ABLATION, wide):
                parts += [
                    f"![Damage of single cells]({ABLATION})",
                    "Cells of the first run in the order of the prediction, the grey line, with the damage that their "
                    "loss does (thesis, Fig. 7.4).",
                ]
            parts.append(verdict(wide))
        if len({row["units"] for row in rows}) > 1:
            if try_to_draw(draw_capacity, folder / CAPACITY, rows):
                parts += [
                    f"![Metrics against the number of cells]({CAPACITY})",
                    "Mean over cells and runs, with the standard deviation over cells (thesis, Fig. 7.5).",
                ]
            parts.append(capacity(rows))
        return "\n\n".join(parts)


def _scale(splits: Splits) -> float:
    assert splits.features is not None  # the encoder is frozen
    low, high = np.quantile(splits.features.numpy(), _EXTREMES)
    return float(high - low) / 2


def offline_damage(driver: Driver, splits: Splits) -> tuple[float, list[float]]:
    """Return the mean squared error of steering on the validation tracks, and its increase without each cell.

    Args:
        driver: A driver with a frozen encoder, in evaluation mode.
        splits: The data that it learned from.
    """
    frames, features = splits.validation, splits.features
    assert frames is not None
    assert features is not None
    squares, rows = [], counted(frames)
    for episode in map(slice, frames.offsets[:-1], frames.offsets[1:]):
        predicted = ablated_predictions(driver, features[episode], torch.from_numpy(frames.dt[episode]))
        error = predicted[..., 0].numpy() - frames.labels[episode, 0]  # (U + 1, T)
        squares.append(np.square(error[:, rows[episode]]))
    *without, intact = np.concatenate(squares, axis=1).mean(axis=1).tolist()
    return intact, [each - intact for each in without]
