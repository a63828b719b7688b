"""Unfinished files of killed processes: a command that goes on in their folder leaves none of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from nac_drive.experiments.evaluation import evaluate_with_baseline
from nac_drive.experiments.evaluation_page import save_evaluation_page
from nac_drive.experiments.stress import stress
from nac_drive.experiments.stress_page import save_stress_page
from nac_drive.policies import Driver, DriverConfig, save_driver
from tests.nac_drive.small import config, score_of_weights, train

DEAD = 4_194_304
"""A number that no process has."""
ENV = {"control": "discrete", "mask_bar": False, "max_steps": 3}


def evaluating(folder: Path, driver: Path, dataset: Any, resume: bool) -> None:
    evaluations = evaluate_with_baseline(driver, [5], baseline=None, folder=folder, resume=resume)
    save_evaluation_page(folder, evaluations, [5], str(driver))


def stressing(folder: Path, driver: Path, dataset: Any, resume: bool) -> None:
    result = stress([driver], ["gap:3"], [5], crash="terminate", folder=folder, resume=resume)
    save_stress_page(folder, result, [5])


def training(folder: Path, driver: Path, dataset: Any, resume: bool) -> None:
    train(config("cnn", epochs=1, encoder="pooled", sequence_length=4), dataset, folder, resume=resume)


@pytest.mark.parametrize("work", [evaluating, stressing, training])
def test_every_unfinished_file_is_gone_when_the_work_goes_on(
    work: Callable[..., None], dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("nac_drive.training.trainer.closed_loop", score_of_weights)
    monkeypatch.setattr(Figure, "savefig", lambda self, file, **keywords: file.write(b"PNG"))
    driver, folder = tmp_path / "driver", tmp_path / "out"
    save_driver(driver, Driver(DriverConfig("cnn", encoder="pooled")), env=ENV)
    work(folder, driver, dataset, False)
    files = [path for path in folder.iterdir() if path.is_file() and path.name != ".lock"]
    assert len(files) >= 4
    for path in files:
        shutil.copyfile(path, path.with_name(f"{path.name}.{DEAD}.tmp"))
    work(folder, driver, dataset, True)
    assert not list(folder.rglob("*.tmp"))
