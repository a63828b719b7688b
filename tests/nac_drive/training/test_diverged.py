"""A training that diverges stops with one line at the first number that is not finite; the last checkpoint stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nac_drive.cli.main import main
from nac_drive.policies import load_driver
from nac_drive.policies.action_heads import DiscreteActionHead
from nac_drive.storage.lock import FolderInUseError
from nac_drive.training import trainer
from nac_drive.training.finite import DivergedError
from tests.nac_drive.small import (
    TINY,
    checkpoint,
    config,
    dagger_config,
    rows,
    score_of_weights,
    train,
    train_dagger,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def no_validation(monkeypatch):
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)


def spoil(monkeypatch, value: float, folder: Path, where: str) -> None:
    """After the first checkpoint the loss, or a weight at an update, becomes `value`."""
    if where == "loss":
        real = DiscreteActionHead.loss

        def loss(*arguments, **keywords):
            found = real(*arguments, **keywords)
            return found * value if (folder / "checkpoints" / "step_1").exists() else found

        monkeypatch.setattr(DiscreteActionHead, "loss", staticmethod(loss))
    else:
        step = torch.optim.Adam.step

        def update(self, *arguments, **keywords):
            found = step(self, *arguments, **keywords)
            if (folder / "checkpoints" / "step_1").exists():
                self.param_groups[0]["params"][-1].data.fill_(value)
            return found

        monkeypatch.setattr(torch.optim.Adam, "step", update)


@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
@pytest.mark.parametrize("where", ["loss", "weights"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_train_stops_and_keeps_the_last_good_checkpoint(dataset, tmp_path, monkeypatch, value, where, ema_decay):
    run = tmp_path / "run"
    spoil(monkeypatch, value, run, where)
    settings = config("cnn", epochs=3, ema_decay=ema_decay, sequence_length=1, batch_size=64)
    with pytest.raises(DivergedError, match=r"has diverged: the .* epoch 2.*; the last checkpoint is kept") as caught:
        train(settings, dataset, run)
    assert "\n" not in str(caught.value)
    assert [row["step"] for row in rows(run)] == [1]
    assert checkpoint(run, "last") == checkpoint(run, "best") == run / "checkpoints" / "step_1"
    assert all(torch.isfinite(tensor).all() for tensor in load_driver(run).state_dict().values())


def test_a_score_that_is_not_a_number_never_becomes_the_best(dataset, tmp_path, monkeypatch):
    run, scores = tmp_path / "run", iter((1.0, float("nan")))
    monkeypatch.setattr(trainer, "closed_loop", lambda *_: {"score": next(scores)})
    with pytest.raises(DivergedError, match="score of step 2 is nan"):
        train(config("cnn", epochs=3, sequence_length=1, batch_size=64), dataset, run)
    assert checkpoint(run, "best").name == "step_1"


def test_dagger_stops_too(tmp_path, monkeypatch):
    spoil(monkeypatch, float("nan"), tmp_path / "run", "loss")
    with pytest.raises(DivergedError, match="the loss of batch 1 in epoch"):
        train_dagger(dagger_config("cnn", **TINY, rounds=2), tmp_path / "run")
    assert checkpoint(tmp_path / "run", "last").name == "step_1"


def test_the_exit_status_is_1(dataset, tmp_path, monkeypatch, capsys):
    spoil(monkeypatch, float("nan"), tmp_path / "run", "loss")
    words = "--core cnn --sequence-length 1 --batch-size 64 --epochs 3 --validate-every 1 --workers 1 --device cpu"
    assert main(["train", str(dataset.path), "--out", str(tmp_path / "run"), *words.split()]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("nac-drive: the training has diverged: the loss of batch 1 in epoch 2 is nan")


# One process at a time, and nothing left of what cannot work


@pytest.mark.parametrize("command", ["train", "dagger"])
def test_a_second_process_is_refused(dataset, tmp_path, command):
    refusals = []

    def start(resume: bool, report=lambda row: None) -> None:
        if command == "train":
            settings = config("cnn", epochs=1, sequence_length=1, batch_size=64)
            train(settings, dataset, tmp_path / "run", resume=resume, report=report)
        else:
            train_dagger(dagger_config("cnn", **TINY, rounds=0), tmp_path / "run", resume=resume, report=report)

    def report(row):
        if "batch" in row and not refusals:
            with pytest.raises(FolderInUseError, match="is in use by another process") as caught:
                start(resume=True)
            refusals.append(str(caught.value))

    start(resume=False, report=report)
    assert refusals
    start(resume=True)


@pytest.mark.parametrize(
    "words",
    [
        "--seed -1", "--learning-rate inf", "--learning-rate 1e30", "--freeze-encoder-from nope", "--init-from nope",
        "--precision 8", "--ema-decay nan", "--dropout nan", "--batch-size 99999999999", "--change-weight nan",
        "--d-model 99999999", "--core-args window=1.5", "--core nac-exact --core-args settle_steps=9999999",
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["train", "dagger"])
def test_a_setting_that_cannot_work_leaves_nothing(dataset, tmp_path, capsys, command, words):
    first = ["train", str(dataset.path)] if command == "train" else ["dagger", "--expert", "controller"]
    assert main([*first, "--out", str(tmp_path / "run"), "--core", "lstm", "--device", "cpu", *words.split()]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        "--n-envs 0", "--n-envs 999999", "--n-epochs 0", "--batch-size 1", "--gamma 2", "--clip-range -1",
        "--total-timesteps -1", "--reward-scale 0", "--crash-penalty nan", "--seed -1", "--learning-rate inf",
        "--init-from nope", "--ent-coef inf", "--n-steps 1",
    ],
)  # fmt: skip
def test_a_setting_of_ppo_that_cannot_work_leaves_nothing(tmp_path, capsys, words):
    assert main(["ppo", "--out", str(tmp_path / "run"), *words.split()]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
