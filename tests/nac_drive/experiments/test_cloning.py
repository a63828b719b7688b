"""Closed-loop reproductions: rows against separate evaluations of the saved drivers, differences by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from nac_drive.data_collection.drivers import driver_hash
from nac_drive.envs import EnvConfig
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.events import silent
from nac_drive.experiments import cloning, learning
from nac_drive.experiments.cloning import Cloning
from nac_drive.experiments.driving import Episodes
from nac_drive.experiments.learning import Learning
from nac_drive.experiments.paper import PaperTask, require_numbers
from nac_drive.experiments.recorded import evaluate_recorded
from nac_drive.experiments.stress import StressResult
from nac_drive.policies import DriverConfig, load_driver, save_driver
from nac_drive.policies.cores.pdna import Pulse
from nac_drive.policies.driver import Driver
from nac_drive.training.run_folder import RunFolder
from tests.nac_drive.evaluation.rows import row
from tests.nac_drive.small import demonstrations

DROP = "frame-drop:2:zero"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driving")
    demonstrations(folder / cloning.DATASET, "continuous", tracks=4)
    return folder


@pytest.mark.parametrize(("undisturbed", "lost"), [([800.0, 900.0], 0.5), ([-40.0, 60.0], None), ([-9.0, -9.0], None)])
def test_what_is_lost_is_unknown_without_a_clearly_positive_return(
    undisturbed: list[float], lost: float | None, experiment: Cloning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def stress(drivers: Any, *arguments: Any, **keywords: Any) -> Any:
        returns = {None: undisturbed, DROP: [value / 2 for value in undisturbed]}
        rows: Episodes = {
            ("x", spec): [row(episode_return=value) for value in values] for spec, values in returns.items()
        }
        return StressResult(["x"], [], rows, {})

    monkeypatch.setattr(cloning, "stress", stress)
    monkeypatch.setattr(cloning, "train", lambda *arguments, **keywords: tmp_path)
    monkeypatch.setattr(cloning, "load_driver", lambda path: Driver(DriverConfig("cnn", encoder="pooled", d_model=8)))
    task = PaperTask("x", "cnn", {}, (("run", 0),))
    measured = experiment.measure(tmp_path, task)
    require_numbers(measured, experiment, task)
    assert measured[f"lost_{DROP}"] == (None if lost is None else pytest.approx(lost))


@pytest.fixture
def experiment() -> Cloning:
    return Cloning(
        [DROP], encoder="pooled", encoder_from=None, d_model=8, runs=1, epochs=1, sequence_length=16,
        tracks="test-2", clamp=DROP,
    )  # fmt: skip


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_driver_that_training_starts_from_is_named_by_its_weights(rounds: int, experiment: Cloning):
    begun = replace(experiment, encoder_from="champion", rounds=rounds, recipe=["optim.init_from=expert"])
    named = begun.drivers()
    assert named == {
        f"{name}, continuous": driver_hash(name, EnvConfig("continuous"))
        for name in ("controller", "champion", "expert")
    }


@pytest.mark.slow
def test_a_row_holds_what_the_saved_driver_does(folder: Path, experiment: Cloning):
    (folder / cloning.RECORDED).symlink_to(folder / cloning.DATASET)
    experiment = replace(experiment, recorded_tracks="0,1,2,3", recipe=["optim.weight_decay=0.02", "optim.patience=1"])
    task = PaperTask("C, pulse", "pdna-c", {"backbone_units": 8}, (("run", 0),))
    row = experiment.measure(folder, task)
    (run,) = (folder / cloning.RUNS).iterdir()
    best = RunFolder.open(run).checkpoint_folder("best")
    assert best is not None
    for spec in ("", DROP):
        again = evaluate(load_driver(best), "test-2", perturbation=spec)
        returns = [each.episode_return for each in again.rows]
        assert row["episodes"][spec]["return"] == returns
        assert row[f"return_{spec}"] == pytest.approx(np.mean(returns))
        (predicted,) = evaluate_recorded(best, folder / cloning.RECORDED, episodes="all", perturbation=spec)
        assert row[f"accuracy_{spec}"] == predicted.accuracy.accuracy
        assert row["episodes"][spec]["accuracy"] == [each.accuracy for each in predicted.episodes.values()]
    assert row["accuracy_"] != row[f"accuracy_{DROP}"]
    assert RunFolder.open(run).config["optim"]["weight_decay"] == 0.02
    assert row[f"lost_{DROP}"] == pytest.approx(1 - row[f"return_{DROP}"] / row["return_"])
    core: Any = load_driver(best).core
    assert row["above_nyquist"] == pytest.approx((core.pulse.omega > math.pi).float().mean().item())
    assert row["above_nyquist"] > 0
    with torch.no_grad():
        core.pulse.omega.clamp_(max=math.pi)
    driver = load_driver(best)
    driver.core = core
    clamped = evaluate(driver, "test-2", perturbation=DROP).summary.return_mean
    assert row["clamped_return"] == pytest.approx(clamped)
    require_numbers(row, experiment, task)
    before = (run / "metrics.jsonl").read_text()
    assert experiment.measure(folder, task)["episodes"] == row["episodes"]  # a run that is there is not trained again
    assert (run / "metrics.jsonl").read_text() == before
    json.dumps(row)


@pytest.mark.parametrize("core", ["pdna-c", "pdna-e", "pdna-ode"])
def test_a_pulse_is_clamped_at_half_the_rate_of_frames(core: str, experiment: Cloning, monkeypatch: pytest.MonkeyPatch):
    """At 50 frames a second the Nyquist limit is 25 Hz: pi radians per frame. Nothing but the frequencies changes."""
    torch.manual_seed(0)
    config = DriverConfig(core, {"backbone_units": 8}, encoder="pooled", d_model=5, control="continuous")
    driver, twin = Driver(config), Driver(config)
    limit = 2 * math.pi * 25.0 / 50.0
    omega = torch.tensor([0.5, limit - 1e-3, limit + 1e-3, 4.0, 9.0])
    pulse: Any = next(module for module in driver.modules() if isinstance(module, Pulse))
    with torch.no_grad():
        pulse.omega.copy_(omega)
        pulse.gate.fill_(-0.25)
        pulse.amplitude.copy_(torch.tensor([3.0, 0.0, -4.0, 0.0, 0.0]))
    twin.load_state_dict(driver.state_dict())
    driven: list[tuple[Any, ...]] = []

    def spy(tested: Driver, tracks: str, **settings: Any) -> Any:
        driven.append((tested, tracks, settings))
        return SimpleNamespace(summary=SimpleNamespace(return_mean=-7.5))

    monkeypatch.setattr(cloning, "evaluate", spy)
    row = replace(experiment, crash="intervene")._pulse(driver)
    assert row == pytest.approx({
        "gate": 0.25, "strength": 0.25 * 5.0, "omega_median": limit + 1e-3, "above_nyquist": 3 / 5,
        "clamped_return": -7.5,
    })  # fmt: skip
    ((tested, tracks, settings),) = driven
    assert (tracks, settings) == ("test-2", {"perturbation": DROP, "crash": "intervene", "progress": silent})
    after, before = tested.state_dict(), twin.state_dict()
    changed = [name for name in before if not torch.equal(after[name], before[name])]
    assert [name.rpartition(".")[2] for name in changed] == ["omega"]
    torch.testing.assert_close(after[changed[0]], torch.tensor([0.5, limit - 1e-3, limit, limit, limit]))
    assert "clamped_return" not in replace(experiment, clamp="")._pulse(twin)


def test_a_core_without_a_pulse_has_no_numbers_of_one(experiment: Cloning):
    assert experiment._pulse(Driver(DriverConfig("pdna-d", {"backbone_units": 8}, encoder="pooled", d_model=5))) == {}


def test_columns_and_conclusion_show_the_numbers_of_the_rows():
    experiment = Cloning([DROP], runs=2, crash="intervene")

    def row(entry: str, run: int, clean: list[int], dropped: list[int], **more: float) -> dict[str, Any]:
        episodes = {
            spec: {"return": [0.0, 0.0], "interventions": each} for spec, each in (("", clean), (DROP, dropped))
        }
        means = {f"interventions_{spec}": float(np.mean(each["interventions"])) for spec, each in episodes.items()}
        return {"entry": entry, "run": run, "episodes": episodes, **means, **more}

    rows = [
        row("A", 0, [0, 0], [1, 3]), row("A", 1, [0, 0], [1, 3]),
        row("B", 0, [1, 1], [4, 6], gate=0.2, strength=0.4, omega_median=1.0, above_nyquist=0.25),
        row("B", 1, [1, 1], [4, 6], gate=0.4, strength=0.6, omega_median=1.0, above_nyquist=0.25),
    ]  # fmt: skip
    columns = {column.key: column for column in experiment.columns()}
    assert columns[f"interventions_{DROP}"].values(rows[:2]).tolist() == [2.0, 2.0]
    text = experiment.conclude(Path(), rows)
    assert "| B | +1 [+1, +1] | +3 [+3, +3] |" in text
    assert "| B | 0.3 | 0.5 | 1 | 0.25 |" in text
    assert "| A |" not in text
    assert "**2 of 2 differences lie in an interval without zero**: B, undisturbed; B, `frame-drop:2:zero`." in text
    assert experiment.conclude(Path(), rows[:2]) == ""
    fewer = [row("C", run, [0, 0], [0, 0]) for run in range(2)]
    text = experiment.conclude(Path(), [*rows[:2], *fewer])
    assert "| C | 0 [0, 0] | -2 [" in text
    assert "**1 of 2 differences lie in an interval without zero**: C, `frame-drop:2:zero`." in text


def test_the_accuracy_of_every_run_stands_on_the_page():
    experiment = Cloning(["gap:1", DROP], runs=2, recorded_tracks="test-2")

    def row(entry: str, run: int, accuracy: list[float], dropped: list[float]) -> dict[str, Any]:
        clean = {"return": [9.0, 9.0], "interventions": [0, 0]}
        episodes = {"": clean | {"accuracy": accuracy}, DROP: clean | {"accuracy": dropped}}
        episodes["gap:1"] = episodes[""]
        means = {f"accuracy_{spec}": float(np.mean(each["accuracy"])) for spec, each in episodes.items()}
        return {"entry": entry, "run": run, "episodes": episodes, **means}

    rows = [
        row("A", 0, [0.5, 0.5], [0.4, 0.4]), row("A", 1, [0.5, 0.5], [0.4, 0.4]),
        row("B", 0, [0.6, 0.6], [0.75, 0.75]), row("B", 1, [0.6, 0.6], [0.3, 0.3]),
    ]  # fmt: skip
    text = experiment.conclude(Path(), rows)
    assert "| A | 40.0 | 40.0 |  |" in text
    assert "| B | 75.0 | 30.0 | 1 of 2 |" in text
    assert "Differences in accuracy from A" in text
    assert "| B | +0.1 [+0.1, +0.1] | +0.1 [+0.1, +0.1] | +0.125 [" in text
    assert "| B | 75.0 | - | 1 of 1 |" in experiment.conclude(Path(), [*rows[:2], rows[2]])
    columns = {column.key: column for column in experiment.columns()}
    assert columns[f"accuracy_{DROP}"].values(rows[2:]).tolist() == pytest.approx([75.0, 30.0])
    assert "recorded" not in replace(experiment, recorded_tracks=None).conclude(Path(), rows)
    assert "Accuracy of every run" not in replace(experiment, recorded_tracks=None).conclude(Path(), rows)


def _save(driver: Driver, path: Path) -> None:
    save_driver(path, driver)


def test_learning_curves_become_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    curve = [(0, [-50.0, -60.0]), (1000, [790.0, 830.0]), (2000, [700.0, 720.0])]

    def ppo(config: Any, folder: Path, *, device: str, resume: bool, pool: object) -> Path:
        run = RunFolder.open(folder) if resume else RunFolder.create(folder, {})
        for step, returns in [] if resume else curve:
            row = {"step": step, "score": float(step), "returns": returns}
            run.finish_step(row, partial(_save, Driver(config.driver)))
        best = run.checkpoint_folder("best")
        assert best is not None
        return best

    monkeypatch.setattr(learning, "ppo", ppo)
    experiment = Learning(validation_tracks="val-2", threshold=800.0)
    task = PaperTask("MLP", "cnn", {}, (("run", 0),))
    (tmp_path / learning.RUNS).mkdir()
    row = experiment.measure(tmp_path, task)
    assert row == experiment.measure(tmp_path, task)
    require_numbers(json.loads(json.dumps(row)), experiment, task)
    assert (row["best"], row["last"], row["first"]) == (810.0, 710.0, 1000)
    driver = Driver(DriverConfig("cnn", encoder="pooled", d_model=128, control="continuous"))
    outside = sum(parameter.numel() for parameter in driver.encoder.parameters())
    assert row["parameters"] == sum(parameter.numel() for parameter in driver.parameters()) - outside
    other = {"entry": "other", "curve": [*row["curve"][:2], [2000, [800.0, 820.0]]]}
    text = experiment.conclude(tmp_path, [{"entry": "MLP", **row}, other])
    assert learning.FIGURE in text
    assert "difference from MLP** (95 % over runs and tracks): other +100 [+100, +100]." in text
    assert (tmp_path / learning.FIGURE).stat().st_size > 5_000
