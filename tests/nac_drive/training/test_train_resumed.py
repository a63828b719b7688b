"""Behaviour cloning: an interrupted run ends the same bit for bit, and a finished one goes on with more epochs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.data_collection.identity import source_hash
from nac_drive.plugins import named_object
from nac_drive.training import trainer
from nac_drive.training.data.sequences import TrainingData
from nac_drive.training.distributed import build_fabric
from nac_drive.training.plan import open_run
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.train import Splits, train_plan
from tests.data_collection.recordings import contents
from tests.nac_drive.small import (
    Stop,
    config,
    killed_at_every_operation,
    results,
    rows,
    score_of_weights,
    stop_at,
    synthetic,
    train,
)
from tests.own_parts import MINE, forgotten
from tests.slow import slow_but

REPOSITORY = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("one_thread")

FLIPPED: dict[str, Any] = {"horizontal_flip": True, "epochs": 2}
CASES = {
    "lstm": ("discrete", config("lstm", epochs=2)),
    "nac-exact": ("discrete", config("nac-exact", epochs=2, ema_decay=0.9)),
    "all options": ("discrete", config("nac-pw", **FLIPPED, mask_bar=True)),
    "augmented": ("discrete", config("lstm", **FLIPPED, augment=("gaussian-noise:1+shadows:2", "colour:3"))),
    "recipe": ("discrete", config(
        "pdna-e", epochs=2, weight_decay=0.01, max_grad_norm=1.0, schedule="cosine", warmup_epochs=1, patience=1
    )),
    "continuous": ("continuous", config("cfc", **FLIPPED, curve_weight=2.0, encoder_learning_rate=1e-4)),
    "frozen": ("discrete", config("cfc", **FLIPPED, encoder="compact", freeze_encoder_from="expert", ema_decay=0.9)),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_but(["lstm", "all options"], CASES))
def test_resumed_it_ends_the_same_bit_for_bit(name, request, tmp_path, monkeypatch):
    control, settings = CASES[name]
    if name != "lstm":  # one closed loop is enough
        monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    data = request.getfixturevalue("dataset" if control == "discrete" else "continuous")
    train(settings, data, tmp_path / "straight")
    with pytest.raises(Stop):  # in the middle of the second epoch
        train(settings, data, tmp_path / "resumed", progress=stop_at(2, f"train ({settings.driver.core})", after=1))
    assert [row["step"] for row in rows(tmp_path / "resumed")] == [1]
    torch.rand(7)  # other work of the process in between
    train(settings, data, tmp_path / "resumed", resume=True)
    assert results(tmp_path / "resumed") == results(tmp_path / "straight")
    before = contents(tmp_path / "resumed")
    train(settings, data, tmp_path / "resumed", resume=True)  # nothing is left to do
    assert contents(tmp_path / "resumed") == before


def test_more_epochs_end_where_an_uninterrupted_run_ends_and_fewer_are_refused(dataset, trained, tmp_path):
    """Validation draws no random numbers, so that it does not matter which epochs are validated."""
    run = tmp_path / "run"
    train(config("cnn", epochs=1), dataset, run)
    torch.rand(7)
    state = torch.random.get_rng_state()
    plan = train_plan(config("cnn", epochs=1), dataset, "cpu")
    with open_run(run, plan, resume=True) as opened:
        fabric = build_fabric("cpu", "32-true", 1, 1, 2)
        finished = trainer.Trainer(plan, opened, trainer.build_learner(plan), fabric)
        assert finished.done == 1
        torch.random.set_rng_state(state)
        finished.validate()
    assert torch.equal(torch.random.get_rng_state(), state)
    train(config("cnn", epochs=3), dataset, run, resume=True)
    assert results(run) == results(trained)
    assert RunFolder.open(run).config == {**RunFolder.open(trained).config}
    before = contents(run)
    with pytest.raises(ValueError, match=r"epochs: run has 3, got 2, but it may only grow") as caught:
        train(config("cnn", epochs=2), dataset, run, resume=True)
    assert "\n" not in str(caught.value)
    assert contents(run) == before


def test_a_moved_dataset_is_the_same_dataset(dataset, trained, tmp_path):
    run = Path(shutil.copytree(trained, tmp_path / "run", symlinks=True))
    moved = Demonstrations.open(shutil.copytree(dataset.path, tmp_path / "moved"))
    before = contents(run)
    train(config("cnn"), moved, run, resume=True)
    after = contents(run)
    assert after.pop("config.yaml") == before.pop("config.yaml").replace(
        str(dataset.path).encode(), str(moved.path).encode()
    )
    assert after == before


def test_a_dataset_with_changed_labels_trains_nothing(dataset, tmp_path):
    changed = Path(shutil.copytree(dataset.path, tmp_path / "changed"))
    with h5py.File(changed / "episodes" / "000001.h5", "r+") as file:
        file["label"][30] = (file["label"][30] + 1) % 5  # type: ignore[index, operator]
    with pytest.raises(DatasetError, match=r"000001.h5 cannot be read: its content has changed") as caught:
        train(config("cnn"), Demonstrations.open(changed), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_an_own_core_that_was_edited_is_refused(dataset, tmp_path, monkeypatch):
    """Its steps were of two codes."""
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    mine, run = tmp_path / "mine.py", tmp_path / "run"
    for factor, epochs in ((1.0, 1), (1.0, 2), (2.0, 3)):
        mine.write_text(MINE.format(factor=factor))
        source_hash.cache_clear()
        with forgotten():
            settings = config(named_object(f"{mine}:Mine"), epochs=epochs)
            if factor == 1.0:
                train(settings, dataset, run, resume=epochs > 1)
                before = contents(run)
            else:
                with pytest.raises(ValueError, match=r"another config \(core_code_sha256: run has"):
                    train(settings, dataset, run, resume=True)
    assert contents(run) == before


def test_another_seed_ends_elsewhere(dataset, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    train(config("cnn", seed=1), dataset, tmp_path / "run")
    assert results(tmp_path / "run")["last/model.safetensors"] != results(trained)["last/model.safetensors"]


def test_killed_at_any_file_operation_it_resumes_to_the_same(dataset, tmp_path, monkeypatch):
    settings = config("cnn", epochs=2, validation_fraction=0.0)
    data = TrainingData(settings.data, dataset.meta.env, torch.device("cpu"))
    data.add(synthetic([20]))
    splits = Splits(data, None, None)
    kills = killed_at_every_operation(
        monkeypatch,
        tmp_path,
        lambda path, resume: train(settings, dataset, path, splits=splits, resume=resume),
        results,
    )
    assert kills > 10


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_by_the_system_it_ends_the_same(dataset, trained, tmp_path):
    """With kill -9, in the middle of the second epoch: the process announces the moment and waits for its end."""
    run = tmp_path / "run"
    script = (
        "import signal, sys, torch; from pathlib import Path\n"
        "from tests.nac_drive.small import config, train; from nac_drive import Demonstrations\n"
        "def progress(event):\n"
        "    if event.job == 'train (cnn)' and event.done > 1: print('now', flush=True); signal.pause()\n"
        "torch.set_num_threads(1)\n"
        "train(config('cnn'), Demonstrations.open(Path(sys.argv[1])), Path(sys.argv[2]), progress=progress)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(dataset.path), str(run)],
        cwd=REPOSITORY, start_new_session=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert [row["step"] for row in rows(run)] == [1]
    train(config("cnn"), dataset, run, resume=True)
    assert results(run) == results(trained)
