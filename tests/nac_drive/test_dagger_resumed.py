"""DAgger: neither an interruption nor the number of workers shows in what it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nac_drive.data_collection.dataset.demonstrations import DatasetError
from nac_drive.data_collection.processes import worker_pool
from tests.data_collection.recordings import contents
from tests.nac_drive.small import Stop, killed_at_every_operation, results
from tests.nac_drive.small import dagger_config as config
from tests.nac_drive.small import train_dagger as train

pytestmark = pytest.mark.usefixtures("one_thread")


def everything(run: Path) -> dict[str, Any]:
    return results(run) | contents(run / "dataset")


def test_the_number_of_workers_does_not_show(straight, tmp_path):
    with worker_pool(2) as pool:
        train(config(), tmp_path / "run", pool=pool)
    assert everything(tmp_path / "run") == everything(straight)


def test_whatever_interrupts_it_it_ends_the_same_and_keeps_its_laps(straight, tmp_path):
    run = tmp_path / "run"
    told: list[dict[str, Any]] = []

    def halt_at(moment: dict[str, Any]) -> Any:
        def report(row: dict[str, Any]) -> None:
            told.append(row)
            if moment.items() <= row.items():
                raise Stop

        return report

    moments: list[dict[str, Any]] = [
        {"round": 0, "episode": 1}, {"round": 0, "epoch": 2, "batch": 2}, {"round": 1, "episode": 1}, {"round": 1, "episode": 2},
        {"round": 1, "batch": 1}, {"step": 1}, {"round": 2, "batch": 3},
    ]  # fmt: skip
    for number, moment in enumerate(moments):
        with pytest.raises(Stop):
            train(config(), run, resume=number > 0, report=halt_at(moment))
        torch.rand(7)  # whatever the process did in between
    train(config(), run, resume=True, report=told.append)
    assert everything(run) == everything(straight)
    assert [(row["round"], row["episode"]) for row in told if "episode" in row] == [
        (0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)
    ]  # fmt: skip
    before = contents(run)
    train(config(), run, resume=True)  # a finished run has nothing left to do
    assert contents(run) == before


def test_a_moving_average_is_resumed_too(tmp_path):
    settings = config(average=0.9)

    def stop(row: dict[str, Any]) -> None:
        if row.get("step") == 1:
            raise Stop

    train(settings, tmp_path / "whole")
    with pytest.raises(Stop):
        train(settings, tmp_path / "run", report=stop)
    train(settings, tmp_path / "run", resume=True)
    assert everything(tmp_path / "run") == everything(tmp_path / "whole")


def test_killed_at_any_file_operation_it_resumes_to_the_same(tmp_path, monkeypatch):
    settings = config("cnn", window=1, batch_size=8, max_steps=4, initial_episodes=1, episodes=1, rounds=1, segment=1)
    kills = killed_at_every_operation(
        monkeypatch, tmp_path, lambda path, resume: train(settings, path, resume=resume), everything
    )
    assert kills > 10


def test_a_damaged_lap_of_a_finished_round_ends_it_with_one_line(tmp_path):
    settings = config("cnn", rounds=1)
    with pytest.raises(Stop):
        train(settings, tmp_path / "run", report=stop_after_round_0)
    (tmp_path / "run" / "dataset" / "episodes" / "000001.h5").write_bytes(b"half")
    with pytest.raises(DatasetError, match="lost episode 1 of round 0, whose student is gone; start a new run"):
        train(settings, tmp_path / "run", resume=True)


def stop_after_round_0(row: dict[str, Any]) -> None:
    if "step" in row:
        raise Stop
