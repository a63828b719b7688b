"""The expert's network, its folder, and the words that name a driver."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from data_collection import expert as expert_module
from data_collection.controller import Controller
from data_collection.drivers import driver_hash, driver_name, resolve_driver, trained_env
from data_collection.expert import Expert, ExpertNetwork, load_expert, save_expert
from data_collection.run_folder import RunFolder
from envs import Control, EnvConfig, make_env, rollout
from policies import Driver, DriverConfig, save_driver
from tests.data_collection.recordings import contents

CONTROLS: tuple[Control, ...] = ("discrete", "continuous")


def frame(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(256, size=(96, 96, 3), dtype=np.uint8)


def make_expert(path: Path, control: Control = "discrete", seed: int = 0) -> Path:
    torch.manual_seed(seed)
    save_expert(path, ExpertNetwork(control), EnvConfig(control, max_steps=60), {"step": 5})
    return path


def make_driver(path: Path, control: Control = "discrete") -> Path:
    torch.manual_seed(0)
    driver = Driver(DriverConfig(core="cnn", control=control))
    return save_driver(path, driver, env={"control": control, "mask_bar": True, "max_steps": 60})


# The expert


@pytest.mark.parametrize("control", CONTROLS)
def test_an_expert_comes_back_from_its_folder(tmp_path, control):
    torch.manual_seed(1)
    network = ExpertNetwork(control)
    save_expert(tmp_path / "expert", network, EnvConfig(control), {"step": 5, "training": {"seed": 1}})
    expert = load_expert(tmp_path / "expert")
    assert expert.control == control
    assert expert.env_config == {"control": control, "mask_bar": False, "max_steps": 1000, "renderer": "gymnasium"}
    assert expert.meta == {"step": 5, "training": {"seed": 1}}
    saved, loaded = network.state_dict(), expert.network.state_dict()
    assert all(torch.equal(saved[name], loaded[name]) for name in saved | loaded)


@pytest.mark.parametrize("control", CONTROLS)
def test_it_acts_by_the_best_output_inside_the_action_space(control):
    torch.manual_seed(2)
    network = ExpertNetwork(control)
    network.action.weight.data *= 50.0  # outputs beyond the space
    expert, space = Expert(network, EnvConfig(control), {}), make_env(EnvConfig(control)).action_space
    actions = []
    for seed in range(8):
        pixels = torch.tensor(frame(seed) / 255.0, dtype=torch.float32)
        expected = network(pixels.permute(2, 0, 1)[None])[0].detach().numpy()
        action, state = expert.act(frame(seed), expert.begin(make_env()), 0.02)
        assert state is None
        assert space.contains(action)
        if control == "discrete":
            assert action == expected.argmax()
        else:
            np.testing.assert_allclose(action, expected.clip([-1, 0, 0], [1, 1, 1]), atol=1e-4)
        actions.append(np.array(action).tolist())
    assert any(action != actions[0] for action in actions) or control == "discrete"


def test_it_takes_views_and_drives_the_same_lap_twice(tmp_path):
    expert = load_expert(make_expert(tmp_path / "expert"))
    mirrored = frame()[:, ::-1]
    assert expert.act(mirrored, None, 0.02) == expert.act(np.ascontiguousarray(mirrored), None, 0.02)
    env = make_env(EnvConfig(max_steps=10))
    assert rollout(env, expert, 3) == rollout(env, expert, 3)


def damage(path: Path, kind: str) -> None:
    config, weights = path / "config.json", path / "model.safetensors"
    document = json.loads(config.read_text())
    if kind == "truncated":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif kind == "garbage":
        weights.write_bytes(b"x" * 1000)
    elif kind == "not json":
        config.write_text("{")
    elif kind == "a list":
        config.write_text("[]")
    elif kind == "other schema":
        config.write_text(json.dumps(document | {"schema": 7}))
    elif kind == "other env":
        config.write_text(json.dumps(document | {"env": {"id": "Pong"}}))
    elif kind == "other control":
        config.write_text(json.dumps(document | {"env": {"control": "continuous"}}))
    else:
        (path / kind).unlink()


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("config.json", FileNotFoundError),
        ("model.safetensors", FileNotFoundError),
        *(
            (kind, ValueError)
            for kind in ("truncated", "garbage", "not json", "a list", "other schema", "other env", "other control")
        ),
    ],
)
def test_a_damaged_or_foreign_expert_is_named(tmp_path, kind, error):
    path = make_expert(tmp_path / "expert")
    damage(path, kind)
    before = contents(path)
    with pytest.raises(error, match=str(path)) as caught:
        load_expert(path)
    if error is FileNotFoundError:
        assert f"{kind} is missing" in str(caught.value)
    assert contents(path) == before


def test_where_no_expert_is_shipped_the_way_to_one_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(expert_module, "SHIPPED", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"'continuous' \(there is one for: none\).*--control continuous"):
        load_expert(None, "continuous")
    make_expert(tmp_path / "discrete")
    assert load_expert().control == "discrete"
    with pytest.raises(FileNotFoundError, match="there is one for: discrete"):
        load_expert(None, "continuous")


# Drivers by name


@pytest.mark.parametrize("control", CONTROLS)
def test_a_driver_is_named_by_a_word_or_a_folder(tmp_path, control):
    env = EnvConfig(control)
    controller = resolve_driver("controller", env)
    assert isinstance(controller, Controller)
    assert controller.control == control
    expert = resolve_driver(str(make_expert(tmp_path / "expert", control)), env)
    assert isinstance(expert, Expert)
    driver = resolve_driver(str(make_driver(tmp_path / "driver", control)), env)
    assert isinstance(driver, Driver)
    assert not driver.training
    assert trained_env(controller) is None
    assert trained_env(expert) == EnvConfig(control, max_steps=60)
    assert trained_env(driver) == EnvConfig(control, mask_bar=True, max_steps=60)


@pytest.mark.parametrize(("make", "kind"), [(make_expert, Expert), (make_driver, Driver)])
def test_a_run_stands_for_its_best_checkpoint(tmp_path, make, kind):
    run, made = RunFolder.create(tmp_path / "run", {}), make(tmp_path / "made")

    def write(folder: Path) -> None:
        shutil.copytree(made, folder)

    run.mark_best(run.checkpoint(1, write))
    run.checkpoint(2, lambda folder: folder.mkdir())
    assert isinstance(resolve_driver(str(tmp_path / "run")), kind)


@pytest.mark.parametrize("make", [make_expert, make_driver])
def test_a_driver_of_another_control_is_refused_with_the_option_that_fits(tmp_path, make):
    path = make(tmp_path / "driver", "continuous")
    with pytest.raises(ValueError, match=r"made for continuous control.*pass --control continuous or another driver"):
        resolve_driver(str(path), EnvConfig("discrete"))
    resolve_driver(str(path))  # its own control, where none is asked for


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


def test_a_driver_is_called_by_its_word_or_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "best").symlink_to("step_5")
    names = {"expert": "expert", "controller": "controller", "runs/nac": "nac", "runs/nac/": "nac", "best": "best"}
    assert {spec: driver_name(spec) for spec in names} == names
    assert driver_name(".") == driver_name("sub/..") == tmp_path.name


def test_the_hash_is_of_what_decides_the_actions(tmp_path):
    discrete, continuous = EnvConfig(), EnvConfig("continuous")
    assert driver_hash("controller", discrete) == driver_hash("controller", EnvConfig(mask_bar=True))
    assert driver_hash("controller", discrete) != driver_hash("controller", continuous)
    one, same, other = (str(make_expert(tmp_path / str(i), seed=i // 2)) for i in (0, 1, 2))
    assert driver_hash(one, discrete) == driver_hash(same, discrete) != driver_hash(other, discrete)
    assert len(driver_hash(one, discrete)) == 64
