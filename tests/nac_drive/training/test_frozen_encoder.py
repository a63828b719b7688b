"""Training on the features of another driver's encoder, computed once."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nac_drive.envs import EnvConfig
from nac_drive.policies import Driver, DriverConfig, load_driver, save_driver
from nac_drive.training import trainer
from nac_drive.training.data.sequences import TrainingData
from nac_drive.training.offline import offline_accuracy
from tests.nac_drive.small import (
    config,
    dagger_config,
    nested,
    part_of,
    rows,
    score_of_weights,
    synthetic,
    train,
    train_dagger,
)

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """The folder of a driver whose encoder others take over; read only."""
    path = tmp_path_factory.mktemp("source") / "driver"
    torch.manual_seed(5)
    return save_driver(path, Driver(DriverConfig(core="cnn", encoder="paper")), env=asdict(EnvConfig()), meta={})


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_features_are_those_of_the_frames_and_of_the_flipped_frames(control):
    episode = synthetic([40, 20], control)
    driver = Driver(DriverConfig(encoder="paper", control=control)).eval()
    settings = config(horizontal_flip=True).data
    plain, frozen = (TrainingData(settings, EnvConfig(control), CPU, encoder) for encoder in (None, driver.encoder))
    with torch.no_grad():
        for data in (plain, frozen):
            data.add(part_of(episode, slice(0, 1)))
            data.add(part_of(episode, slice(1, 2)))
        starts, flip = np.array([3, 42, 20]), np.array([True, True, False])
        frames, features = plain.sequences(starts, flip), frozen.sequences(starts, flip)
        torch.testing.assert_close(features.frames, driver.encoder(frames.frames))
        assert torch.equal(features.labels, frames.labels)
        assert torch.equal(features.dt, frames.dt)
        assert not torch.equal(frames.frames[0], torch.from_numpy(episode.frames[3 : 3 + plain.length]))


def test_a_frozen_encoder_is_that_of_the_other_driver_and_the_rest_learns(dataset, source, tmp_path, monkeypatch):
    learners: list[Driver] = []
    build = trainer.build_learner
    monkeypatch.setattr(
        "nac_drive.training.train.build_learner", lambda plan: learners.append(build(plan)) or learners[-1]
    )
    settings = config("lstm", encoder="paper", freeze_encoder_from=str(source), horizontal_flip=True, epochs=2)
    best = load_driver(train(settings, dataset, tmp_path / "run"))
    (learner,) = learners
    assert {name for name, weight in learner.named_parameters() if not weight.requires_grad} == {
        f"encoder.{name}" for name, _ in learner.encoder.named_parameters()
    }, "gradients are computed for the rest, and processes wait for no others"
    for name, weight in load_driver(source).encoder.state_dict().items():
        assert torch.equal(best.encoder.state_dict()[name], weight), name
    torch.manual_seed(settings.seed)
    start = Driver(best.config)
    assert not torch.equal(best.core.cell.weight_hh_l0, start.core.cell.weight_hh_l0)  # type: ignore[union-attr]
    assert not torch.equal(best.action_head.out.weight, start.action_head.out.weight)
    validation = dataset.load(dataset.split(settings.validation_fraction)[1])
    row = rows(tmp_path / "run")[best.meta["epoch"] - 1]["validation"]
    assert asdict(offline_accuracy(best, validation, EnvConfig())) == pytest.approx(row)  # by way of the frames


def test_a_frozen_run_takes_the_steps_of_an_end_to_end_run_whose_encoder_does_not_move(
    dataset, source, tmp_path, monkeypatch
):
    """A second route: the same run on frames, its encoder set to the other driver's and held still."""
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    settings = config("lstm", encoder="paper", freeze_encoder_from=str(source), dropout=0.0, epochs=1, ema_decay=0.5)
    frozen = load_driver(train(settings, dataset, tmp_path / "frozen"))
    make = trainer.Driver

    def held_still(driver_config: DriverConfig) -> Driver:
        driver = make(driver_config)
        driver.encoder.load_state_dict(load_driver(source).encoder.state_dict())
        driver.encoder.requires_grad_(False)
        return driver

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "Driver", held_still)
        on_frames = load_driver(train(nested(settings, freeze_encoder_from=None), dataset, tmp_path / "frames"))
    for name, weight in frozen.state_dict().items():
        torch.testing.assert_close(weight, on_frames.state_dict()[name], atol=1e-5, rtol=1e-4, msg=name)


def test_dagger_leaves_a_frozen_encoder_as_it_is(source, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    settings = dagger_config(freeze_encoder_from=str(source), encoder="paper", rounds=1, max_steps=20)
    before, first = load_driver(source), load_driver(train_dagger(settings, tmp_path / "first"))
    other = tmp_path / "other"
    save_driver(other, Driver(replace(first.config, core="gru")), env=asdict(settings.env), meta={})
    settings = nested(settings, init_from=str(other), learning_rate=1e-12, rounds=0)
    second = load_driver(train_dagger(settings, tmp_path / "second"))
    for driver in (first, second):
        for name, weight in before.encoder.state_dict().items():
            assert torch.equal(driver.encoder.state_dict()[name], weight), name
    assert not torch.equal(first.action_head.out.weight, second.action_head.out.weight)
    torch.testing.assert_close(
        second.action_head.out.weight, load_driver(other).action_head.out.weight, rtol=0, atol=1e-8
    )
    assert "freeze_encoder_sha256" in (tmp_path / "first" / "config.yaml").read_text()


def test_an_encoder_knows_no_actions_and_may_come_from_a_driver_of_another_control(source, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    settings = dagger_config(
        freeze_encoder_from=str(source), encoder="paper", control="continuous", rounds=0, max_steps=20
    )
    learner = load_driver(train_dagger(settings, tmp_path / "run"))
    assert (load_driver(source).config.control, learner.config.control) == ("discrete", "continuous")
    for name, weight in load_driver(source).encoder.state_dict().items():
        assert torch.equal(learner.encoder.state_dict()[name], weight), name
    settings = nested(settings, freeze_encoder_from=None, init_from=str(source))
    with pytest.raises(ValueError, match="was made for discrete control, the environment has continuous control"):
        train_dagger(settings, tmp_path / "refused")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"freeze_encoder_from": "controller"}, "freeze_encoder_from must name a learned driver, got 'controller'"),
        (
            {"freeze_encoder_from": "SOURCE", "encoder": "compact"},
            "freeze_encoder_from must name a driver of the same encoder",
        ),
        (
            {"freeze_encoder_from": "SOURCE", "augment": ("gap:1", "frame-drop:1+colour:3")},
            "augment or perturb: 'colour' changes images, which a frozen encoder sees once",
        ),
    ],
)
def test_an_encoder_that_cannot_be_frozen_is_refused(changed, message, dataset, source, tmp_path):
    changed = {**changed, "freeze_encoder_from": changed["freeze_encoder_from"].replace("SOURCE", str(source))}
    with pytest.raises(ValueError, match=message):
        train(config("lstm", **{"encoder": "paper", **changed}), dataset, tmp_path / "run")
    assert not (tmp_path / "run").exists()
