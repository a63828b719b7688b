"""The experiment of single cells: rows against networks without the weights, statistics and figures by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import responses
import torch
from response_figures import METRICS
from response_statistics import capacity, correlation, exponent, spread, verdict
from responses import Responses, _scale

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.evaluation.intervals import spearman
from nac_drive.experiments.cloning import DATASET, RUNS, Cloning
from nac_drive.experiments.paper import PaperTask, Row, require_numbers
from nac_drive.policies import Driver, DriverConfig, load_driver
from nac_drive.training.offline import offline_accuracy
from nac_drive.training.run_folder import RunFolder
from tests.nac_drive.small import demonstrations, short_zoom


@pytest.fixture(scope="module", autouse=True)
def _short_zoom():
    with short_zoom():
        yield


@pytest.mark.slow
def test_a_row_holds_what_networks_without_a_cell_do(tmp_path: Path):
    demonstrations(tmp_path / DATASET, "continuous", tracks=4)
    experiment = Responses(units=[6], width=6, driven_cells=2, tracks="test-1", episodes=4, epochs=1)
    task = PaperTask("LSTM", "lstm", {}, experiment.places()[0])
    row = experiment.measure(tmp_path, task)
    require_numbers(json.loads(json.dumps(row, allow_nan=False)), experiment, task)
    (run,) = (tmp_path / RUNS).iterdir()
    best = RunFolder.open(run).checkpoint_folder("best")
    assert best is not None
    data = Demonstrations.open(tmp_path / DATASET)
    frames = data.load(data.split(0.1)[1])

    def measured(cell: int | None) -> tuple[float, float]:
        driver: Any = load_driver(best)
        if cell is not None:
            with torch.no_grad():
                driver.core.cell.weight_hh_l0[:, cell] = 0.0
                driver.action_head.hidden.weight[:, cell] = 0.0
        error = offline_accuracy(driver, frames, data.meta.env).steering_mse
        assert error is not None
        return error, evaluate(driver, "test-1").summary.return_mean

    error, intact = measured(None)
    assert row["squared_error"] == pytest.approx(error, rel=1e-4)
    assert row["return"] == pytest.approx(intact)
    amplitudes = row["cells"]["amplitude"]
    assert row["driven"]["index"] == [int(np.argmin(amplitudes)), int(np.argmax(amplitudes))]
    for cell, lost in zip(row["driven"]["index"], row["driven"]["lost"], strict=True):
        without, driven = measured(cell)
        assert row["cells"]["offline"][cell] == pytest.approx(without - error, rel=1e-2, abs=1e-7)
        assert lost == pytest.approx(intact - driven, abs=1e-5)
    assert row["amplitude"] == pytest.approx(np.mean(amplitudes))
    assert row["amplitude_sd"] == pytest.approx(np.std(amplitudes))


@pytest.mark.slow
def test_damage_is_positive_where_a_network_without_the_cell_is_worse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The tiny network drives alike without its cells, so invented returns and errors stand in for its own."""
    demonstrations(tmp_path / DATASET, "continuous", tracks=4)
    experiment = Responses(units=[6], width=6, driven_cells=3, tracks="test-1", episodes=4, epochs=1)
    driven: list[int | None] = []

    def drive(self: Responses, driver: Any, without: int | None = None) -> float:
        driven.append(without)
        return 900.0 if without is None else 100.0 * without

    def predictions(driver: Any, features: torch.Tensor, dt: torch.Tensor) -> torch.Tensor:
        """Off by 0.1 (u + 2) without cell u, and by 0.1 with all of them; gas and brake do not count."""
        errors = torch.tensor([0.1 * (cell + 2) for cell in range(6)] + [0.1])
        steering = torch.from_numpy(labels[len(errors_of) : len(errors_of) + len(features), 0])
        errors_of.extend(range(len(features)))
        rest = torch.full((7, len(features)), 50.0)
        return torch.stack((steering + errors[:, None], rest, rest), dim=2)

    def characterised(core: Any, scale: float) -> Any:
        scales.append(scale)
        return real(core, scale)

    real, scales = responses.characterise, []
    monkeypatch.setattr(responses, "characterise", characterised)
    data = Demonstrations.open(tmp_path / DATASET)
    labels, errors_of = data.load(data.split(0.1)[1]).labels, []
    monkeypatch.setattr(Responses, "_drive", drive)
    monkeypatch.setattr(responses, "ablated_predictions", predictions)
    row = experiment.measure(tmp_path, PaperTask("LSTM", "lstm", {}, experiment.places()[0]))
    assert row["return"] == 900.0
    assert scales == [row["scale"]]
    for metric in METRICS:
        values = np.array(row["cells"][metric])
        assert (row[metric], row[f"{metric}_sd"]) == pytest.approx((values.mean(), values.std()))
    index = row["driven"]["index"]
    assert driven == [None, *index]
    assert row["driven"]["lost"] == [900.0 - 100.0 * cell for cell in index]
    assert row["squared_error"] == pytest.approx(0.01, rel=1e-4)
    expected = [0.01 * ((cell + 2) ** 2 - 1) for cell in range(6)]
    assert row["cells"]["offline"] == pytest.approx(expected, rel=1e-4)
    amplitudes = np.array(row["cells"]["amplitude"])[index]
    expected_rank = spearman(amplitudes, np.array(row["driven"]["lost"]))
    assert row["amplitude_driven"] == pytest.approx(expected_rank)


def test_a_drive_without_a_cell_is_one_without_it(monkeypatch: pytest.MonkeyPatch):
    seen: list[Any] = []

    def spy(driver: Any, tracks: str, **settings: Any) -> Any:
        seen.append((driver, tracks))
        return SimpleNamespace(summary=SimpleNamespace(return_mean=1.23456789))

    monkeypatch.setattr(responses, "evaluate", spy)
    driver = Driver(DriverConfig("lstm", encoder="pooled", d_model=4, control="continuous"))
    experiment = Responses(tracks="test-1")
    assert [experiment._drive(driver), experiment._drive(driver, 2)] == [1.234568, 1.234568]
    (intact, *_), (without, *_) = seen
    assert intact is driver
    assert without.driver is driver
    assert without.zeroed == {("output", 2), ("h", 2), ("c", 2)}
    assert [tracks for _, tracks in seen] == ["test-1"] * 2


def invented(entry: str, units: int, damage: int, run: int = 0, width: int = 8) -> Row:
    """A network whose amplitudes fall as 1 / N, and whose damage follows them (1), or their reverse (-1)."""
    sizes = (np.arange(units) + 1.0) / units**2
    cells = {metric: sizes.tolist() for metric in METRICS}
    cells |= {"delta": (-sizes).tolist(), "offline": (damage * sizes**3).tolist()}
    row: Row = {"entry": entry, "units": units, "run": run, "return": 900.0, "cells": cells}
    for metric in METRICS:
        row |= {metric: float(np.mean(np.abs(cells[metric]))), f"{metric}_sd": float(np.std(cells[metric]))}
    row |= {"amplitude": 2.0 / units, "settling_time": 0.1}
    if units == width:
        row["driven"] = {"index": [0, 3, 5, 7], "lost": [0.0, 0.0, 0.0, 0.0]}
    return row


def test_correlations_and_exponents_are_exact_where_the_answer_is_known():
    rows = [invented("A", 8, 1, run) for run in range(2)]
    for prediction in ("delta", "amplitude"):
        found = correlation(rows, prediction, "offline")
        assert found is not None
        np.testing.assert_allclose([found.mean, found.low, found.high], 1.0)
        assert correlation(rows, prediction, "driven") is None  # all damages are equal
    mixed = correlation([rows[0], invented("A", 8, -1, 1)], "amplitude", "offline")
    assert mixed is not None
    np.testing.assert_allclose([mixed.mean, mixed.low, mixed.high], 0.0, atol=1e-9)
    rows[0]["driven"]["lost"] = [3.0, 2.0, 1.0, 0.0]
    reversed_order = correlation(rows[:1], "delta", "driven")
    assert reversed_order is not None
    assert reversed_order.mean == pytest.approx(-1.0)
    fit = exponent([16, 32, 64, 128], [3.0 * size**-0.7 for size in (16, 32, 64, 128)])
    assert fit is not None
    np.testing.assert_allclose([fit.mean, fit.low, fit.high], -0.7, atol=1e-6)
    noisy = exponent([1, 10, 100], [1.0, 10.0, 1.0])  # slope 0; t(0.975, 1) = 12.706, standard error 1 / sqrt(3)
    assert noisy is not None
    assert (noisy.mean, noisy.high) == (pytest.approx(0.0, abs=1e-12), pytest.approx(12.706 / 3**0.5, rel=1e-3))
    assert exponent([16, 32], [1.0, 2.0]) is None
    assert exponent([16, 32, 64], [1.0, 0.0, 2.0]) is None
    assert spread(np.array([0.3, 0.1, 0.5, 0.2, 0.4]), 3) == [1, 0, 2]
    assert sorted(spread(np.array([0.3, 0.1]), 16)) == [0, 1]


def test_an_interval_around_zero_predicts_nothing():
    undecided = invented("A", 8, 1)
    undecided["cells"]["offline"] = [3.0, 1.0, 4.0, 2.0, 0.0, 6.0, 5.0, 2.5]
    found = correlation([undecided], "amplitude", "offline")
    assert found is not None
    assert found.low < 0 < found.mean < found.high
    assert "is not shown to predict" in verdict([undecided])
    assert "amplitude and rise of the squared error in 0 of 1" in verdict([undecided])


@pytest.mark.slow
def test_the_page_shows_the_table_of_one_width_and_all_figures(tmp_path: Path):
    experiment = Responses(units=[4, 8, 16], width=8)
    rows = [invented(entry, units, damage) for entry, damage in (("A", 1), ("B", -1)) for units in experiment.units]
    columns = {column.key: column for column in experiment.columns()}
    assert columns["amplitude"].values(rows[:3]).tolist() == [0.25]
    assert columns["amplitude_sd"].values(rows[:3]).tolist() == [pytest.approx(np.std(np.arange(8)) / 64)]
    text = experiment.conclude(tmp_path, rows)
    assert "| A | +1.00 [+1.00, +1.00] | unknown | +1.00 [+1.00, +1.00] | unknown |" in text
    assert "| B | -1.00 [-1.00, -1.00] | unknown |" in text
    assert "**The response partly predicts the damage.**" in text
    assert "amplitude and rise of the squared error in 1 of 2" in text
    assert "A -1.00 [-1.00, -1.00]" in capacity(rows)
    for name in (responses.DISTRIBUTIONS, responses.ABLATION, responses.CAPACITY):
        assert f"({name})" in text
        assert (tmp_path / name).stat().st_size > 10_000
    assert experiment.conclude(tmp_path, []) == ""
    assert "is not shown to predict" in verdict(rows[4:5])


def test_single_cells_are_those_of_drivers_that_learned_as_the_settings_say():
    experiment = Responses(expert="champion", episodes=7, epochs=3, learning_rate=4e-3, features=40)
    assert experiment._driving(24) == Cloning(
        [], "continuous", expert="champion", episodes=7, epochs=3, d_model=24, features=40, learning_rate=4e-3
    )
    values = torch.from_numpy(np.random.default_rng(0).permutation(np.linspace(-3.0, 5.0, 101)).reshape(-1, 1))
    splits: Any = SimpleNamespace(features=values)
    assert _scale(splits) == pytest.approx((4.6 - -2.6) / 2), "half the distance of the 5 and 95 % quantiles"
