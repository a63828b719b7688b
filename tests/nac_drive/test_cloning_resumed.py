"""Cloning: whatever interrupts a training, it ends the same bit for bit."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.training.run_folder import RunFolder
from tests.data_collection.recordings import contents
from tests.nac_drive.small import Stop, config, killed_at_every_operation, results, rows, train

REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("one_thread")


CASES = {
    "lstm": ("discrete", config("lstm")),
    "nac-exact": ("discrete", config("nac-exact")),
    "all options": ("discrete", config("nac-pw", mirror=True, class_weights=True, change_weight=3.0, mask_bar=True)),
    "augmented": ("discrete", config("lstm", mirror=True, augment=("gaussian-noise:1+shadows:2", "colour:3"))),
    "continuous": ("continuous", config("cfc", mirror=True, change_weight=2.0)),
    "frozen": ("discrete", config("cfc", encoder="compact", frozen="expert", mirror=True, average=0.9)),
}


@pytest.mark.parametrize("name", CASES)
def test_resumed_it_ends_the_same_bit_for_bit(name, request, tmp_path):
    control, settings = CASES[name]
    data = request.getfixturevalue("dataset" if control == "discrete" else "continuous")
    train(settings, data, tmp_path / "straight")
    reports: list[dict[str, Any]] = []
    with pytest.raises(Stop):  # in the middle of the second epoch
        train(settings, data, tmp_path / "resumed", report=lambda row: (reports.append(row), halt(row)))
    assert reports[-1]["epoch"] == 2
    torch.rand(7)  # whatever the process did in between
    train(settings, data, tmp_path / "resumed", resume=True)
    assert results(tmp_path / "resumed") == results(tmp_path / "straight")
    before = contents(tmp_path / "resumed")
    train(settings, data, tmp_path / "resumed", resume=True)  # a finished run has nothing left to do
    assert contents(tmp_path / "resumed") == before


def halt(row: dict[str, Any]) -> None:
    if row.get("epoch") == 2 and row["batch"] == 2:
        raise Stop


def test_a_moved_dataset_is_the_same_dataset(dataset, tmp_path):
    settings = config("cnn", epochs=1)
    train(settings, dataset, tmp_path / "run")
    moved = Demonstrations.open(shutil.copytree(dataset.path, tmp_path / "moved"))
    before = contents(tmp_path / "run")
    train(settings, moved, tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before


def test_another_seed_ends_elsewhere(dataset, tmp_path):
    for seed in (0, 1):
        train(config("cnn", epochs=1, seed=seed), dataset, tmp_path / str(seed))
    assert results(tmp_path / "0")["last/model.safetensors"] != results(tmp_path / "1")["last/model.safetensors"]


def test_killed_at_any_file_operation_it_resumes_to_the_same(dataset, tmp_path, monkeypatch):
    settings = config("cnn", epochs=2, window=32, batch_size=8, validation_fraction=0.0)
    kills = killed_at_every_operation(
        monkeypatch, tmp_path, lambda path, resume: train(settings, dataset, path, resume=resume), results
    )
    assert kills > 10


def test_killed_by_the_system_at_random_moments_it_ends_the_same(dataset, tmp_path):
    settings = config("lstm", epochs=4)
    train(settings, dataset, tmp_path / "straight")
    run = tmp_path / "killed"
    script = (
        "import sys, torch; from pathlib import Path\n"
        "from tests.nac_drive.small import config; from nac_drive import Demonstrations, clone\n"
        "torch.set_num_threads(1); run = Path(sys.argv[2])\n"
        "clone(config('lstm', epochs=4), Demonstrations.open(Path(sys.argv[1])), run, device='cpu',"
        " resume=(run / 'config.yaml').exists())"
    )
    command = [sys.executable, "-c", script, str(dataset.path), str(run)]
    rng = random.Random(0)
    for finished_before_kill in (1, 2):
        process = subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True)
        while len(rows(run)) < finished_before_kill if (run / "metrics.jsonl").exists() else True:
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.4))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert RunFolder.open(run).checkpoint_folder("last") is not None or finished_before_kill == 1
    train(settings, dataset, run, resume=(run / "config.yaml").exists())
    assert results(run) == results(tmp_path / "straight")
