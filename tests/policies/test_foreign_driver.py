"""Driver folders that anybody may have written: one line, and no more memory than the file of weights can fill."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nac_drive.policies import CORES, CheckpointError, Driver, DriverConfig, load_driver, save_driver
from nac_drive.policies.cores import registry
from nac_drive.policies.ops import size_limit
from nac_drive.policies.tensors import read_tensors

MANY = 10**9


def small(core: str, **arguments: Any) -> Driver:
    torch.manual_seed(0)
    arguments = {"num_heads": 4, **arguments} if core.startswith("nac") else arguments
    return Driver(DriverConfig(core=core, core_args=arguments, d_model=8, dense=8, frame_shape=(32, 32, 3)))


def refused(folder: Path) -> str:
    """The one line of the refusal."""
    with pytest.raises(CheckpointError) as caught:
        load_driver(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


def change(folder: Path, **driver: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["driver"]["core_args"] |= driver.pop("core_args", {})
    config["driver"] |= driver
    file.write_text(json.dumps(config))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(value: float, tmp_path: Path) -> None:
    folder = save_driver(tmp_path / "driver", small("lstm"))
    weights = load_file(folder / "model.safetensors")
    weights["core.cell.bias_hh_l0"][3] = value
    save_file(weights, folder / "model.safetensors")
    assert "'core.cell.bias_hh_l0' holds NaN or infinite numbers" in refused(folder)


SETTINGS = [
    ("nac-exact", {"settle_steps": MANY}), ("nac-exact", {"window": MANY}), ("nac-exact", {"num_heads": MANY}),
    ("nac-euler", {"euler_steps": MANY}), ("nac-exact", {"delta_t": float(MANY)}), ("nac-exact", {"seed": -1}),
    ("nac-exact", {"top_k": 1.5}), ("nac-exact", {"top_k": True}), ("nac-exact", {"backbone": {"sensory": MANY}}),
    ("nac-exact", {"backbone": [1]}), ("nac-exact", {"output": 3}), ("ltc", {"unfolds": MANY}),
    ("cfc", {"backbone_units": MANY}), ("cfc", {"backbone_units": 65_536}), ("cfc-ncp", {"units": 60_000}),
    ("ncp", {"inter": MANY}), ("ncp", {"inter": 128, "command": 128, "motor": 128}),
    ("ncp-random", {"inter": 128, "command": 128, "motor": 128, "sparsity": 0.999}),
    ("circuitnet-l", {"units": 64, "neurons": 4096}), ("circuitnet-lp", {"neurons": 4096}), ("mha", {"window": MANY}),
    ("performer", {"num_features": 65_536}), ("s4d", {"state_size": 65_536}), ("mtan", {"time_size": 65_536}),
    ("deepstate", {"rnn_size": 65_536}), ("ct-gru", {"num_scales": MANY}), ("cta", {"ode_steps": MANY}),
    ("lds", {"margin": 1e308}), ("phased-lstm", {"leak": "much"}), ("lstm-sparse", {"sparsity": None}),
]  # fmt: skip


@pytest.mark.parametrize(("core", "arguments"), SETTINGS)
def test_settings_of_a_core_that_ask_for_too_much_are_refused(core: str, arguments: dict, tmp_path: Path) -> None:
    folder = save_driver(tmp_path / "driver", small(core))
    change(folder, core_args=arguments)
    refused_with_little_memory(folder)


@pytest.mark.parametrize(
    "driver",
    [
        {"d_model": MANY}, {"d_model": 65_536}, {"dense": MANY}, {"dense": 65_536}, {"num_actions": 65_536},
        {"frame_shape": [4096, 4096, 3]}, {"frame_shape": [MANY, 96, 3]}, {"frame_shape": [-96, 96, 3]},
        {"frame_shape": [96.0, 96, 3]}, {"dropout": "half"}, {"dropout": None}, {"residual": 1}, {"d_model": True},
        {"core_args": {}, "core": None}, {"encoder": ["paper"]}, {"control": {}},
    ],
)  # fmt: skip
@pytest.mark.parametrize("core", ["cnn", "nac-exact", "lstm-sparse", "ncp-random", "ltc"])
def test_sizes_of_a_driver_that_do_not_fit_its_weights_are_refused(core: str, driver: dict, tmp_path: Path) -> None:
    folder = save_driver(tmp_path / "driver", small(core))
    change(folder, **driver)
    refused_with_little_memory(folder)


def refused_with_little_memory(folder: Path) -> None:
    """Counts the tensors and masks that are made, and the memory of numpy and Python."""
    limit = size_limit._Limit
    made: list[int] = []

    class Counted(limit):
        def take(self, count: int) -> None:
            super().take(count)
            made.append(count)

    size_limit._Limit = Counted
    tracemalloc.start()
    try:
        refused(folder)
        assert tracemalloc.get_traced_memory()[1] < 30e6
    finally:
        tracemalloc.stop()
        size_limit._Limit = limit
    size = (folder / "model.safetensors").stat().st_size
    assert sum(made) <= 2**20 + 8 * size


@pytest.mark.parametrize("core", CORES)
def test_every_tensor_of_a_core_is_counted_and_a_saved_driver_stays_far_below_the_limit(core: str) -> None:
    made: list[int] = []
    limit = size_limit._Limit(2**40)
    limit.take = made.append  # type: ignore[method-assign]
    with limit:
        tensors = small(core).state_dict().values()
    in_weights = sum(tensor.numel() for tensor in tensors if tensor.dtype != torch.bool)
    in_masks = sum(tensor.numel() for tensor in tensors if tensor.dtype == torch.bool)
    assert sum(made) >= 0.8 * in_weights
    with size_limit.elements_of_at_most(2 * (in_masks + in_weights) + 2**15):
        small(core)
    with pytest.raises(ValueError, match="numbers, too many for these weights"), size_limit.elements_of_at_most(1000):
        small(core)


def test_every_setting_of_every_core_has_a_range() -> None:
    checked = {*registry.MOST, *registry._NUMBERS, *registry._FLAGS, *registry._WORDS, "backbone"}
    assert {name for core in CORES.values() for name in core.accepted} <= checked


def test_a_header_that_announces_too_much_is_refused(tmp_path: Path) -> None:
    folder = save_driver(tmp_path / "driver", small("cnn"))
    file = folder / "model.safetensors"
    file.write_bytes((2**40).to_bytes(8, "little") + file.read_bytes()[8:])
    assert "damaged or not a safetensors file (a header of" in refused(folder)


def test_a_tensor_of_an_older_name_beside_the_new_one_is_refused(tmp_path: Path) -> None:
    folder = save_driver(tmp_path / "driver", small("cnn"))
    file = folder / "model.safetensors"
    weights = load_file(file)
    save_file({**weights, "vision.norm.bias": weights["encoder.norm.bias"].clone()}, file)
    assert "'vision.norm.bias': expected no such tensor" in refused(folder)


def test_no_tensor_is_read_before_all_of_them_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"a": torch.zeros(3), "b": torch.zeros(2**20)}, tmp_path / "weights")
    monkeypatch.setattr(torch, "isfinite", None)  # is called on tensors that were read
    with pytest.raises(ValueError, match=r"does not match here at 'b': expected torch.float32 \(4,\), got .*1048576"):
        read_tensors(tmp_path / "weights", {"a": torch.zeros(3), "b": torch.zeros(4)}, "here")


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "text", [DEEP, '{"schema": 1, "driver": ' + DEEP, "null", "1e999", '{"schema": 1' * 9, "\ud800"]
)
def test_a_damaged_config_is_one_line(text: str, tmp_path: Path) -> None:
    folder = save_driver(tmp_path / "driver", small("cnn"))
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert "is not a driver's config" in refused(folder)


def test_flipped_bits_of_a_config_are_one_line_or_harmless(tmp_path: Path) -> None:
    folder = save_driver(tmp_path / "driver", small("nac-exact", window=3), env={"control": "discrete"}, meta={"a": 1})
    file = folder / "config.json"
    whole, rng = file.read_bytes(), random.Random(0)
    messages = []
    for bit in rng.sample(range(8 * len(whole)), 150):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        try:
            load_driver(folder)
        except CheckpointError as error:
            messages.append(str(error))
    assert len(messages) > 20
    assert not any("\n" in message for message in messages)


# --- what killed processes left ---------------------------------------------------------------------------------------


def test_leftovers_of_killed_saves_go_and_files_of_others_stay(tmp_path: Path) -> None:
    ours = [tmp_path / ".driver.4194305.tmp", tmp_path / ".driver.4194305.old"]  # beyond the largest process number
    for folder in ours:
        save_driver(folder, small("cnn"))
    theirs = [tmp_path / ".driver.mine.tmp", tmp_path / ".driver.4194306.tmp", tmp_path / ".other.4194305.tmp"]
    for folder in theirs:
        folder.mkdir()
        (folder / "thesis.tex").write_text("years of work")
    save_driver(tmp_path / "driver", small("cnn"))
    assert {path.name for path in tmp_path.iterdir()} == {"driver", *(path.name for path in theirs)}
    assert all((folder / "thesis.tex").exists() for folder in theirs)
