"""The figures of single cells show the numbers of the rows: lines, bars and error bars against them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from response_figures import METRICS, draw_ablation, draw_capacity, draw_distributions

from nac_drive.experiments.paper import Row

CELLS, DRIVEN = 6, [4, 0, 2]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    drawn: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **settings: drawn.append(figure))
    return drawn


def network(entry: str, run: int, units: int = CELLS) -> Row:
    rng = np.random.default_rng((len(entry), run, units))
    cells = {metric: rng.normal(size=units).tolist() for metric in (*METRICS, "offline")}
    cells["amplitude"] = np.abs(cells["amplitude"]).tolist()
    row: Row = {"entry": entry, "units": units, "run": run, "cells": cells}
    for metric in METRICS:
        row |= {metric: float(rng.normal()), f"{metric}_sd": float(rng.random())}
    return row | {"driven": {"index": DRIVEN, "lost": rng.normal(size=3).tolist()}}


def test_distributions_are_the_sorted_metrics_of_the_first_run(figures: list[Any], tmp_path: Path):
    rows = [network("A", 1), network("A", 0), network("BB", 0)]
    draw_distributions(tmp_path / "x.png", rows)
    for axis, metric in zip(figures[0].axes, METRICS, strict=False):
        assert [line.get_label() for line in axis.lines] == ["A", "BB"]
        for line, row in zip(axis.lines, rows[1:], strict=True):
            np.testing.assert_array_equal(line.get_xdata(), np.arange(1, CELLS + 1))
            np.testing.assert_array_equal(line.get_ydata(), sorted(row["cells"][metric]))
            assert METRICS[metric][0] in axis.get_title()


def test_capacities_are_means_over_runs_of_the_means_and_deviations_over_cells(figures: list[Any], tmp_path: Path):
    rows = [network(entry, run, units) for entry in ("A", "BB") for run in range(2) for units in (8, 4)]
    draw_capacity(tmp_path / "x.png", rows)
    for axis, metric in zip(figures[0].axes, METRICS, strict=False):
        for entry, bars in zip(("A", "BB"), axis.containers, strict=True):
            line, _, (spread,) = bars
            of_size = [[row for row in rows if (row["entry"], row["units"]) == (entry, size)] for size in (4, 8)]
            means = [(found[0][metric] + found[1][metric]) / 2 for found in of_size]
            deviations = [(found[0][f"{metric}_sd"] + found[1][f"{metric}_sd"]) / 2 for found in of_size]
            np.testing.assert_allclose(np.array(line.get_ydata(), dtype=float), means)
            np.testing.assert_allclose(np.array(line.get_xdata(), dtype=float), [4, 8], rtol=0.05)
            ends = [segment[:, 1] for segment in spread.get_segments()]
            np.testing.assert_allclose(ends, [(m - d, m + d) for m, d in zip(means, deviations, strict=True)])


def test_damages_stand_in_the_order_of_their_predictions(figures: list[Any], tmp_path: Path):
    rows = [network("A", 1), network("A", 0), network("BB", 0)]
    draw_ablation(tmp_path / "x.png", rows)
    panels, twins = np.array(figures[0].axes[:6]).reshape(3, 2), np.array(figures[0].axes[6:])
    for column, row in enumerate(rows[1:]):
        cells, index, lost = row["cells"], row["driven"]["index"], row["driven"]["lost"]
        pairs = (
            sorted(zip(np.abs(cells["delta"]), cells["offline"], strict=True)),
            sorted(zip(cells["amplitude"], cells["offline"], strict=True)),
            sorted(zip([cells["amplitude"][cell] for cell in index], lost, strict=True)),
        )
        for number, expected in enumerate(pairs):
            predictions, damages = zip(*expected, strict=True)
            heights = [bar.get_height() for bar in panels[number, column].patches]
            np.testing.assert_array_equal(heights, damages)
            (line,) = twins[3 * column + number].lines
            np.testing.assert_array_equal(line.get_ydata(), predictions)
