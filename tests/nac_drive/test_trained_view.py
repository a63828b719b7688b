"""A driver sees the status bar as in its training, whether it drives, labels the frames of others, or is compared."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nac_drive as nd
from nac_drive.data_collection.dataset.frames import Frames
from nac_drive.envs import EnvConfig, make_env, rollout
from nac_drive.experiments.entrants import Entrants
from nac_drive.experiments.evaluation import evaluate_with_baseline
from nac_drive.policies import Driver, DriverConfig, save_driver
from nac_drive.training import trainer
from tests.nac_drive.small import TINY, dagger_config, score_of_weights
from tests.slow import slow_but

TRACK = 5
CLEAN = EnvConfig("continuous", max_steps=53)
"""Three frames after the zoom: only those count for the agreement."""
BOTH_WAYS = pytest.mark.parametrize("masked", [False, True])


@pytest.fixture(scope="module", autouse=True)
def _short_zoom() -> None:
    """The zoom ends where the actions depend on the bar."""


@pytest.fixture(scope="module")
def drivers(tmp_path_factory) -> dict[bool, Path]:
    """Whether the bar was masked in training -> a driver, whose actions depend on the bar."""
    torch.manual_seed(3)
    network = Driver(DriverConfig("lstm", d_model=16, dense=8, control="continuous", encoder="pooled"))
    with torch.no_grad():
        network.action_head.out.weight.mul_(5)
    folder = tmp_path_factory.mktemp("views")
    paths = {masked: folder / f"masked-{masked}" for masked in (False, True)}
    for masked, path in paths.items():
        save_driver(path, network, env=asdict(replace(CLEAN, mask_bar=masked)))
    return paths


def labels_of(path: Path, frames: Frames) -> np.ndarray:
    """Return the actions of a driver in the environment of its training, where `frames.actions` are executed."""
    driver: Any = nd.resolve_driver(path)
    actions, labels = iter(frames.actions), []
    env = make_env(EnvConfig(**driver.env_config))
    rollout(
        env, driver, int(frames.seeds[0]), execute=lambda _: next(actions, frames.actions[-1]),
        subscribers=[lambda step: labels.append(step.intended)],
    )  # fmt: skip
    return np.stack(labels[: len(frames.labels)])


@BOTH_WAYS
def test_a_driver_agrees_with_itself(masked, drivers):
    evaluation = nd.evaluate(drivers[masked], [TRACK], expert=drivers[masked])
    assert evaluation.summary.agreement == 1.0
    other = nd.evaluate(drivers[masked], [TRACK], expert=drivers[not masked])
    assert other.summary.agreement == 0.0  # the bar makes a difference


def test_a_baseline_agrees_with_its_equal(drivers, tmp_path):
    """The two have the same weights and different names, since no driver is a baseline of itself."""
    loaded: Any = nd.resolve_driver(drivers[True])
    equal = save_driver(tmp_path / "equal", loaded, meta={"note": "another one"})
    baseline, driver = evaluate_with_baseline(drivers[True], [TRACK], baseline=equal)
    assert driver.summary.agreement == 1.0
    assert driver.rows[0].episode_return == baseline.rows[0].episode_return


@BOTH_WAYS
@pytest.mark.parametrize("recorded_masked", [False, True])
@pytest.mark.parametrize(
    "perturb", slow_but(["gap:1,blackouts:3"], [None, "frame-drop:3:hold+shadows:3", "gap:1,blackouts:3"])
)
def test_the_labels_of_a_recording_are_its_own(masked, recorded_masked, perturb, drivers, tmp_path):
    env = replace(CLEAN, mask_bar=recorded_masked, perturb=perturb, max_steps=12)
    data = nd.collect(tmp_path / "data", drivers[masked], env=env, seeds=[TRACK], noise=nd.NoiseConfig(0.3, 4))
    frames = data.load()
    np.testing.assert_array_equal(frames.labels, labels_of(drivers[masked], frames))
    assert frames.frames[:, 84:].any() != recorded_masked
    assert data.verify(replay=True) == []


@BOTH_WAYS
def test_the_labels_of_dagger_are_the_experts_own(masked, drivers, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "closed_loop", score_of_weights)
    settings = {**TINY, "max_steps": 12}
    config = dagger_config("cnn", control="continuous", rounds=1, mask_bar=not masked, beta=0.5, **settings)
    nd.dagger(config, tmp_path / "run", expert=drivers[masked], device="cpu")
    data = nd.Demonstrations.open(tmp_path / "run" / "dataset")
    for track in (0, 1):
        frames = data.load([track])
        np.testing.assert_array_equal(frames.labels, labels_of(drivers[masked], frames))
        assert frames.frames[:, 84:].any() == masked


@BOTH_WAYS
def test_the_expert_of_a_comparison_drives_as_alone(masked, drivers, tmp_path):
    env = replace(CLEAN, mask_bar=not masked)
    nd.collect(tmp_path / "data", "controller", env=env, seeds=[TRACK])
    dataset, config = nd.Demonstrations.open(tmp_path / "data"), nd.TrainConfig()
    entrants = Entrants(dataset, config, {"lstm": config}, expert=str(drivers[masked]))
    expert, run = entrants.driving((TRACK,), "ignore", "cpu").entries
    assert expert.env == replace(env, mask_bar=masked)
    assert run.env == env
    (alone,) = nd.evaluate(drivers[masked], [TRACK], env=replace(env, mask_bar=masked)).rows
    (row,) = nd.evaluate(drivers[masked], [TRACK], env=expert.env, expert=run.expert).rows
    assert row.steering_rate_rms == alone.steering_rate_rms
    assert row.agreement == 1.0
