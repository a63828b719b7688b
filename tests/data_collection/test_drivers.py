"""Names and paths of drivers."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch

from nac_drive.data_collection.controller.controller import CONTINUOUS, CONTROLLERS, DISCRETE, Controller
from nac_drive.data_collection.drivers import driver_hash, driver_name, resolve_driver
from nac_drive.data_collection.trained_env import env_for, trained_env
from nac_drive.envs import Control, EnvConfig
from nac_drive.policies import PRETRAINED, Driver, DriverConfig, save_driver
from nac_drive.training.run_folder import RunFolder

CONTROLS = get_args(Control)


def make_driver(path: Path, control: Control = "discrete", seed: int = 0) -> Path:
    torch.manual_seed(seed)
    driver = Driver(DriverConfig(core="cnn", control=control))
    return save_driver(path, driver, env={"control": control, "mask_bar": True, "max_steps": 60})


@pytest.mark.parametrize("control", CONTROLS)
def test_a_driver_is_found_by_name_or_folder(tmp_path, control):
    env = EnvConfig(control)
    controller = resolve_driver("controller", env)
    assert isinstance(controller, Controller)
    assert controller.control == control
    driver = resolve_driver(str(make_driver(tmp_path / "driver", control)), env)
    assert isinstance(driver, Driver)
    assert not driver.training
    assert trained_env(controller) is None
    assert trained_env(driver) == EnvConfig(control, mask_bar=True, max_steps=60)


@pytest.mark.parametrize("control", CONTROLS)
def test_every_controller_has_the_numbers_of_its_control(control):
    plain, steady, cautious = found = [resolve_driver(name, EnvConfig(control)) for name in CONTROLLERS]
    assert all(isinstance(one, Controller) and one.control == control for one in found)
    assert isinstance(plain, Controller)
    assert isinstance(steady, Controller)
    assert isinstance(cautious, Controller)
    assert plain.config == (CONTINUOUS if control == "continuous" else DISCRETE) == Controller(control).config
    assert plain.config.blind_frames == 0
    factors = {"line_fraction": 0.9, "lateral_limit": 0.95, "braking_limit": 0.7}
    scaled = {name: factor * getattr(plain.config, name) for name, factor in factors.items()}
    assert steady.config == replace(plain.config, about_turn=0.8, **scaled)
    assert cautious.config == replace(plain.config, lateral_limit=0.75 * plain.config.lateral_limit, blind_frames=6)
    assert [resolve_driver(Path(name)).control for name in CONTROLLERS] == ["discrete"] * 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_the_expert_and_the_champion_are_those_of_the_control(control):
    env = EnvConfig(control)
    for name in ("expert", "champion"):
        driver, same = resolve_driver(name, env), resolve_driver(f"{name}-{control}", env)
        assert isinstance(driver, Driver)
        assert isinstance(same, Driver)
        assert driver.config.control == control
        assert driver.meta == same.meta
        assert driver_hash(name, env) == driver_hash(f"{name}-{control}", env)
        assert driver_hash(name, env) == driver_hash(str(PRETRAINED[f"{name}-{control}"]), env)


def test_a_run_stands_for_its_best_checkpoint(tmp_path):
    run, made = RunFolder.create(tmp_path / "run", {}), make_driver(tmp_path / "made")

    def write(folder: Path) -> None:
        shutil.copytree(made, folder)

    run.mark_best(run.checkpoint(1, write))
    run.checkpoint(2, lambda folder: folder.mkdir())
    assert isinstance(resolve_driver(str(tmp_path / "run")), Driver)


def test_a_driver_of_continuous_control_drives_by_pulses_too(tmp_path):
    pulsed, continuous = EnvConfig("pulsed"), EnvConfig("continuous")
    assert driver_hash("expert", pulsed) == driver_hash("expert", continuous) != driver_hash("expert", EnvConfig())
    path = make_driver(tmp_path / "driver", "continuous")
    assert resolve_driver(path, pulsed).config.control == "continuous"  # type: ignore[attr-defined]
    driver, discrete = (resolve_driver(folder) for folder in (path, make_driver(tmp_path / "discrete")))
    assert [env_for(driver, control).control for control in CONTROLS] == ["continuous", "continuous", "pulsed"]
    assert {env_for(discrete, control).control for control in CONTROLS} == {"discrete"}
    with pytest.raises(ValueError, match="made for discrete control"):
        resolve_driver(tmp_path / "discrete", pulsed)


def test_a_driver_of_another_control_is_refused_with_the_option_that_fits(tmp_path):
    path = make_driver(tmp_path / "driver", "continuous")
    with pytest.raises(ValueError, match=r"made for continuous control.*pass --control continuous or another driver"):
        resolve_driver(str(path), EnvConfig("discrete"))
    resolve_driver(str(path))  # its own control, where none is given


def test_missing_and_foreign_folders_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="typo"):
        resolve_driver(str(tmp_path / "typo"))
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("all my work")
    with pytest.raises(FileNotFoundError, match="thesis"):
        resolve_driver(str(tmp_path / "thesis"))
    (tmp_path / "thesis" / "config.json").write_text("[1]")
    (tmp_path / "thesis" / "model.safetensors").write_text("")
    with pytest.raises(ValueError, match=r"thesis/config.json"):
        resolve_driver(str(tmp_path / "thesis"))


def test_a_driver_has_the_name_of_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "best").symlink_to("step_5")
    names = {"expert": "expert", "controller": "controller", "runs/nac": "nac", "runs/nac/": "nac", "best": "best"}
    assert {spec: driver_name(spec) for spec in names} == names
    assert driver_name(".") == driver_name("sub/..") == tmp_path.name


def test_the_hash_is_of_what_decides_the_actions(tmp_path):
    discrete, continuous = EnvConfig(), EnvConfig("continuous")
    assert driver_hash("controller", discrete) == driver_hash("controller", EnvConfig(mask_bar=True))
    assert driver_hash("controller", discrete) != driver_hash("controller", continuous)
    one, same, other = (str(make_driver(tmp_path / str(i), seed=i // 2)) for i in (0, 1, 2))
    assert driver_hash(one, discrete) == driver_hash(same, discrete) != driver_hash(other, discrete)
    assert len(driver_hash(one, discrete)) == 64


def test_every_controller_has_a_hash_of_its_own():
    hashes = {driver_hash(name, EnvConfig(control)) for name in CONTROLLERS for control in CONTROLS}
    assert len(hashes) == 6


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("controler", "controller"), ("cautious-controler", "cautious-controller"), ("champoin", "champion")],
)
def test_a_mistyped_name_gets_a_hint(typo, meant):
    with pytest.raises(FileNotFoundError, match=f"Did you mean '{meant}'") as caught:
        resolve_driver(typo)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "env", [{"contrul": "discrete"}, {"control": "joystick"}, {"max_steps": "9"}, {"mask_bar": 3}, {"environment": [1]}]
)
def test_a_driver_of_an_environment_that_there_is_not_is_one_line(tmp_path, env):
    folder = make_driver(tmp_path / "driver")
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "env": env}))
    with pytest.raises(ValueError, match=r"env in the driver's config\.json is not an environment") as caught:
        resolve_driver(str(folder), EnvConfig())
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("; save the driver again.")
    assert ".;" not in str(caught.value)


def test_a_driver_of_an_environment_of_others_asks_for_its_module(tmp_path):
    """To save the driver again would not help."""
    folder = save_driver(tmp_path / "driver", Driver(DriverConfig(core="cnn")), env={"environment": "moon"})
    with pytest.raises(ValueError, match="environment 'moon' is unknown; choose from car-racing, "):
        resolve_driver(str(folder), EnvConfig())
