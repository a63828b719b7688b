"""The door of a training: drivers are loaded once, the folder is held, and config.yaml says what identifies a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from nac_drive.data_collection.drivers import driver_hash
from nac_drive.envs import EnvConfig
from nac_drive.policies import Driver, DriverConfig, save_driver
from nac_drive.storage.lock import FolderInUseError, locked
from nac_drive.training import plan as plan_module
from nac_drive.training.plan import TrainingPlan, open_run
from nac_drive.training.ppo.config import PPOConfig
from nac_drive.training.run_folder import RunFolder
from nac_drive.training.trainer import build_learner
from tests.data_collection.recordings import contents
from tests.nac_drive.small import config, nested

ENV = EnvConfig("continuous", max_steps=60)


def source(path: Path, core: str = "cnn") -> str:
    """A saved driver, with the encoder of `config`."""
    driver = Driver(DriverConfig(core=core, encoder="paper", control="continuous", dropout=0.2))
    return str(save_driver(path, driver, env=asdict(ENV)))


def test_control_and_frames_are_those_of_the_environment():
    env = EnvConfig("continuous", view="seat", size=(64, 48))
    plan = TrainingPlan.resolve(config("lstm"), env, device="cpu")
    assert (plan.config.driver.control, plan.config.driver.frame_shape) == ("continuous", (48, 64, 3))
    assert plan.resolved["driver"] == asdict(plan.config.driver)
    assert (plan.device, plan.encoder, plan.sources) == (torch.device("cpu"), None, {})


@pytest.mark.parametrize("kind", ["train", "ppo"])
def test_a_named_driver_is_loaded_and_hashed_once(tmp_path, monkeypatch, kind):
    names, loaders = {"init_from": source(tmp_path / "a")}, ["resolve_driver"]
    if kind == "train":
        names["freeze_encoder_from"] = source(tmp_path / "b")
        loaders.append("resolve_encoder")
    loaded: list[Any] = []
    for name in (*loaders, "driver_hash"):
        real = getattr(plan_module, name)
        monkeypatch.setattr(
            plan_module, name, lambda spec, env, name=name, real=real: loaded.append((name, spec)) or real(spec, env)
        )
    base: Any = config("cnn", encoder="paper") if kind == "train" else PPOConfig()
    facts = {"dataset": "demos"}
    plan = TrainingPlan.resolve(nested(base, **names), ENV, device="cpu", facts=facts, moved=("dataset",))
    if kind == "train":
        build_learner(plan)
        assert plan.encoder is not None
    hashed = [("driver_hash", spec) for spec in names.values()]
    assert sorted(loaded) == sorted([*zip(loaders, names.values(), strict=True), *hashed])
    hashes = {"init_from": "init_sha256", "freeze_encoder_from": "freeze_encoder_sha256"}
    for name, spec in names.items():
        assert plan.resolved[hashes[name]] == driver_hash(spec, ENV)
    assert plan.resolved["dataset"] == "demos"
    assert {"dataset", "optim.init_from"} <= set(plan.moved)


def test_a_run_is_held_while_it_is_open_and_goes_on_only_with_its_own_settings(tmp_path):
    folder = tmp_path / "run"
    plan = TrainingPlan.resolve(config("cnn", epochs=2), ENV, device="cpu", grown=("epochs",))
    with open_run(folder, plan, resume=False) as run:
        assert run.config["epochs"] == 2
        with pytest.raises(FolderInUseError), locked(folder):
            pytest.fail("two processes write to one run")
    before = contents(folder)
    with pytest.raises(FileExistsError), open_run(folder, plan, resume=False):
        pytest.fail("a run is overwritten")
    for changed, message in (({"seed": 1}, "seed: run has 0, got 1"), ({"epochs": 1}, "it may only grow")):
        other = TrainingPlan.resolve(config("cnn", **{"epochs": 2, **changed}), ENV, device="cpu", grown=("epochs",))
        with pytest.raises(ValueError, match=message), open_run(folder, other, resume=True):
            pytest.fail("a run goes on with other settings")
    assert contents(folder) == before
    longer = TrainingPlan.resolve(config("cnn", epochs=5), ENV, device="cpu", grown=("epochs",))
    with open_run(folder, longer, resume=True) as run:
        run.keep_config(longer.resolved)
    assert RunFolder.open(folder).config["epochs"] == 5


def test_another_process_finds_the_run_and_neither_makes_nor_locks_it(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_module, "is_main_process", lambda: False)
    plan = TrainingPlan.resolve(config("cnn"), ENV, device="cpu")
    with locked(tmp_path / "run"), open_run(tmp_path / "run", plan, resume=False) as run:
        assert run.path == tmp_path / "run"
    assert not (tmp_path / "run" / "config.yaml").exists()
