"""Training on frames that stay in their files: the same run bit for bit, within bounded memory."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.stored_frames import StoredFrames
from nac_drive.training import trainer
from nac_drive.training.data import memory
from nac_drive.training.data.read_ahead import read_ahead
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.train import load_splits, train_plan
from tests.nac_drive.small import (
    FRAMES,
    Stop,
    config,
    dagger_config,
    results,
    score_of_weights,
    stop_at,
    train,
    train_dagger,
)
from tests.slow import slow_but

CPU = torch.device("cpu")
BYTES = 96 * 96 * 3
pytestmark = pytest.mark.usefixtures("one_thread")

FLIPPED: dict[str, Any] = {"horizontal_flip": True, "epochs": 2}
CASES = {
    "single frames": ("discrete", config("cnn", epochs=2, sequence_length=1, batch_size=16)),
    "all options": ("discrete", config("lstm", **FLIPPED, mask_bar=True)),
    "augmented": ("discrete", config("gru", **FLIPPED, augment=("gaussian-noise:1+shadows:2", "colour:3"))),
    "continuous": ("continuous", config("cfc", **FLIPPED, curve_weight=2.0, ema_decay=0.9)),
}


def keep_in_files(monkeypatch: pytest.MonkeyPatch, budget: int = 0) -> None:
    monkeypatch.setattr(memory, "frame_memory", lambda device: budget)


@pytest.mark.parametrize("name", slow_but(["all options"], CASES))
def test_a_streamed_and_interrupted_run_is_that_in_memory_bit_for_bit(name, request, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    control, settings = CASES[name]
    data = request.getfixturevalue("dataset" if control == "discrete" else "continuous")
    train(settings, data, tmp_path / "memory")
    keep_in_files(monkeypatch)
    monkeypatch.setattr(Demonstrations, "load", lambda *_: pytest.fail("frames were loaded"))

    with pytest.raises(Stop):
        train(settings, data, tmp_path / "files", progress=stop_at(2, f"train ({settings.driver.core})", after=1))
    train(settings, data, tmp_path / "files", resume=True)
    assert results(tmp_path / "files") == results(tmp_path / "memory")


@pytest.mark.slow
def test_dagger_streams_the_rounds_that_no_longer_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    settings = dagger_config("gru", rounds=1)
    train_dagger(settings, tmp_path / "memory")
    keep_in_files(monkeypatch, budget=2 * FRAMES * BYTES)  # round 0
    kinds = []
    add = trainer.TrainingData.add
    monkeypatch.setattr(
        trainer.TrainingData, "add", lambda self, frames: (kinds.append(type(frames.frames)), add(self, frames))[1]
    )
    train_dagger(settings, tmp_path / "files")
    assert [kind is StoredFrames for kind in kinds] == [False, True]
    assert results(tmp_path / "files") == results(tmp_path / "memory")


@pytest.mark.parametrize(("missing", "streamed"), [(0, False), (1, True)])
def test_frames_stay_in_their_files_when_not_all_fit(missing, streamed, dataset, monkeypatch):
    keep_in_files(monkeypatch, budget=3 * FRAMES * BYTES - missing)
    splits = load_splits(train_plan(config(), dataset, "cpu"), dataset)
    assert splits.validation is not None
    assert isinstance(splits.validation.frames, StoredFrames) == streamed
    starts = splits.train.starts(np.random.default_rng(0))
    (read,) = splits.train.read_ahead([starts])
    assert (read is not None) == streamed


def test_frames_may_take_a_quarter_of_the_least_limit(monkeypatch):
    resource = pytest.importorskip("resource")
    free = memory.usable_memory()
    assert memory.frame_memory(CPU) == free // 4
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (free // 2, free))
    assert memory.frame_memory(CPU) == free // 8


@pytest.mark.parametrize(("size", "ahead"), [(2**40, 1), (2**25, 2)])
def test_reading_ahead_is_bounded_and_in_order(size, ahead):
    begun, lock = [], threading.Lock()

    def read(item: int) -> int:
        with lock:
            begun.append(item)
        return item * item

    for number, result in enumerate(read_ahead(read, range(20), size)):
        assert result == number * number
        with lock:
            assert len(begun) <= number + 1 + ahead
    assert sorted(begun) == list(range(20))


def test_a_read_that_fails_fails_the_loop():
    def read(item: int) -> int:
        return 1 // (3 - item)

    with pytest.raises(ZeroDivisionError):
        list(read_ahead(read, range(10), 1))


def test_rows_say_how_fast_and_how_large(trained):
    for row in RunFolder.open(trained).rows():
        assert 0 < row["frames"] / row["samples_per_second"] <= row["seconds"] * 1.001  # the epoch without validation
        assert row["memory_mb"] is None or 50 < row["memory_mb"] < memory.usable_memory() / 1e6
