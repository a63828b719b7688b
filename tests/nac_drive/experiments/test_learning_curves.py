"""The figure of learning curves shows the numbers of the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from nac_drive.experiments.learning import draw_curves


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    drawn: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **settings: drawn.append(figure))
    return drawn


def test_learning_curves_are_means_over_tracks_and_runs_with_the_range_of_the_runs(figures: list[Any], tmp_path: Path):
    curves = {
        "A": [[[0, [0.0, 2.0]], [10, [4.0, 6.0]]], [[0, [2.0, 4.0]], [20, [8.0, 16.0]], [30, [9.0, 9.0]]]],
        "B": [[[0, [-5.0, -7.0]]]],
    }
    draw_curves(
        tmp_path / "x.png", [{"entry": entry, "curve": curve} for entry, runs in curves.items() for curve in runs]
    )
    (axis,) = figures[0].axes
    lines = {line.get_label(): (line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axis.lines[:2]}
    assert lines == {"A": ([0.0, 15e-6], [2.0, 8.5]), "B": ([0.0], [-6.0])}
    shades = [{tuple(point) for point in shade.get_paths()[0].vertices.tolist()} for shade in axis.collections]
    assert shades[0] == {(0.0, 1.0), (0.0, 3.0), (15e-6, 5.0), (15e-6, 12.0)}
