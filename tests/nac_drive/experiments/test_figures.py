"""Learning curves: every line is the mean of its runs, and lines can be told apart."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from nac_drive.envs import EnvConfig
from nac_drive.evaluation.evaluate import Evaluation
from nac_drive.evaluation.statistics import summarise
from nac_drive.experiments.families import families
from nac_drive.experiments.figures import (
    draw_episodes,
    draw_heat_map,
    draw_leaderboard,
    draw_learning_curves,
    draw_races,
    draw_stress_curves,
    draw_survival,
)
from nac_drive.experiments.leaderboard import RankedDriver
from nac_drive.experiments.stress import StressResult, stress_cells
from tests.nac_drive.evaluation.rows import row


@pytest.fixture
def figures(monkeypatch) -> list[Any]:
    """The figures that are saved."""
    saved: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: saved.append(self))
    return saved


def run(*losses: float, **returns: float) -> list[dict[str, Any]]:
    """Rows of epochs from 1 on; `e3=700.0` is the validation return of epoch 3."""
    return [
        {"step": epoch, "loss": loss, **({"return_mean": returns[f"e{epoch}"]} if f"e{epoch}" in returns else {})}
        for epoch, loss in enumerate(losses, 1)
    ]


def trained(name: str, *runs: list[dict[str, Any]]) -> RankedDriver:
    """A driver with the rows of metrics.jsonl of its runs."""
    rows = [row(driver=name)]
    return RankedDriver(Evaluation(rows, summarise(rows)), runs=len(runs), histories=tuple(map(tuple, runs)))


def test_a_line_is_the_mean_of_the_runs_in_their_range(figures, tmp_path):
    runs = [run(1.0, 0.5, 0.25, e1=100.0, e3=500.0), run(3.0, 1.5, 0.75, e1=300.0, e3=900.0)]
    draw_learning_curves(tmp_path / "x.png", [trained("lstm", *runs), trained("cnn", run(2.0, 1.0, e2=50.0))])
    (figure,) = figures
    loss, returns = figure.axes
    lines = [[line.get_xydata().tolist() for line in axis.lines[:2]] for axis in (loss, returns)]
    assert lines[0] == [[[1, 2.0], [2, 1.0], [3, 0.5]], [[1, 2.0], [2, 1.0]]]
    assert lines[1] == [[[1, 200.0], [3, 700.0]], [[2, 50.0]]]
    shaded = returns.collections[0].get_paths()[0].vertices
    assert {tuple(corner) for corner in shaded} == {(1, 100), (1, 300), (3, 500), (3, 900)}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["lstm", "cnn"]
    assert loss.get_yscale() == "log"  # from 0.25 to 3


@pytest.mark.parametrize("losses", [(0.5, 0.4), (2.0, 0.0, -1.0)])
def test_losses_without_a_wide_positive_range_have_a_linear_axis(losses, figures, tmp_path):
    draw_learning_curves(tmp_path / "x.png", [trained("lds", run(*losses, e1=1.0))])
    assert figures[0].axes[0].get_yscale() == "linear"


def test_forty_lines_differ_and_their_legend_stays_inside_the_figure(figures, tmp_path):
    draw_learning_curves(tmp_path / "x.png", [trained(f"core-{i}", run(1.0, i + 1.0, e2=float(i))) for i in range(40)])
    (figure,) = figures
    figure.draw_without_rendering()
    looks = {(line.get_color(), str(line._dash_pattern)) for line in figure.axes[0].lines}
    assert len(looks) == 40
    box = figure.legends[0].get_window_extent()
    assert figure.bbox.contains(*box.p0)
    assert figure.bbox.contains(*box.p1)
    assert box.x0 > max(axis.get_window_extent().x1 for axis in figure.axes)
    assert np.isfinite(figure.axes[1].dataLim.get_points()).all()


@pytest.mark.parametrize(
    ("crashes", "env", "end"),
    [
        ([1.0, None, 3.0], EnvConfig(), 20.0), ([30.0, 55.5, None], EnvConfig(), 55.5),
        ([1.0, None, 3.0], EnvConfig(max_steps=250), 5.0),
        ([30.0, 55.5, None], EnvConfig("continuous", environment="nac_drive/MetaDrive-v0"), 100.0),
    ],
)  # fmt: skip
def test_the_curve_of_first_crashes_ends_with_the_longest_episode(crashes, env, end, figures, tmp_path):
    rows = [row(seed, driver="one", episode_return=9.0, first_crash_time=time) for seed, time in enumerate(crashes)]
    episodes: Any = {("one", spec): rows for spec in (None, "gap:3")}
    draw_survival(tmp_path / "x.png", StressResult(["one"], families(["gap:3"]), episodes, stress_cells(episodes), env))
    (curve,) = figures[0].axes[0].lines
    times, alive = curve.get_data()
    assert {time for time in crashes if time} < {*times}
    assert (times[-1], alive[0], alive[-1]) == (end, 1.0, pytest.approx(1 / 3))


def test_a_result_counts_its_perturbations():
    assert repr(stressed(["one"], "gap:2")) == "StressResult(one under 1 perturbation)"
    assert repr(stressed(["one"], "gap:2", "frame-drop:1")) == "StressResult(one under 2 perturbations)"


def stressed(names: list[str], *specs: str) -> StressResult:
    episodes: Any = {
        (name, spec): [row(seed, driver=name, first_crash_time=1.0) for seed in (1, 2)]
        for name in names for spec in (None, *specs)
    }  # fmt: skip
    return StressResult(names, families(specs), episodes, stress_cells(episodes))


@pytest.mark.parametrize(
    "draw",
    [
        lambda path, names: draw_episodes(path, [trained(name) for name in names]),
        lambda path, names: draw_races(path, {"a": [trained(name) for name in names], "b": [trained("x")]}),
        lambda path, names: draw_leaderboard(path, [trained(name) for name in names]),
        lambda path, names: draw_learning_curves(path, [trained(name, run(2.0, 1.0, e2=50.0)) for name in names]),
        lambda path, names: draw_heat_map(path, stressed(names, "gap:2")),
        lambda path, names: draw_stress_curves(path, stressed(names, "gap:2")),
        lambda path, names: draw_survival(path, stressed(names, "gap:2", "frame-drop:1:zero", "gaussian-noise:1")),
    ],
)
def test_long_names_stay_inside_the_figure_and_apart(draw: Callable[[Path, list[str]], None], figures, tmp_path):
    names = [f"core-{i}_{'of_a_very_long_name_' * 5}" for i in range(8)]
    draw(tmp_path / "x.png", names)
    (figure,) = figures
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.draw_without_rendering()
    below, left = (
        [text for axis in figure.axes for text in getattr(axis, labels)() if "core" in text.get_text()]
        for labels in ("get_xticklabels", "get_yticklabels")
    )
    assert len(below) + len(left) + sum(len(legend.get_texts()) for legend in figure.legends) >= 8
    for artist in (*below, *left, *figure.legends):
        box = artist.get_window_extent()
        assert figure.bbox.padded(1).contains(*box.p0), artist
        assert figure.bbox.padded(1).contains(*box.p1), artist
    assert all(one.get_window_extent().x1 < other.get_window_extent().x0 for one, other in pairwise(below))
