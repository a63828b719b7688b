"""The figure of a run shows its rows."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from nac_drive.envs import EnvConfig
from nac_drive.training.curve import CURVE, draw_curve
from nac_drive.training.plan import TrainingPlan, open_run
from nac_drive.training.ppo.config import PPOConfig
from tests.nac_drive.small import Stop, config

VALIDATED = {"returns": [1.0, 5.0], "return_mean": 3.0}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    drawn: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **settings: drawn.append(figure))
    return drawn


def lines(figure: Any) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
    """Vertical axis -> label of a line -> steps and values."""
    return {
        axis.get_ylabel(): {
            line.get_label(): (line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axis.lines
        }
        for axis in figure.axes
    }


def test_a_cloned_driver_has_panels_of_what_its_rows_hold(figures, tmp_path):
    rows = [
        {"step": 1, "loss": 2.0, "accuracy": 0.5, "validation": {"accuracy": 0.4, "steering_mse": None}},
        {"step": 2, "loss": 1.0, "accuracy": 0.6, "validation": None, **VALIDATED},
    ]
    draw_curve(tmp_path / "x.png", rows, "epoch")
    assert lines(figures[0]) == {
        "return of an episode": {"validation, mean and range": ([2], [3])},
        "loss": {"training": ([1, 2], [2, 1])},
        "accuracy": {"training": ([1, 2], [0.5, 0.6]), "validation": ([1], [0.4])},
    }
    (shade,) = figures[0].axes[0].collections
    assert {tuple(point) for point in shade.get_paths()[0].vertices.tolist()} == {(2.0, 1.0), (2.0, 5.0)}
    assert {axis.get_xlabel() for axis in figures[0].axes} == {"epoch"}


def test_many_rollouts_are_drawn_with_their_moving_mean(figures, tmp_path):
    rng = np.random.default_rng(0)
    noise = rng.normal(size=400)
    rows = [{"step": 10_000 * i, "value_loss": 5.0, "entropy": i + noise[i], "episodes": 0} for i in range(400)]
    draw_curve(tmp_path / "x.png", [{"step": 0, **VALIDATED}, *rows[1:]], "frame")
    drawn = lines(figures[0])
    assert list(drawn) == ["return of an episode", "loss of the value network", "entropy of the actions"]
    steps, smooth = drawn["loss of the value network"]["training"]
    assert (steps[0], steps[-1], figures[0].axes[1].get_xlabel()) == (0.01, 3.99, "million frames")
    assert smooth == pytest.approx([5.0] * 399)
    _, smooth = drawn["entropy of the actions"]["training"]
    middle = slice(20, -20)
    assert np.abs(smooth - np.arange(1, 400))[middle].max() < 1 < np.abs(noise).max()  # a line stays a line


def test_a_run_that_ends_has_its_figure_and_one_that_is_stopped_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr("nac_drive.training.plan.draw_curve", draw_curve)
    cloning = TrainingPlan.resolve(config("cnn"), EnvConfig(), device="cpu")
    learning = TrainingPlan.resolve(PPOConfig(), EnvConfig(), device="cpu")
    for name, plan in (("cloning", cloning), ("learning", learning)):
        for stopped in (True, False):
            folder = tmp_path / f"{name}-{stopped}"
            with suppress(Stop), open_run(folder, plan, resume=False) as run:
                run.log({"step": 1, "loss": 1.0, **VALIDATED})
                if stopped:
                    raise Stop
            assert (folder / CURVE).exists() != stopped
        assert (folder / CURVE).read_bytes().startswith(b"\x89PNG")


def test_without_a_number_there_is_no_figure(tmp_path):
    draw_curve(tmp_path / "x.png", [], "epoch")
    draw_curve(tmp_path / "x.png", [{"step": 1, "seconds": 2.0}], "frame")
    assert not list(tmp_path.iterdir())
