"""Two processes (gloo) that share every batch end with the loss and the weights of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nac_drive.cli.main import main
from nac_drive.policies import load_driver
from nac_drive.training import distributed
from nac_drive.training.config import PRECISIONS
from nac_drive.training.data.sequences import Sequences
from nac_drive.training.distributed import build_fabric, of_the_batch, own_rows
from nac_drive.training.main_process import is_main_process
from tests.nac_drive.small import config, train

REPOSITORY = Path(__file__).parents[3]
OPTIONS = (
    "--core", "lstm", "--encoder", "paper", "--sequence-length", "16", "--batch-size", "3",
    "--epochs", "1", "--set", "data.curve_weight=3", "optim.ema_decay=0.9", "optim.max_grad_norm=0.5",
    "validation_fraction=0.34",
    "--validation-tracks", "800000", "--device", "cpu", "--workers", "1", "--augment", "gaussian-noise:1",
)  # fmt: skip


def outcome(run: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The row and the weights of the only epoch."""
    (row,) = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return row, load_file(run / "checkpoints" / "step_1" / "model.safetensors")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_end_with_the_loss_and_the_weights_of_one(continuous, tmp_path, one_thread, capfd):
    """Some batches leave a process with one row, or with none; the frames have different weights."""
    words = ("train", str(continuous.path), "--out", str(tmp_path / "one"), *OPTIONS)
    assert main(words) == 0
    words = ("train", str(continuous.path), "--out", str(tmp_path / "two"), *OPTIONS, "--devices", "2")
    capfd.readouterr()
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "NODE_RANK")}
    subprocess.run((sys.executable, "-m", "nac_drive", *words), cwd=REPOSITORY, env={**env, "OMP_NUM_THREADS": "1"})
    shown = capfd.readouterr()
    assert shown.out.count("best checkpoint") == 1, shown.err
    (row, weights), (same_row, same_weights) = outcome(tmp_path / "one"), outcome(tmp_path / "two")
    assert same_row["loss"] == pytest.approx(row["loss"], rel=1e-5)
    assert [same_row[name] for name in ("frames", "returns")] == [row[name] for name in ("frames", "returns")]
    for name, tensor in weights.items():
        torch.testing.assert_close(same_weights[name], tensor, rtol=0, atol=1e-5)
    assert main(words) == 2  # refused before another process is started
    assert "already exists" in capfd.readouterr().err


class Processes:
    """`of_the_batch` in every process of a batch, one after the other; the sum is known from the first round."""

    def __init__(self, count: int):
        self.world_size, self.global_rank, self.parts, self.total = count, 0, [], None

    def all_reduce(self, parts: torch.Tensor, reduce_op: str) -> torch.Tensor:
        assert reduce_op == "sum"
        self.parts.append(parts)
        return parts if self.total is None else self.total


@pytest.mark.parametrize(("batch", "count"), [(7, 2), (8, 4), (3, 4), (1, 2)])
def test_the_parts_make_up_the_batch(batch, count):
    fabric: Any = Processes(count)
    taken = []
    for fabric.global_rank in range(count):
        rows = own_rows(batch, fabric)
        assert len(rows) >= 1
        taken += list(rows) if fabric.global_rank < batch else []
    assert sorted(taken) == list(range(batch))
    generator = torch.Generator().manual_seed(0)
    losses, weight = torch.rand(batch, 5, generator=generator), torch.rand(batch, 5, generator=generator)
    labels = torch.randint(2, (batch, 5), generator=generator)
    expected = (losses * weight).sum() / weight.sum()

    def results() -> list[tuple[torch.Tensor, ...]]:
        found = []
        for fabric.global_rank in range(count):
            rows = own_rows(batch, fabric)
            own = weight[rows]
            part = (losses[rows] * own).sum() / own.sum()
            sequences = Sequences(losses[rows], labels[rows], losses[rows], weight[rows])
            right = (labels[rows] == 1).float().mean()
            found.append(of_the_batch(part, right, sequences, batch, fabric))
        return found

    results()
    fabric.total = torch.stack(fabric.parts).sum(dim=0)
    found = results()
    torch.testing.assert_close(torch.stack([part for part, _, _ in found]).mean(), expected)  # as gradients are
    for _, loss, right in found:
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(right, (labels == 1).float().mean())


def test_one_process_changes_nothing():
    fabric: Any = SimpleNamespace(world_size=1, global_rank=0)
    loss, right = torch.tensor(0.3), torch.tensor(0.5)
    sequences: Any = None
    assert of_the_batch(loss, right, sequences, 4, fabric) == (loss, loss, right)
    assert np.array_equal(own_rows(4, fabric), range(4))


@pytest.mark.parametrize(
    ("ranks", "is_main"),
    [
        ({}, True), ({"LOCAL_RANK": "1"}, False), ({"NODE_RANK": "0", "LOCAL_RANK": "0"}, True),
        ({"NODE_RANK": "1"}, False), ({"RANK": "0", "LOCAL_RANK": "0"}, True),
        ({"RANK": "8", "LOCAL_RANK": "0"}, False),
    ],
)  # fmt: skip
def test_the_first_process_of_the_first_machine_is_the_main_one(monkeypatch, ranks, is_main):
    for name in ("RANK", "NODE_RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, rank in ranks.items():
        monkeypatch.setenv(name, rank)
    assert is_main_process() == is_main


@pytest.mark.parametrize(
    ("devices", "nodes", "message"),
    [
        (0, 1, "^devices and nodes must be at least 1, got 0 and 1"), (1, -1, "must be at least 1"),
        (99, 1, r"^devices must not exceed those of this machine \(4 cpu\), got 99"),
        (2, 3, "^batch_size must be at least devices x nodes, .* got 4 for 2 x 3"),
    ],
)  # fmt: skip
def test_bad_numbers_are_refused_in_one_line(monkeypatch, devices, nodes, message):
    monkeypatch.setattr(distributed.os, "cpu_count", lambda: 4)
    with pytest.raises(ValueError, match=message) as caught:
        build_fabric("cpu", "auto", devices, nodes, 4)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("precision", "native", "warned"), [
    ("bf16-mixed", False, True), ("bf16-mixed", True, False), ("32-true", False, False), ("auto", False, False),
])  # fmt: skip
def test_emulated_bfloat16_is_said_to_be_slow(precision, native, warned, monkeypatch, recwarn):
    monkeypatch.setattr(distributed, "_has_bfloat16", lambda: native)
    build_fabric("cpu", precision, 1, 1, 8)
    said = [str(each.message) for each in recwarn if "emulates" in str(each.message)]
    assert said == (["precision: this processor only emulates bf16-mixed, which takes about nine times as long as "
                     "32-true; leave it out."] if warned else [])  # fmt: skip


@pytest.mark.parametrize("precision", [each for each in PRECISIONS if not each.startswith("16")])
def test_a_driver_that_was_trained_in_any_precision_can_be_loaded(precision, dataset, tmp_path):
    """Weights of float64 were saved, and could never be read. 16-mixed needs a GPU."""
    settings = config(epochs=1)
    settings = replace(settings, optim=replace(settings.optim, precision=precision))
    best = train(settings, dataset, tmp_path / "run", device="cpu")
    assert {weights.dtype for weights in load_driver(best).state_dict().values()} <= {torch.float32, torch.bool}


@pytest.mark.parametrize(("native", "precision"), [(True, "bf16-mixed"), (False, "32-true")])
def test_auto_precision_is_bfloat16_where_the_card_has_it(native, precision, monkeypatch):
    """A T4 only emulates it."""
    monkeypatch.setattr("nac_drive.training.distributed.choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or native)
    settings: dict[str, Any] = {}
    monkeypatch.setattr("lightning_fabric.Fabric", settings.update)
    build_fabric("cuda", "auto", 1, 1, 4)
    assert settings["precision"] == precision
