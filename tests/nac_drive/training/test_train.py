"""Behaviour cloning: sequences and images, learning, rows and checkpoints, refusals."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from nac_drive.data_collection.collect import collect
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.envs import BAR_TOP, EnvConfig
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.events import Event
from nac_drive.policies import Driver, DriverConfig, load_driver
from nac_drive.policies.cores.lds import LDS
from nac_drive.policies.device import choose_device
from nac_drive.training import trainer
from nac_drive.training.data.images import masked
from nac_drive.training.offline import offline_accuracy
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.train import train_plan
from tests.data_collection.recordings import contents
from tests.nac_drive.small import FRAMES, config, nested, results, rows, score_of_weights, synthetic, train
from tests.slow import slow_but

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


# Under a perturbation


@pytest.mark.parametrize(
    ("perturb", "augment", "all_of_them"),
    [
        ("frame-drop:3:zero", (), ("frame-drop:3:zero",)),
        ("blackouts:2, frame-rate:2+colour:1", ("shadows:1",), ("shadows:1", "blackouts:2", "frame-rate:2+colour:1")),
    ],
)
def test_a_driver_for_a_perturbation_trains_as_with_that_augmentation(
    perturb, augment, all_of_them, dataset, tmp_path, monkeypatch
):
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    settings = config(epochs=1, augment=augment, ema_decay=0.5)
    train(nested(settings, perturb=perturb), dataset, tmp_path / "run")
    train(nested(settings, augment=all_of_them), dataset, tmp_path / "same")
    assert results(tmp_path / "run") == results(tmp_path / "same")  # weights, losses, Adam's moments
    one, other = (load_driver(tmp_path / name) for name in ("run", "same"))
    assert EnvConfig(**one.env_config) == replace(dataset.meta.env, perturb=perturb)
    assert EnvConfig(**other.env_config) == dataset.meta.env
    saved = RunFolder.open(tmp_path / "run").config
    assert (saved["perturb"], saved["data"]["augment"]) == (perturb, list(augment))  # as they were given
    before = contents(tmp_path / "run")
    train(nested(settings, perturb=perturb), dataset, tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before
    with pytest.raises(ValueError, match=r"perturb: run has .*, got None"):
        train(settings, dataset, tmp_path / "run", resume=True)


def test_a_driver_for_a_perturbation_is_validated_under_it(dataset, tmp_path, monkeypatch):
    driven: list[EnvConfig] = []
    drive = trainer.closed_loop
    monkeypatch.setattr(trainer, "closed_loop", lambda *call: (driven.append(call[1]), drive(*call))[1])
    best = train(config("cnn", epochs=1, perturb="frame-rate:3", mask_bar=True), dataset, tmp_path / "run")
    env = replace(dataset.meta.env, mask_bar=True, perturb="frame-rate:3")
    assert driven == [env]
    evaluation = evaluate(load_driver(best), [800_000], env=env)
    assert [row.episode_return for row in evaluation.rows] == rows(tmp_path / "run")[0]["returns"]
    assert evaluation.rows[0].perturbation == env.perturb


def test_a_dataset_under_a_perturbation_settles_the_drivers(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    env = EnvConfig(max_steps=20, perturb="weak-tyres:1")
    recorded = collect(tmp_path / "data", "controller", env=env, seeds=[0, 1])
    settings = config("cnn", epochs=1)
    for spec in ("frame-drop:1", "gap:0"):
        message = f"was recorded under 'weak-tyres:1', which counts; leave out '{spec}' or take a dataset without"
        other = nested(settings, perturb=spec)
        with pytest.raises(ValueError, match=f"perturb: dataset {recorded.path} {message}") as caught:
            train(other, recorded, tmp_path / "run")
        assert "\n" not in str(caught.value)
        with pytest.raises(ValueError, match=message):
            train_plan(other, recorded)
    assert not (tmp_path / "run").exists()
    assert EnvConfig(**load_driver(train(settings, recorded, tmp_path / "run")).env_config) == env


def test_masking_is_that_of_the_environment(dataset):
    frames = dataset.load().frames
    np.testing.assert_array_equal(masked(frames.copy(), EnvConfig()), frames)
    hidden = masked(frames.copy(), EnvConfig(mask_bar=True))
    assert not hidden[:, BAR_TOP:].any()
    np.testing.assert_array_equal(hidden[:, :BAR_TOP], frames[:, :BAR_TOP])


def test_offline_accuracy_is_that_of_acting_frame_by_frame():
    frames = synthetic([300, 20], seed=3)  # longer than the chunks of the streaming
    frames.zooming[:10] = True
    torch.manual_seed(0)
    driver = Driver(DriverConfig(core="lstm")).eval()
    correct = []
    for first, end in zip(frames.offsets[:-1], frames.offsets[1:], strict=True):
        state = driver.begin()
        for i in range(first, end):
            action, state = driver.act(frames.frames[i], state, float(frames.dt[i]))
            if not frames.zooming[i]:
                correct.append(action == frames.labels[i])
    assert offline_accuracy(driver, frames, EnvConfig()).accuracy == pytest.approx(np.mean(correct))


# Learning


@pytest.mark.parametrize("core", slow_but(["nac-exact"], ["nac-exact", "cnn"]))
def test_it_learns_a_tiny_dataset_by_heart(core, dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    frames = synthetic([48, 48, 48])
    frames.frames[:] = 0
    for i, label in enumerate(frames.labels):  # a bright band whose height is the action
        frames.frames[i, 16 * label : 16 * label + 16] = 200
    monkeypatch.setattr(Demonstrations, "load", lambda self, seeds: frames)
    settings = config(core, epochs=12, validation_fraction=0.0, learning_rate=3e-3, validate_every=12)
    train(settings, dataset, tmp_path / "run")
    losses = [row["loss"] for row in rows(tmp_path / "run")]
    assert losses[0] > 1.0
    assert losses[-1] < 0.2 * losses[0]
    driver = load_driver(tmp_path / "run" / "checkpoints" / "last")
    assert offline_accuracy(driver, frames, EnvConfig()).accuracy > 0.95


def test_reports_rows_and_the_best_checkpoint(dataset, tmp_path):
    events: list[Event] = []
    best = train(config(epochs=3, validate_every=2, mask_bar=True), dataset, tmp_path / "run", progress=events.append)
    lines = RunFolder.open(tmp_path / "run").rows()
    assert [row["step"] for row in lines] == [1, 2, 3]
    assert ["score" in row for row in lines] == [False, True, True]  # the last epoch is always validated
    results = [event for event in events if not event.total]
    assert [event.job for event in results] == ["epoch 1", "epoch 2", "epoch 3"]
    for event, row in zip(results, lines, strict=True):
        assert f"loss {row['loss']:.3f}" in event.note
        assert ("return" in event.note) == ("score" in row)
    assert all(0 <= row["validation"]["accuracy"] <= 1 for row in lines)
    done = [event.done for event in events if event.job == "train (lstm)"]
    assert all(number in done for number in (1, 2, 3))
    first = done[: done.index(1) + 1]
    assert first == pytest.approx(np.arange(1, len(first) + 1) / len(first))
    assert done == sorted(set(done))
    assert [event.done for event in events if event.job == "validation"] == [0, 1, 0, 1]
    driver = load_driver(best)
    assert EnvConfig(**driver.env_config) == EnvConfig("discrete", mask_bar=True, max_steps=FRAMES)
    assert driver.meta["training"]["driver"]["core"] == "lstm"
    winner = max((row for row in lines if "score" in row), key=lambda row: row["score"])
    assert driver.meta["epoch"] == winner["step"]
    evaluation = evaluate(driver, [800_000], env=EnvConfig(**driver.env_config))
    assert [row.episode_return for row in evaluation.rows] == winner["returns"]


def test_without_validation_tracks_there_is_no_accuracy_on_them(dataset, tmp_path):
    train(config("cnn", epochs=1, validation_fraction=0.0, sequence_length=1, batch_size=32), dataset, tmp_path / "run")
    (row,) = rows(tmp_path / "run")
    assert "validation" not in row
    assert row["frames"] == 3 * FRAMES


# Refusals


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"core": "lstmm"}, "core 'lstmm' is unknown.* Did you mean 'lstm'"),
        ({"core_args": {"windw": 4}}, r"unknown \['windw'\]"),
        ({"encoder": "papr"}, "encoder 'papr' is unknown; .* Did you mean 'paper'"),
        ({"init_from": "exprt"}, "no folder exprt .* Did you mean 'expert'"),
    ],
)
def test_a_driver_that_cannot_be_built_is_refused_before_the_dataset_is_loaded(
    changed, message, dataset, tmp_path, monkeypatch
):
    monkeypatch.setattr(Demonstrations, "load", lambda *_: pytest.fail("the dataset was loaded"))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train(config(**changed), dataset, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sequence_length": 15}, "sequence_length must be at least 16 for core 'lstm', got 15"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"validate_every": 0}, "validate_every must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be positive and finite, got 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive and finite, got nan"),
        ({"ema_decay": 1.0}, r"ema_decay must lie in \[0, 1\), got 1"),
        ({"dropout": 1.0}, r"dropout: must be in \[0, 1\), got 1"),
        ({"augment": ("fog:1",)}, "perturbation 'fog' is unknown"),
        ({"augment": ("shadows:1", "frame-drop:1+action-noise:1")}, "'action-noise' needs the simulator"),
        ({"perturb": "fog:1"}, "perturbation 'fog' is unknown"),
        ({"perturb": "gap:1,gap:4"}, "'gap' has the levels 1 to 3"),
        ({"perturb": "gap:1,weak-tyres:1"}, "'weak-tyres' needs the simulator; recorded frames take"),
        ({"perturb": ("gap:1",)}, r"perturb must be .*, got \('gap:1',\)"),
        (
            {"perturb": "gap:1+colour:1", "freeze_encoder_from": "expert"},
            "augment or perturb: 'colour' changes images, which a frozen",
        ),
    ],
)
def test_a_bad_setting_is_named(changed, message, dataset, tmp_path):
    with pytest.raises(ValueError, match=message):
        config(**changed).check()
    with pytest.raises(ValueError, match=message):
        train(config(**changed), dataset, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    config("cnn", sequence_length=1).check()
    config(perturb="gap:1,frame-rate:2", freeze_encoder_from="expert").check()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sequence_length": FRAMES + 1}, f"longest episode .{FRAMES} frames., got {FRAMES + 1}"),
        ({"core": "crystal-ball"}, "core 'crystal-ball' is unknown"),
        ({"core_args": {"foo": 1}}, r"core_args: unknown \['foo'\]"),
        ({"validation_fraction": 1.0}, "validation_fraction must lie in"),
        ({"validation_tracks": "val-99"}, "has 25 tracks"),
        ({"precision": "8-bit"}, "8-bit"),
    ],
)
def test_settings_that_cannot_be_trained_leave_no_folder(changed, message, dataset, continuous, tmp_path):
    with pytest.raises(ValueError, match=message):
        train(config(**changed), dataset, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_tests_see_no_gpu_unless_they_are_told_to(request):
    """Many compare bits, also in processes that they start."""
    assert request.config.getoption("gpu") or os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_devices(dataset, tmp_path):
    with pytest.raises(ValueError, match="device must be auto, cpu or cuda, got 'tpu'"):
        train(config(), dataset, tmp_path / "run", device="tpu")
    assert choose_device("cpu") == CPU
    if torch.cuda.is_available():
        assert choose_device("auto").type == choose_device("cuda").type == "cuda"
    else:
        assert choose_device("auto") == CPU
        with pytest.raises(ValueError, match="device is cuda, but torch sees no GPU here; pass --device cpu or auto"):
            train(config(), dataset, tmp_path / "run", device="cuda")
    assert not (tmp_path / "run").exists()


def test_a_run_is_never_overwritten_nor_resumed_with_other_settings(trained, dataset, continuous):
    settings, before = config("cnn"), contents(trained)
    with pytest.raises(FileExistsError, match="--resume"):
        train(settings, dataset, trained)
    with pytest.raises(ValueError, match=r"optim.learning_rate: run has 0.001, got 0.5"):
        train(nested(settings, learning_rate=0.5), dataset, trained, resume=True)
    with pytest.raises(ValueError, match="dataset_sha256"):
        train(settings, continuous, trained, resume=True)
    assert contents(trained) == before
    with pytest.raises(FileNotFoundError, match="not a run folder"):
        train(settings, dataset, trained / "typo", resume=True)


def test_the_penalty_of_a_core_is_minimised_too(dataset, tmp_path, monkeypatch):
    """The matrix of a linear dynamical system that begins unstable ends closer to stability than without it."""
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    settings = config("lds", core_args={"margin": 50.0}, epochs=1)
    penalty = load_driver(train(settings, dataset, tmp_path / "with")).core.penalty()
    with monkeypatch.context() as patch:
        patch.setattr(LDS, "penalty", lambda core: 0.0)
        without = train(settings, dataset, tmp_path / "without")
    assert 0 < penalty < load_driver(without).core.penalty()


def test_a_core_is_corrected_after_every_step(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(LDS, "after_step", lambda core: seen.append(core.dynamics.detach().clone()))
    events: list[Event] = []
    settings = config("lds", core_args={"stability": "descent"}, epochs=1)
    best = load_driver(train(settings, dataset, tmp_path / "run", progress=events.append))
    assert len(seen) == sum(event.job == "train (lds)" for event in events) > 1
    assert not torch.equal(seen[0], seen[1])
    assert torch.equal(seen[-1], best.core.get_parameter("dynamics"))
