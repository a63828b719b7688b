"""DAgger: no result depends on interruptions or workers, and a finished run goes on with more rounds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from nac_drive.data_collection.dataset.demonstrations import DatasetError, Demonstrations
from nac_drive.events import Event
from nac_drive.training import trainer
from nac_drive.training.run_folder import RunFolder
from tests.data_collection.recordings import contents
from tests.nac_drive.small import TINY, Stop, killed_at_every_operation, results, score_of_weights, stop_at
from tests.nac_drive.small import dagger_config as config
from tests.nac_drive.small import train_dagger as train

pytestmark = pytest.mark.usefixtures("one_thread")


def everything(run: Path) -> dict[str, Any]:
    return results(run) | contents(run / "dataset")


@pytest.mark.slow
def test_no_result_depends_on_the_number_of_workers(workers, tmp_path):
    tracks = "800000,800001,800002"
    settings = config("cnn", **{**TINY, "rounds": 1, "initial_episodes": 3, "episodes": 3, "validation_tracks": tracks})
    train(settings, tmp_path / "here")
    train(settings, tmp_path / "there", pool=workers)
    assert everything(tmp_path / "there") == everything(tmp_path / "here")


@pytest.mark.slow
def test_interrupted_anywhere_it_ends_the_same_and_keeps_its_episodes(straight, tmp_path):
    run = tmp_path / "run"
    events: list[Event] = []
    moments: list[tuple[int, str, float]] = [  # the n-th event of a job, after a part of it
        (1, "round 0: episodes", 0), (2, "round 0: training", 1), (1, "round 1: episodes", 0),
        (1, "round 1: episodes", 1), (1, "round 1: training", 0), (1, "round 1", 0), (3, "round 2: training", 0),
    ]  # fmt: skip
    for number, moment in enumerate(moments):
        stop = stop_at(*moment)
        with pytest.raises(Stop):
            train(
                config(), run, resume=number > 0, progress=lambda event, stop=stop: (events.append(event), stop(event))
            )
        torch.rand(7)  # other work of the process in between
    train(config(), run, resume=True, progress=events.append)
    assert everything(run) == everything(straight)
    assert [(event.job, event.done) for event in events if "episodes" in event.job and event.note] == [
        (f"round {number}: episodes", done) for number in range(3) for done in (1, 2)
    ]
    before = contents(run)
    train(config(), run, resume=True)  # nothing is left to do
    assert contents(run) == before


def test_more_rounds_end_where_an_uninterrupted_run_ends_and_fewer_are_refused(tmp_path, monkeypatch):
    """At a constant rate: otherwise the rate of later rounds follows from their number."""
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    constant = {**TINY, "learning_rate": 1e-3, "final_learning_rate": 1e-3}
    whole, run = tmp_path / "whole", tmp_path / "run"
    train(config("cnn", rounds=2, **constant), whole)
    train(config("cnn", rounds=0, **constant), run)
    torch.rand(7)
    train(config("cnn", rounds=2, **constant), run, resume=True)
    assert everything(run) == everything(whole)
    assert RunFolder.open(run).config == RunFolder.open(whole).config
    assert Demonstrations.open(run / "dataset").verify(replay=True) == []
    before = contents(run)
    with pytest.raises(ValueError, match="rounds: run has 2, got 1, but it may only grow") as caught:
        train(config("cnn", rounds=1, **constant), run, resume=True)
    assert "\n" not in str(caught.value)
    assert contents(run) == before
    first, second = (config(rounds=rounds, learning_rate=1e-3, final_learning_rate=1e-4) for rounds in (1, 2))
    assert (first.rate(1), second.rate(2)) == pytest.approx((1e-4, 1e-4))
    assert second.rate(1) > first.rate(1)


def test_a_driver_to_start_from_may_move(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    source = train(config("cnn", rounds=0, **TINY), tmp_path / "source")
    train(config("cnn", rounds=0, init_from=str(source), **TINY), tmp_path / "run")
    moved = str(shutil.copytree(source, tmp_path / "moved"))
    train(config("cnn", rounds=1, init_from=moved, **TINY), tmp_path / "run", resume=True)
    assert RunFolder.open(tmp_path / "run").config["optim"]["init_from"] == moved
    with pytest.raises(ValueError, match="init_sha256"):
        train(config("cnn", rounds=1, init_from=str(tmp_path / "run"), **TINY), tmp_path / "run", resume=True)


@pytest.mark.slow
def test_killed_at_any_file_operation_it_resumes_to_the_same(tmp_path, monkeypatch):
    settings = config("cnn", rounds=1, **TINY)
    kills = killed_at_every_operation(
        monkeypatch, tmp_path, lambda path, resume: train(settings, path, resume=resume), everything
    )
    assert kills > 10


def test_a_damaged_episode_of_a_finished_round_ends_it_with_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    settings = config("cnn", **{**TINY, "rounds": 1, "initial_episodes": 2})
    with pytest.raises(Stop):
        train(settings, tmp_path / "run", progress=stop_at(1, "round 0"))
    (tmp_path / "run" / "dataset" / "episodes" / "000001.h5").write_bytes(b"half")
    with pytest.raises(DatasetError, match="lost episode 1 of round 0, whose learner is not kept; start a new run"):
        train(settings, tmp_path / "run", resume=True)
