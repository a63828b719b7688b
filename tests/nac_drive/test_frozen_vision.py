"""Trainings on the features of another driver's encoder, computed once."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nac_drive import training
from nac_drive.envs import EnvConfig
from nac_drive.policies import Driver, DriverConfig, load_driver, save_driver
from nac_drive.training.data import TrainingData
from nac_drive.training.offline import offline_accuracy
from tests.nac_drive.small import config, dagger_config, part_of, rows, synthetic, train, train_dagger

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def seer(tmp_path) -> Path:
    """The folder of a driver whose encoder others take over."""
    torch.manual_seed(5)
    save_driver(tmp_path / "seer", Driver(DriverConfig(core="cnn")), env=asdict(EnvConfig()), meta={})
    return tmp_path / "seer"


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_features_are_those_of_the_frames_as_they_are_and_mirrored(control):
    episode = synthetic([40, 20], control)
    driver = Driver(DriverConfig(control=control)).eval()
    plain, seen = (TrainingData(config(mirror=True), EnvConfig(control), CPU, see) for see in (None, driver.encoder))
    with torch.no_grad():
        for data in (plain, seen):
            data.add(part_of(episode, slice(0, 1)))
            data.add(part_of(episode, slice(1, 2)))
        starts, mirror = np.array([3, 42, 20]), np.array([True, True, False])
        frames, features = plain.sequences(starts, mirror), seen.sequences(starts, mirror)
        torch.testing.assert_close(features.frames, driver.encoder(frames.frames))
        assert torch.equal(features.labels, frames.labels)
        assert torch.equal(features.dt, frames.dt)
        assert not torch.equal(frames.frames[0], torch.from_numpy(episode.frames[3 : 3 + plain.window]))


def test_a_frozen_vision_head_is_that_of_the_other_driver_and_the_rest_learns(dataset, seer, tmp_path):
    settings = config("lstm", frozen=str(seer), mirror=True, epochs=2)
    best = load_driver(train(settings, dataset, tmp_path / "run"))
    for name, weight in load_driver(seer).encoder.state_dict().items():
        assert torch.equal(best.encoder.state_dict()[name], weight), name
    torch.manual_seed(settings.seed)
    start = Driver(best.config)
    assert not torch.equal(best.core.cell.weight_hh_l0, start.core.cell.weight_hh_l0)  # type: ignore[union-attr]
    assert not torch.equal(best.action_head.out.weight, start.action_head.out.weight)
    validation = dataset.load(dataset.split(settings.validation_fraction)[1])
    told = rows(tmp_path / "run")[best.meta["epoch"] - 1]["validation"]
    assert asdict(offline_accuracy(best, validation, EnvConfig())) == pytest.approx(told)  # by way of the frames


def test_a_frozen_training_takes_the_steps_that_an_end_to_end_one_takes_without_moving_its_vision(
    dataset, seer, tmp_path, monkeypatch
):
    """A second route: the same training on frames, its encoder set to that of the other driver and held still."""
    settings = config("lstm", frozen=str(seer), dropout=0.0, epochs=1, average=0.5)
    frozen = load_driver(train(settings, dataset, tmp_path / "frozen"))
    make = training.Driver

    def held_still(driver_config: DriverConfig) -> Driver:
        driver = make(driver_config)
        driver.encoder.load_state_dict(load_driver(seer).encoder.state_dict())
        driver.encoder.requires_grad_(False)
        return driver

    with monkeypatch.context() as patch:
        patch.setattr(training, "Driver", held_still)
        on_frames = load_driver(train(replace(settings, frozen=""), dataset, tmp_path / "frames"))
    for name, weight in frozen.state_dict().items():
        torch.testing.assert_close(weight, on_frames.state_dict()[name], atol=1e-5, rtol=1e-4, msg=name)


def test_dagger_leaves_a_frozen_vision_head_as_it_is(seer, tmp_path):
    settings = dagger_config(frozen=str(seer), encoder="paper", rounds=1, mirror=True)
    before, first = load_driver(seer), load_driver(train_dagger(settings, tmp_path / "first"))
    other = tmp_path / "other"
    save_driver(other, Driver(replace(first.config, core="gru")), env=asdict(settings.env), meta={})
    settings = replace(settings, init=str(other), learning_rate=1e-12, rounds=0)
    second = load_driver(train_dagger(settings, tmp_path / "second"))
    for driver in (first, second):
        for name, weight in before.encoder.state_dict().items():
            assert torch.equal(driver.encoder.state_dict()[name], weight), name
    assert not torch.equal(first.action_head.out.weight, second.action_head.out.weight)
    torch.testing.assert_close(second.action_head.out.weight, load_driver(other).action_head.out.weight, rtol=0, atol=1e-8)
    assert "frozen_sha256" in (tmp_path / "first" / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"frozen": "controller"}, "frozen must name a cloned driver, got 'controller'"),
        ({"frozen": "SEER", "encoder": "compact"}, "frozen must name a driver of the same encoder"),
        (
            {"frozen": "SEER", "augment": ("colour:3",)},
            "augment changes pictures, which a frozen encoder sees once",
        ),
    ],
)
def test_what_cannot_be_frozen_is_refused(changed, told, dataset, seer, tmp_path):
    changed = {**changed, "frozen": changed["frozen"].replace("SEER", str(seer))}
    with pytest.raises(ValueError, match=told):
        train(config("lstm", **changed), dataset, tmp_path / "run")
    assert not (tmp_path / "run").exists()
