"""DAgger: who drives which episode, what is learned from them, rows and reports, refusals."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nac_drive.data_collection.collect import collect
from nac_drive.data_collection.controller.controller import Controller
from nac_drive.data_collection.dart import NoiseConfig
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.mixture import MixturePolicy
from nac_drive.envs import ENVIRONMENTS, EnvConfig, make_env, rollout
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.policies import Driver, DriverConfig, load_driver, save_driver
from nac_drive.storage.checkpoints import checkpoint_folder
from nac_drive.training import trainer
from nac_drive.training.dagger import agreement
from nac_drive.training.dagger_config import DaggerConfig
from nac_drive.training.moving_average import moving_average_decay
from nac_drive.training.plan import TrainingPlan
from nac_drive.training.trainer import Trainer, build_learner
from tests.data_collection.recordings import contents
from tests.nac_drive.small import FRAMES, TINY, nested, rows, score_of_weights
from tests.nac_drive.small import dagger_config as config
from tests.nac_drive.small import train_dagger as train
from tests.slow import slow_but

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def no_validation(monkeypatch):
    """No validation episodes: a score that depends on the weights stands in their place."""
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)


# Episodes and learning


def test_the_episodes_are_a_sound_dataset(straight):
    dataset = Demonstrations.open(straight / "dataset")
    assert [(row["index"], row["seed"], row["round"]) for row in dataset.rows] == [
        (0, 0, 0), (1, 1, 0), (2, 2, 1), (3, 3, 1), (4, 4, 2), (5, 5, 2)
    ]  # fmt: skip
    assert dataset.verify(replay=True) == []
    assert dataset.meta.driver == "controller"
    assert dataset.meta.env == EnvConfig(max_steps=FRAMES)
    assert dataset.info()["frames"] == 6 * FRAMES


def test_round_0_is_the_experts_episodes_under_noise(straight, tmp_path):
    plain = collect(
        tmp_path / "episodes", "controller", env=config().env, seeds=[0, 1], noise=NoiseConfig(0.15, 4.0), seed=0
    ).load()
    frames = Demonstrations.open(straight / "dataset").load([0, 1])
    for name in ("frames", "labels", "actions"):
        np.testing.assert_array_equal(getattr(frames, name), getattr(plain, name))


def test_a_round_is_driven_by_the_learner_of_the_round_before(tmp_path, no_validation):
    """A second route to the episodes and the agreement of round 1: a run that ends with round 0, and the one loop."""
    settings = config(rounds=1, initial_epochs=1, switch_interval=3)
    before = load_driver(train(replace(settings, rounds=0), tmp_path / "before"))
    train(settings, tmp_path / "run")
    agreed: list[bool] = []
    for track in (2, 3):
        learner, steps = settings.mixture.learner_frames(FRAMES, (0, track)), []
        mixture = MixturePolicy(Controller(), learner)
        rollout(
            make_env(settings.env), before, track, expert=mixture, execute=mixture.execute, subscribers=[steps.append]
        )
        frames = Demonstrations.open(tmp_path / "run" / "dataset").load([track])
        np.testing.assert_array_equal(frames.actions, [step.action for step in steps])
        np.testing.assert_array_equal(frames.labels, [step.expert_action for step in steps])
        agreed += [
            step.intended == step.expert_action for step in steps if learner[step.index] and not step.info["zooming"]
        ]
    first, second = rows(tmp_path / "run")
    assert "agreement" not in first
    assert second["agreement"] == pytest.approx(np.mean(agreed))
    assert first == rows(tmp_path / "before")[0]


def test_agreement_is_that_of_the_environments_own_steering(straight):
    """The second number of a label steers."""
    frames = Demonstrations.open(straight / "dataset").load([2, 3])
    steering = np.random.default_rng(0).uniform(-4, 4, len(frames.labels)).astype(np.float32)
    labels = np.stack([np.zeros_like(steering), steering], axis=1)
    frames = replace(frames, labels=labels, actions=labels + np.array([1.0, 0.3], np.float32))
    spec = replace(ENVIRONMENTS["car-racing"], parts=("gas", "steer"), part_ranges=((0, 1), (-4, 4)), steering_part=1)
    assert agreement(config(), 1, frames, spec) == {"agreement": 1.0}
    assert agreement(config(), 1, frames, replace(spec, part_ranges=((0, 1), (-2, 2)))) == {"agreement": 0.0}


def test_the_rate_falls_from_round_to_round(tmp_path, monkeypatch, no_validation):
    rates = []
    monkeypatch.setattr(Trainer, "set_rate", lambda trainer, rate: rates.append(rate))
    train(config("cnn", learning_rate=0.04, final_learning_rate=0.01, rounds=2, **TINY), tmp_path / "run")
    assert rates == pytest.approx([0.04, 0.02, 0.01])
    assert config(learning_rate=0.04, final_learning_rate=0.01, rounds=0).rate(0) == 0.04


def test_a_run_learns_at_its_rate(tmp_path, no_validation):
    """Rounds after the first move the weights only as far as their own rate lets them."""

    def last(name: str, **changed: Any) -> dict[str, torch.Tensor]:
        train(config("cnn", ema_decay=0.0, **TINY, **changed), tmp_path / name)
        checkpoint = checkpoint_folder(tmp_path / name, "last")
        assert checkpoint is not None
        return load_file(checkpoint / "model.safetensors")

    before = last("before", rounds=0)
    after = (last("still", rounds=1, final_learning_rate=1e-12), last("moved", rounds=1, final_learning_rate=1e-2))
    still, moved = (max(float((w[name] - before[name]).abs().max()) for name in w) for w in after)
    assert still < 1e-6 < 1e-3 < moved


def test_rows_and_the_best_checkpoint(straight):
    metrics = rows(straight)
    assert [row["step"] for row in metrics] == [0, 1, 2]
    assert [row["frames"] for row in metrics] == [2 * FRAMES, 4 * FRAMES, 6 * FRAMES]
    dataset = Demonstrations.open(straight / "dataset")
    for row in metrics:
        returns = [episode["return"] for episode in dataset.rows if episode["round"] == row["step"]]
        assert (row["episodes"], row["episodes_return_mean"]) == (2, pytest.approx(np.mean(returns)))
    assert all(0 <= row["accuracy"] <= 1 and row["loss"] > 0 and len(row["returns"]) == 1 for row in metrics)
    winner = max(metrics, key=lambda row: row["score"])
    driver = load_driver(straight / "checkpoints" / "best")
    assert driver.meta["round"] == winner["step"]
    assert EnvConfig(**driver.env_config) == config().env
    evaluation = evaluate(driver, [800_000], env=config().env)
    assert [row.episode_return for row in evaluation.rows] == winner["returns"]


def test_every_episode_is_decoded_once(tmp_path, monkeypatch, no_validation):
    decoded: list[list[int]] = []
    load = Demonstrations.load
    monkeypatch.setattr(
        Demonstrations, "load", lambda self, seeds=None: (decoded.append(list(seeds or [])), load(self, seeds))[1]
    )
    train(config("cnn", sequence_length=1, max_steps=4), tmp_path / "run")
    assert decoded == [[0, 1], [2, 3], [4, 5]]


LOST_FRAMES = {"perturb": "frame-drop:2:zero+gap:1"}


@pytest.mark.parametrize(
    "changed",
    slow_but([LOST_FRAMES], [{"control": "continuous"}, {"mask_bar": True}, LOST_FRAMES]),
)
def test_other_environments(changed, tmp_path, no_validation):
    settings = config("cfc", rounds=1, max_steps=20, **changed)
    best = train(settings, tmp_path / "run")
    dataset = Demonstrations.open(tmp_path / "run" / "dataset")
    assert dataset.meta.env == settings.env == EnvConfig(**load_driver(best).env_config)
    assert dataset.load().frames[:, 84:].any() != settings.data.mask_bar
    assert bool((~dataset.load().frames.any(axis=(1, 2, 3))).any()) == (settings.perturb is not None)
    assert dataset.verify(replay=True) == []


# Refusals


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rounds": -1}, "rounds must be at least 0"),
        ({"initial_episodes": 0}, "initial_episodes must be at least 1"),
        ({"episodes": 0}, "episodes must be at least 1"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"initial_epochs": 0}, "initial_epochs must be at least 1"),
        ({"sequence_length": FRAMES + 1}, rf"sequence_length must not exceed max_steps \({FRAMES} frames\)"),
        ({"beta": 1.5}, r"beta must lie in \[0, 1\], got 1.5"),
        ({"switch_interval": 0}, "switch_interval must be at least 1, got 0"),
        ({"noise": 1.0}, r"noise probability must lie in \[0, 1\), got 1.0"),
        ({"noise_hold": 0.0}, "noise hold must be at least 1 frame"),
        ({"first_track": 99_995}, "must name tracks 0 to 99999, got 99995 to 100000"),
        ({"first_track": -1}, "first_track must be at least 0, got -1"),
        ({"training_tracks": "3,900000"}, "training_tracks must be of the split train, 0 to 99999, got 900000"),
        ({"training_tracks": "3,4"}, "a track for each of the . episodes .*, got 2 tracks and first_track 0"),
        ({"training_tracks": "7,3,3"}, "every track once"),
        ({"control": "joystick"}, "control: must be one of"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"final_learning_rate": -1.0}, "final_learning_rate must be positive and finite, got -1"),
        ({"validation_tracks": "val-99"}, "has 25 tracks"),
    ],
)
def test_a_bad_setting_is_named(changed, message):
    with pytest.raises(ValueError, match=message):
        config(**changed).check()


def test_settings_that_cannot_be_trained_leave_no_folder(tmp_path):
    path = tmp_path / "blind"
    save_driver(path, Driver(DriverConfig(core="cnn")), env={"mask_bar": True, "max_steps": 60})
    for settings, keywords, message in (
        (config(rounds=-1), {}, "rounds must be at least 0"),
        (config(), {"expert": "typo"}, "typo"),
        (config(control="continuous"), {"expert": str(path)}, "made for discrete control"),
        (config("crystal-ball"), {}, "core 'crystal-ball' is unknown"),
        (config(core_args={"foo": 1}), {}, "unknown"),
        (config(curve_weight=1.0), {}, "curve_weight needs the steering"),
        (config(), {"device": "tpu"}, "device must be auto, cpu or cuda, got 'tpu'"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            train(settings, tmp_path / "run", **keywords)
        assert not (tmp_path / "run").exists()


def test_a_run_is_never_overwritten_nor_resumed_with_other_settings(straight):
    before = contents(straight)
    with pytest.raises(FileExistsError, match="--resume"):
        train(config(), straight)
    with pytest.raises(ValueError, match=r"beta: run has 0\.5, got 0\.9"):
        train(config(beta=0.9), straight, resume=True)
    with pytest.raises(ValueError, match=r"expert_sha256: run has 'c042.*', got 'f394"):
        train(config(), straight, resume=True, expert="expert")
    with pytest.raises(FileNotFoundError, match="not a run folder"):
        train(config(), straight / "typo", resume=True)
    assert contents(straight) == before


def test_named_tracks_are_driven_in_their_order_and_more_of_them_wait_for_more_rounds():
    named = config(initial_episodes=2, rounds=1, episodes=2, training_tracks="70,7,99999,0,5")
    named.check()
    assert [named.tasks(number) for number in range(2)] == [[(0, 70), (1, 7)], [(2, 99_999), (3, 0)]]


# Initial weights and the moving average


def test_a_learner_starts_from_the_weights_of_another(straight, tmp_path, no_validation):
    """With a learning rate next to nothing it stays as it was."""
    still = {"init_from": str(straight), "learning_rate": 1e-12, "rounds": 0}
    best = train(config(**still), tmp_path / "run")
    before, after = load_driver(straight / "checkpoints" / "best"), load_driver(best)
    for one, other in zip(before.parameters(), after.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-8)
    with pytest.warns(match=f"random weights.* {before.config.core} there, gru here; pass core"):
        other = load_driver(train(config("gru", residual=True, **still), tmp_path / "gru"))
    assert (other.config.core, other.config.residual, before.config.residual) == ("gru", True, False)
    for name, parameter in other.named_parameters():  # another core keeps its random weights
        if not name.startswith("core."):
            torch.testing.assert_close(parameter, before.get_parameter(name), rtol=0, atol=1e-8)
    message = r"same encoder and action head, got one of encoder 'pooled' \(here 'paper'\); pass the options"
    with pytest.raises(ValueError, match=message):
        train(config(encoder="paper", init_from=str(straight)), tmp_path / "other")
    with pytest.raises(ValueError, match="init_from must name a learned driver, got 'controller'"):
        train(config(init_from="controller"), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def learner_of(settings: DaggerConfig, env: EnvConfig) -> Driver:
    """The driver that a run begins with."""
    return build_learner(TrainingPlan.resolve(settings, env, device="cpu"))


def test_a_core_of_other_settings_keeps_its_random_weights(tmp_path):
    """Also where the weights would fit: two windows of one core."""
    settings, env = config("mha", core_args={"window": 4}), EnvConfig("discrete")
    source = learner_of(replace(settings, seed=5), env)
    path = str(save_driver(tmp_path / "source", source, env=asdict(env)))
    fresh = learner_of(nested(settings, core_args={"window": 8}), env)
    for window, origin in ((4, source), (8, fresh)):
        with pytest.warns(match="random weights.*'window': 4} there, {'window': 8}") if window == 8 else nullcontext():
            learner = learner_of(nested(settings, core_args={"window": window}, init_from=path), env)
        for name, parameter in learner.named_parameters():
            expected = origin if name.startswith("core.") else source
            assert torch.equal(parameter, expected.get_parameter(name)), (window, name)


def test_a_setting_that_is_spelled_out_is_the_same_as_its_default(tmp_path):
    settings, env = config("nac-exact", core_args={"num_heads": 4}), EnvConfig("discrete")
    source = learner_of(replace(settings, seed=5), env)
    path = str(save_driver(tmp_path / "source", source, env=asdict(env)))
    spelled = {"num_heads": 4, "window": 8, "time_unit": 0.02}
    learner = learner_of(nested(settings, core_args=spelled, init_from=path), env)
    for name, parameter in learner.named_parameters():
        assert torch.equal(parameter, source.get_parameter(name)), name


def test_the_moving_average_lags_behind_the_weights_and_drives(tmp_path, no_validation):
    folder = train(config(ema_decay=0.5, rounds=0), tmp_path / "run")
    learner = load_file(folder / "training_state" / "learner.safetensors")
    average = load_driver(folder).state_dict()
    assert any(not torch.equal(average[name], learner[name]) for name in average)
    steps = [1 - moving_average_decay(0.9, n) for n in (0, 10, 80, 1000)]
    assert steps == pytest.approx([0.9, 9 / 20, 0.1, 0.1])
