"""Driver folders: round trips, interruption, and every way a folder can be bad."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from nac_drive.policies import (
    CORES,
    PRETRAINED,
    CheckpointError,
    Driver,
    DriverConfig,
    checkpoint,
    load_driver,
    save_driver,
)
from nac_drive.policies.core_check import register_core
from tests.own_parts import forgotten
from tests.policies.kinds import FIRST_OF_CLASS
from tests.slow import slow_but

SHAPE = (32, 32, 3)
ENV, META = {"id": "toy", "size": 3}, {"epoch": 4, "score": 812.5}


def make(core: str = "nac-exact", seed: int = 0) -> Driver:
    torch.manual_seed(seed)
    args = {"num_heads": 4, "window": 3} if core.startswith("nac") else {}
    return Driver(DriverConfig(core=core, core_args=args, d_model=8, dense=8, frame_shape=SHAPE))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_driver(tmp_path / "driver", make(), env=ENV, meta=META)


def edit(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    for key, value in changes.items():
        part, _, name = key.partition("__")
        if name:
            config[part][name] = value
        else:
            config[part] = value
    file.write_text(json.dumps(config))


@pytest.mark.parametrize("core", slow_but(FIRST_OF_CLASS, CORES))
def test_a_driver_comes_back_bit_for_bit(core: str, tmp_path: Path) -> None:
    driver = make(core).eval()
    folder = save_driver(tmp_path / "a" / "driver", driver, env=ENV, meta=META)
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert [p.name for p in folder.parent.iterdir()] == ["driver"]
    loaded = load_driver(folder)
    assert loaded.config == driver.config
    assert (loaded.env_config, loaded.meta) == (ENV, META)
    assert not loaded.training
    frames, dt = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 4, *SHAPE), np.uint8)), torch.ones(2, 4)
    with torch.no_grad():
        assert torch.equal(loaded(frames, dt)[0], driver(frames, dt)[0])


def test_a_folder_of_drivers_names_them(tmp_path: Path) -> None:
    """Such as the folder of a comparison."""
    for name in ("b-1", "b-0"):
        save_driver(tmp_path / name, make("cnn"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no config.json;.* Drivers in it are b-0, b-1; pass \S*b-0\.$"):
        load_driver(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"it is not a complete driver folder\.$"):
        load_driver(tmp_path / "empty")


def test_the_wiring_travels_with_the_weights(saved: Path) -> None:
    """Another numpy may draw other masks from the same seed: those on disk count."""
    weights = load_file(saved / "model.safetensors")
    name = "core.nac.backbone.in_mask"
    weights[name] = ~weights[name]
    save_file(weights, saved / "model.safetensors")
    assert torch.equal(load_driver(saved).core.nac.backbone.in_mask, weights[name])  # type: ignore[union-attr]


def test_loading_leaves_the_random_generator_alone(saved: Path) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    load_driver(saved)
    assert torch.equal(torch.get_rng_state(), before)


def test_saving_again_replaces_the_driver_and_keeps_its_card(saved: Path) -> None:
    (saved / "README.md").write_text("mine")
    save_driver(saved, make("lstm"), env={}, meta={"epoch": 5})
    loaded = load_driver(saved)
    assert loaded.config.core == "lstm"
    assert loaded.meta == {"epoch": 5}
    assert loaded.env_config == {}
    assert [p.name for p in saved.parent.iterdir()] == ["driver"]
    assert (saved / "README.md").read_text() == "mine"


@pytest.mark.parametrize("moment", ["save_file", "rename"])
def test_an_interrupted_save_leaves_the_old_driver(saved: Path, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fail(*arguments: object) -> None:
        calls.append(arguments)
        if moment == "save_file" or len(calls) == 2:  # the second rename puts the new folder in place
            raise OSError("disk full")
        rename(*arguments)  # type: ignore[arg-type]

    rename = checkpoint.os.rename
    owner = checkpoint if moment == "save_file" else checkpoint.os
    with monkeypatch.context() as patch:
        patch.setattr(owner, moment, lambda *a: rename(*a) if len(calls) >= 2 else fail(*a))
        with pytest.raises(OSError, match="disk full"):
            save_driver(saved, make("lstm"), env={}, meta={})
    assert load_driver(saved).meta == META
    assert [p.name for p in saved.parent.iterdir()] == ["driver"]


def test_tied_weights_are_saved(tmp_path: Path) -> None:
    """Tied weights trained, and could not be saved."""

    class Tied(nn.Module):
        def __init__(self, input_size: int, output_size: int) -> None:
            super().__init__()
            self.first = nn.Linear(input_size, output_size)
            self.second = self.first

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.tanh(self.first(x)))

    with forgotten():
        register_core("tied", Tied, input_size=8, output_size=8)
        driver = Driver(DriverConfig("tied", d_model=8, dense=8))
        weights = load_driver(save_driver(tmp_path / "tied", driver)).state_dict()
    assert len([name for name in weights if name.endswith(("first.weight", "second.weight"))]) == 2
    assert all(torch.equal(weights[name], tensor) for name, tensor in driver.state_dict().items())


def test_a_foreign_folder_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="exists and is not a driver folder"):
        save_driver(tmp_path, make(), env={}, meta={})
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.parametrize("env", [{"x": object()}, {"x": float("nan")}, {"x": np.zeros(2)}])
def test_what_json_cannot_hold_is_refused_before_writing(env: dict, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be JSON-able"):
        save_driver(tmp_path / "driver", make(), env=env, meta={})
    assert not list(tmp_path.iterdir())


def test_missing_folders_and_files(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        load_driver(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"config\.json is a file; pass the folder of a driver or run"):
        load_driver(saved / "config.json")
    (saved / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no model\.safetensors"):
        load_driver(saved)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "schema must be 1, got 2"),
        ({"extra": 1}, "not a driver's config"),
        ({"env": []}, "not a driver's config"),
        ({"driver__core": "crystal-ball"}, "core 'crystal-ball' is unknown"),
        ({"driver__core": ["lstm"]}, "no driver can be built"),
        ({"driver__layers": 3}, r"unknown \['layers'\], missing \[\]"),
        ({"driver__core_args": {"layers": 3}}, r"core_args: unknown \['layers'\]"),
        ({"driver__d_model": 0}, "d_model: must be at least 1"),
        ({"driver__d_model": "8"}, "no driver can be built"),
        ({"driver__frame_shape": 96}, "no driver can be built"),
        ({"driver__d_model": 16}, r"does not match config\.json at .*expected .*got "),
        (
            {"driver__core": "lstm", "driver__core_args": {}},
            r"does not match config\.json at 'core\.cell.*no such tensor",
        ),
        (
            {"driver__control": "continuous"},
            r"at 'action_head\.out\.bias': expected torch\.float32 \(3,\), got .*\(5,\)",
        ),
    ],
)
def test_a_config_that_does_not_fit_is_refused(saved: Path, changes: dict, message: str) -> None:
    edit(saved, **changes)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_driver(saved)
    assert "\n" not in str(caught.value)
    assert str(saved) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '"driver"', '{"hidden": 64}', "\x00\xff"])
def test_foreign_json_is_refused(saved: Path, text: str) -> None:
    (saved / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_driver(saved)


def test_damaged_weights_are_refused(saved: Path) -> None:
    file = saved / "model.safetensors"
    whole = file.read_bytes()
    for content in (b"", whole[:5], whole[:200], whole[:-10], whole + b"xx"):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"model\.safetensors: damaged or not a safetensors file"):
            load_driver(saved)


def test_a_pickle_is_never_opened(saved: Path, tmp_path: Path) -> None:
    trap = tmp_path / "sprung"

    class Trap:
        def __reduce__(self) -> tuple:
            return Path.touch, (trap,)

    for name in ("model.safetensors", "config.json"):
        (saved / name).write_bytes(pickle.dumps(Trap()))
        with pytest.raises(CheckpointError):
            load_driver(saved)
    assert not trap.exists()


# --- what comes with the package --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRETRAINED)
def test_a_shipped_driver_loads_by_name_and_has_a_card(name: str) -> None:
    driver = load_driver(name)
    assert not driver.training
    parameters = sum(parameter.numel() for parameter in driver.parameters())
    larger = {"robust": 150_000, "chroma": 150_000, "champion-seat": 150_000, "ppo": 225_000}
    assert parameters <= next((limit for start, limit in larger.items() if name.startswith(start)), 100_000)
    card = (PRETRAINED[name] / "README.md").read_text()
    assert f"{parameters:,} parameters" in card
    assert set(driver.env_config) - {"view", "size"} == {"control", "mask_bar", "max_steps"}
    assert "plugins" not in driver.meta  # nobody else has them


def test_a_name_that_nothing_is_shipped_under_is_refused() -> None:
    message = r"no folder champoin .* pass one of champion, champion-continuous, .* Did you mean 'champion'\?"
    with pytest.raises(FileNotFoundError, match=message):
        load_driver("champoin")


def test_a_core_is_no_driver_and_the_error_says_how_it_becomes_one() -> None:
    with pytest.raises(
        FileNotFoundError, match=r"run\. lstm is a core: nac-drive train DATASET --core lstm --out FOLDER"
    ):
        load_driver("lstm")


@pytest.mark.parametrize("name", ["ncp", "robust-champion"])
def test_a_driver_that_is_shipped_for_other_controls_says_which(name: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        load_driver(name, "discrete")
    assert str(caught.value) == (
        f"driver: the package ships {name!r} for continuous and pulsed control, not for discrete; "
        "pass --control continuous or --control pulsed."
    )
    assert load_driver(name, "pulsed").config.control in ("continuous", "pulsed")


def test_a_shipped_driver_goes_by_its_name_and_control() -> None:
    for control in ("discrete", "continuous"):
        short, full = load_driver("champion", control), load_driver(f"champion-{control}")
        assert short.config == full.config
        assert short.config.control == control
        assert all(torch.equal(a, b) for a, b in zip(short.parameters(), full.parameters(), strict=True))
    assert load_driver("champion").config.control == "discrete"
