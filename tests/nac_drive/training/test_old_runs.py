"""Runs of version 0.1: their drivers load and drive, the runs themselves cannot be resumed."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from nac_drive.envs import EnvConfig
from nac_drive.policies import Driver, DriverConfig, load_driver, save_driver
from tests.data_collection.recordings import contents
from tests.nac_drive.small import config, dagger_config, rows, train, train_dagger, without_perturb

OLD_CONFIG = """\
core: cnn
core_args: {}
vision: paper
residual: false
dropout: 0.2
window: 16
batch_size: 2
learning_rate: 0.001
average: 0.0
class_weights: false
change_weight: 1.0
mirror: false
augment: []
frozen: ''
mask_bar: false
validation_tracks: '800000'
precision: auto
tensorboard: false
seed: 0
epochs: 3
validation_fraction: 0.34
validate_every: 1
dataset: laps
dataset_sha256: 0123
"""
"""config.yaml of a run of `nac-drive train` of version 0.1."""

OLD_NAMES = (("encoder.", "vision."), ("action_head.", "head."), (".kv.", ".entry."))


def old_driver(path: Path, driver: Driver) -> Path:
    """Save `driver` and give the settings and tensors the names of version 0.1."""
    save_driver(path, driver, env=asdict(EnvConfig()))
    file = path / "config.json"
    saved = json.loads(file.read_text())
    saved["driver"]["vision"] = saved["driver"].pop("encoder")
    arguments = saved["driver"]["core_args"]
    if "phi_activation" in arguments:
        arguments["gate"] = arguments.pop("phi_activation")
    file.write_text(json.dumps(saved))
    weights = load_file(path / "model.safetensors")
    for new, old in OLD_NAMES:
        weights = {name.replace(new, old): tensor for name, tensor in weights.items()}
    save_file(weights, path / "model.safetensors")
    return path


@pytest.mark.parametrize(
    ("core", "arguments"), [("cnn", {}), ("nac-exact", {"num_heads": 4, "phi_activation": "tanh", "window": 8})]
)
def test_the_driver_of_an_old_run_loads_and_drives_the_same(core, arguments, tmp_path):
    torch.manual_seed(0)
    driver = Driver(DriverConfig(core=core, core_args=arguments, encoder="paper", dropout=0.2)).eval()
    run = tmp_path / "run"
    folder = old_driver(run / "checkpoints" / "step_3", driver)
    (run / "checkpoints" / "best").symlink_to("step_3")
    (run / "config.yaml").write_text(OLD_CONFIG)
    assert any(name.startswith("vision.") for name in load_file(folder / "model.safetensors"))
    loaded = load_driver(run)
    assert loaded.config == driver.config
    for name, tensor in driver.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    states = driver.begin(), loaded.begin()
    for frame in np.random.default_rng(0).integers(256, size=(3, 96, 96, 3), dtype=np.uint8):
        actions, states = zip(
            *(d.act(frame, s, 0.02) for d, s in zip((driver, loaded), states, strict=True)), strict=True
        )
        assert actions[0] == actions[1]


def test_an_old_run_is_not_resumed_and_stays_as_it_is(dataset, trained, tmp_path):
    run = Path(shutil.copytree(trained, tmp_path / "run", symlinks=True))
    (run / "config.yaml").write_text(OLD_CONFIG)
    before = contents(run)
    message = (
        "was started by version 0.1 of nac-drive: its driver still loads and drives, but the run cannot be resumed"
    )
    for resumed in (
        lambda: train(config("cnn"), dataset, run, resume=True),
        lambda: train_dagger(dagger_config(), run, resume=True),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            resumed()
        assert "\n" not in str(caught.value)
    assert contents(run) == before


def test_a_run_of_before_perturb_was_a_setting_goes_on(dataset, trained, tmp_path):
    run = Path(shutil.copytree(trained, tmp_path / "run", symlinks=True))
    without_perturb(run)
    before = contents(run)
    train(config("cnn"), dataset, run, resume=True)
    assert contents(run) == before
    with pytest.raises(ValueError, match=r"\(perturb: run has None, got 'gap:1'\)"):
        train(config("cnn", perturb="gap:1"), dataset, run, resume=True)
    train(config("cnn", epochs=4), dataset, run, resume=True)
    assert [row["step"] for row in rows(run)] == [1, 2, 3, 4]


NEW = ("clockless", "dt_input", "zero_lost_frames")
"""Settings of drivers that are as new as the unit of time."""


def test_a_run_of_before_goes_on_in_seconds(dataset, tmp_path):
    settings = config("cfc", core_args={"time_unit": 1.0}, epochs=1)
    train(settings, dataset, tmp_path / "run")
    file = tmp_path / "run" / "config.yaml"
    lines = [line for line in file.read_text().splitlines() if not any(name in line for name in NEW)]
    text = "\n".join(lines).replace("  core_args:\n    time_unit: 1.0", "  core_args: {}")
    assert text.count("\n") == len(lines) - 2
    file.write_text(text)
    with pytest.raises(ValueError, match=r"core_args.time_unit: run has 1.0, got None"):
        train(config("cfc", epochs=2), dataset, tmp_path / "run", resume=True)
    train(config("cfc", core_args={"time_unit": 1.0}, epochs=2), dataset, tmp_path / "run", resume=True)
    assert [row["step"] for row in rows(tmp_path / "run")] == [1, 2]
