"""A training that diverges stops with one line at the first number that is not finite; the last checkpoint stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nac_drive.cli.main import main
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.events import Event, Progress, silent
from nac_drive.experiments import offline
from nac_drive.experiments.cloning import DATASET, Cloning
from nac_drive.experiments.driving import Training
from nac_drive.experiments.offline import Offline
from nac_drive.experiments.paper import PaperTask, Row
from nac_drive.policies import load_driver
from nac_drive.policies.action_heads import ContinuousActionHead, DiscreteActionHead
from nac_drive.storage.lock import FolderInUseError
from nac_drive.training import trainer
from nac_drive.training.finite import DivergedError
from nac_drive.training.ppo.run import ppo
from tests.nac_drive.small import (
    TINY,
    checkpoint,
    config,
    dagger_config,
    nested,
    rows,
    score_of_weights,
    train,
    train_dagger,
)
from tests.nac_drive.training.test_ppo import TINY as PPO

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
        step = torch.optim.AdamW.step

        def update(self, *arguments, **keywords):
            found = step(self, *arguments, **keywords)
            if (folder / "checkpoints" / "step_1").exists():
                self.param_groups[0]["params"][-1].data.fill_(value)
            return found

        monkeypatch.setattr(torch.optim.AdamW, "step", update)


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


# Every trainer and every experiment that trains


def by_train(rate: float, dataset: Demonstrations, folder: Path) -> Any:
    return train(config("cnn", epochs=2, sequence_length=1, batch_size=8, learning_rate=rate), dataset, folder / "run")


def by_dagger(rate: float, dataset: Demonstrations, folder: Path) -> Any:
    return train_dagger(dagger_config("cnn", **TINY, rounds=2, learning_rate=rate), folder / "run")


def by_ppo(rate: float, dataset: Demonstrations, folder: Path) -> Any:
    return ppo(nested(PPO, learning_rate=rate), folder / "run")


def by_passive(rate: float, dataset: Demonstrations, folder: Path, control: Any = "discrete", **settings: Any) -> Row:
    experiment = Offline(
        control, cells=[("tracks", 5)], folds=3, d_model=8, encoder="pooled", epochs=3, end_to_end=True,
        learning_rate=rate, **settings,
    )  # fmt: skip
    return experiment.measure(dataset.path.parent, PaperTask("LSTM", "lstm", {}, experiment.places()[0]))


def by_encoder(rate: float, dataset: Demonstrations, folder: Path) -> Any:
    experiment = Offline(folds=3, d_model=8, encoder="pooled", epochs=3, learning_rate=rate)
    (folder / offline.DATASET).symlink_to(dataset.path)
    (folder / offline.TRAINED_ENCODERS).mkdir()
    offline._train_encoder(experiment, folder, experiment._encoder_task("tracks", 0))
    return [*folder.rglob("*.safetensors")]


def by_driving(rate: float, dataset: Demonstrations, folder: Path) -> Row:
    experiment = Cloning(
        [], "discrete", encoder="pooled", encoder_from=None, d_model=8, sequence_length=16, runs=1, epochs=2,
        learning_rate=rate,
    )  # fmt: skip
    (folder / DATASET).symlink_to(dataset.path)
    return experiment.measure(folder, PaperTask("LSTM", "lstm", {}, experiment.places()[0]))


def by_compare(rate: float, dataset: Demonstrations, folder: Path) -> Any:
    settings = config("cnn", epochs=2, sequence_length=1, batch_size=8, learning_rate=rate)
    return Training(settings, dataset.path, "cpu").driver(folder / "run")


TRAINERS = [by_train, by_dagger, by_ppo, by_passive, by_encoder, by_driving, by_compare]


@pytest.mark.parametrize("trainer_of", TRAINERS)
def test_a_rate_without_sense_is_refused_by_every_trainer(trainer_of, dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(offline, "DATASET", dataset.path.name)
    with pytest.raises(ValueError, match=r"learning_rate must be at most 10, got 1e\+30"):
        trainer_of(1e30, dataset, tmp_path)


@pytest.mark.parametrize("trainer_of", [trainer_of for trainer_of in TRAINERS if trainer_of is not by_ppo])
def test_every_trainer_that_diverges_ends_with_an_error_and_without_results(trainer_of, dataset, tmp_path, monkeypatch):
    """At a rate that no setting allows. PPO at such a rate: tests of its own."""
    monkeypatch.setattr(offline, "DATASET", dataset.path.name)
    monkeypatch.setattr("nac_drive.training.config.HIGHEST_RATE", 1e31)
    with pytest.raises(DivergedError, match=r"the training has diverged: .* (is nan|not finite); "):
        trainer_of(1e30, dataset, tmp_path)


@pytest.mark.parametrize("control", ["discrete", "continuous"])
@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize("where", ["training", "stopping"])
def test_a_passive_test_that_diverges_has_no_row(request, monkeypatch, control, epoch, where):
    """Not even after an epoch that was good."""
    data: Demonstrations = request.getfixturevalue("dataset" if control == "discrete" else "continuous")
    monkeypatch.setattr(offline, "DATASET", data.path.name)
    losses: list[float] = []

    def spoilt(name: str, real: Any) -> Any:
        def loss(*arguments: Any) -> Any:
            value = real(*arguments)
            if name == "stopping":
                losses.append(value)
            return value * float("nan") if name == where and len(losses) == epoch - (name == "training") else value

        return loss

    head = DiscreteActionHead if control == "discrete" else ContinuousActionHead
    monkeypatch.setattr(head, "loss", staticmethod(spoilt("training", head.loss)))
    monkeypatch.setattr(offline._Fold, "_loss", spoilt("stopping", offline._Fold._loss))
    expected = (
        rf"loss of LSTM, fold 0 over tracks, (in|after) epoch {epoch} is nan; lower learning_rate in the protocol"
    )
    with pytest.raises(DivergedError, match=expected):
        by_passive(1e-3, data, Path(), control)


# One process at a time, and nothing left of what cannot work


@pytest.mark.parametrize("command", ["train", "dagger"])
def test_a_second_process_is_refused(dataset, tmp_path, command):
    refusals = []

    def start(resume: bool, progress: Progress = silent) -> None:
        if command == "train":
            settings = config("cnn", epochs=1, sequence_length=1, batch_size=64)
            train(settings, dataset, tmp_path / "run", resume=resume, progress=progress)
        else:
            train_dagger(dagger_config("cnn", **TINY, rounds=0), tmp_path / "run", resume=resume, progress=progress)

    def progress(event: Event) -> None:
        if "train" in event.job and not refusals:
            with pytest.raises(FolderInUseError, match="is in use by another process") as caught:
                start(resume=True)
            refusals.append(str(caught.value))

    start(resume=False, progress=progress)
    assert refusals
    start(resume=True)


@pytest.mark.parametrize(
    "words",
    [
        "--seed -1", "--learning-rate inf", "--learning-rate 1e30", "--freeze-encoder-from nope", "--init-from nope",
        "--set optim.precision=8", "--set optim.ema_decay=nan", "--set driver.dropout=nan", "--batch-size 99999999999",
        "--set data.curve_weight=nan",
        "--set driver.d_model=99999999", "--core-args window=1.5",
        "--core nac-exact --core-args settle_steps=9999999", "--core nac-exact --core-args delta_t=0.5",
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["train", "dagger"])
def test_a_setting_that_cannot_work_leaves_nothing(dataset, tmp_path, capsys, command, words):
    first = ["train", str(dataset.path)] if command == "train" else ["dagger", "--expert", "controller"]
    assert main([*first, "--out", str(tmp_path / "run"), "--core", "lstm", "--device", "cpu", *words.split()]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["init-from", "freeze-encoder-from"])
def test_an_unknown_driver_is_named_by_its_option(dataset, tmp_path, capsys, option):
    words = ["train", str(dataset.path), "--out", str(tmp_path / "run"), "--core", "lstm", f"--{option}", "nobody"]
    assert main(words) == 2
    assert f" {option.replace('-', '_')}: there is no folder nobody" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "--n-envs 0", "--n-envs 999999", "--n-epochs 0", "--batch-size 1", "--gamma 2", "--clip-range -1",
        "--total-timesteps -1", "--set rollout.patience=-1", "--set reward.crash_penalty=nan", "--seed -1",
        "--learning-rate inf", "--init-from nope", "--set optim.ent_coef=inf", "--n-steps 1",
    ],
)  # fmt: skip
def test_a_setting_of_ppo_that_cannot_work_leaves_nothing(tmp_path, capsys, words):
    assert main(["ppo", "--out", str(tmp_path / "run"), *words.split()]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
