"""Drivers of two views teach each other and race.

They share no weights.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nac_drive as nd
from nac_drive.data_collection.dataset.frames import Frames
from nac_drive.data_collection.trained_env import env_for
from nac_drive.envs import EnvConfig, make_env, rollout
from nac_drive.policies import PRETRAINED, Driver, DriverConfig, save_driver
from nac_drive.training import trainer
from nac_drive.training.ppo import run as ppo_module
from nac_drive.training.ppo.config import PPOConfig
from tests.nac_drive.small import TINY, config, dagger_config, nested, score_of_weights

TRACK = 5
ENVS = {
    "above": EnvConfig("continuous", max_steps=53),
    "seat": EnvConfig("continuous", max_steps=53, view="seat", size=(64, 48)),
}
EITHER = pytest.mark.parametrize("view", ENVS)


def other(view: str) -> str:
    return "seat" if view == "above" else "above"


@pytest.fixture(scope="module")
def drivers(tmp_path_factory) -> dict[str, Path]:
    """View -> a driver, whose actions depend on what it sees."""
    folder, paths = tmp_path_factory.mktemp("drivers"), {}
    for view, env in ENVS.items():
        torch.manual_seed(3)
        settings = {"encoder": "paper", "d_model": 16, "dense": 8, "frame_shape": env.spec.frame_shape}
        network = Driver(DriverConfig("lstm", control="continuous", **settings))
        with torch.no_grad():
            network.action_head.out.weight.mul_(5)
        paths[view] = save_driver(folder / view, network, env=asdict(env))
    return paths


def own_labels(path: Path, frames: Frames) -> np.ndarray:
    """Return the actions of a driver in its own view, where `frames.actions` are executed."""
    driver: Any = nd.resolve_driver(path)
    actions, labels = iter(frames.actions), []
    rollout(
        make_env(env_for(driver)), driver, int(frames.seeds[0]), execute=lambda _: next(actions, frames.actions[-1]),
        subscribers=[lambda step: labels.append(step.intended)],
    )  # fmt: skip
    return np.stack(labels[: len(frames.labels)])


@EITHER
def test_an_expert_labels_by_its_own_view_what_a_recording_shows_in_the_other(view, drivers, tmp_path):
    env = replace(ENVS[view], max_steps=12)
    data = nd.collect(tmp_path / "data", drivers[other(view)], env=env, seeds=[TRACK], noise=nd.NoiseConfig(0.3, 4))
    frames = data.load()
    assert frames.frames.shape[1:] == env.spec.frame_shape
    np.testing.assert_array_equal(frames.labels, own_labels(drivers[other(view)], frames))
    assert len(np.unique(frames.labels[:, 0])) > 6  # they depend on the frames
    assert data.verify(replay=True) == []


@EITHER
def test_a_learner_of_dagger_has_the_labels_of_an_expert_that_sees_the_other_view(view, drivers, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    env = ENVS[view]
    settings = {**TINY, "max_steps": 12, "view": env.view, "size": env.size}
    run = dagger_config("cnn", control="continuous", rounds=1, beta=0.5, encoder="paper", **settings)
    nd.dagger(run, tmp_path / "run", expert=drivers[other(view)], device="cpu")
    data = nd.Demonstrations.open(tmp_path / "run" / "dataset")
    for track in (0, 1):
        frames = data.load([track])
        assert frames.frames.shape[1:] == env.spec.frame_shape
        np.testing.assert_array_equal(frames.labels, own_labels(drivers[other(view)], frames))
    assert env_for(nd.load_driver(tmp_path / "run")).view == view


@pytest.mark.parametrize("option", ["init_from", "freeze_encoder_from"])
@EITHER
def test_weights_of_the_other_view_are_refused_in_one_line(view, option, drivers, tmp_path):
    env, source = ENVS[view], str(drivers[other(view)])
    message = (
        rf"{option} '.*{other(view)}' was trained in the view '{other(view)}' of .* here it is '{view}' of .* pass"
    )
    nd.collect(tmp_path / "data", "controller", env=replace(env, max_steps=20), seeds=[0, 1, 2])
    changed: dict[str, Any] = {"encoder": "paper", option: source}
    with pytest.raises(ValueError, match=message) as error:
        nd.train(config("lstm", **changed), tmp_path / "data", tmp_path / "run", device="cpu")
    assert "\n" not in str(error.value)
    seen = {"view": env.view, "size": env.size}
    with pytest.raises(ValueError, match=message):
        nd.dagger(dagger_config("lstm", control="continuous", **seen, **changed), tmp_path / "run", expert="controller")
    if option == "init_from":
        with pytest.raises(ValueError, match=message):
            nd.ppo(nested(PPOConfig(), control="continuous", init_from=source, **seen), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_every_entry_of_a_comparison_drives_in_its_own_view(drivers, tmp_path):
    nd.collect(tmp_path / "data", "controller", env=ENVS["seat"], seeds=[0])
    paths = [drivers["above"], drivers["seat"]]
    comparison = nd.compare(paths, tmp_path / "data", [TRACK], tmp_path / "out", expert="controller")
    returns = {each.summary.driver: each.evaluation.rows[0] for each in comparison.drivers}
    for view, path in drivers.items():
        (alone,) = nd.evaluate(path, [TRACK]).rows
        assert returns[view].episode_return == alone.episode_return
        assert returns[view].steering_rate_rms == alone.steering_rate_rms
    assert "Every driver saw the view of its training" in (tmp_path / "out" / "report.html").read_text()


def test_a_shipped_driver_from_the_seat_goes_by_its_name(drivers, tmp_path, monkeypatch):
    monkeypatch.setitem(PRETRAINED, "champion-seat-continuous", drivers["seat"])
    episode = nd.watch("champion-seat", TRACK, video=tmp_path / "seat.mp4", view="both")
    (row,) = nd.evaluate(drivers["seat"], [TRACK]).rows
    assert episode.episode_return == row.episode_return
    assert env_for(nd.resolve_driver("champion-seat")) == ENVS["seat"]
    assert nd.resolve_driver("champion", ENVS["above"]).config.control == "continuous"  # type: ignore[attr-defined]


def test_ppo_learns_from_the_seat(tmp_path, monkeypatch):
    monkeypatch.setattr(ppo_module, "closed_loop", score_of_weights)
    tiny = nested(
        PPOConfig(), driver=DriverConfig("cnn", encoder="pooled", d_model=8, dense=8, control="continuous"),
        total_timesteps=64, n_envs=2, n_steps=16, action_repeat=1, sequence_length=8, value_warmup_steps=32,
        batch_size=16, n_epochs=1, validate_every=32, view="seat", size=(64, 48),
    )  # fmt: skip
    best = nd.load_driver(nd.ppo(tiny, tmp_path / "run"))
    assert best.config.frame_shape == (48, 64, 3)
    assert env_for(best).view == "seat"
