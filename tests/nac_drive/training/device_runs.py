"""Small runs on both devices.

They have a process for themselves: torch starts its threads of the backward pass with the first one, for the devices
that it then knows.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from lightning_fabric import Fabric
from lightning_fabric.accelerators.cpu import CPUAccelerator
from lightning_fabric.strategies.single_device import SingleDeviceStrategy

from benchmarks.layer import cores, nac_layer
from benchmarks.speed import loops
from nac_drive import policies
from nac_drive.analysis.inspect import inspect
from nac_drive.analysis.probe import Probe
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.envs import EnvConfig
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.experiments import compare as compare_module
from nac_drive.experiments import experiment as experiment_module
from nac_drive.experiments import offline
from nac_drive.experiments.paper import PaperTask
from nac_drive.experiments.recorded import evaluate_recorded
from nac_drive.policies import Driver, DriverConfig, batched_acts, export, load_driver
from nac_drive.policies.ops.threads import one_thread
from nac_drive.training import dagger as dagger_module
from nac_drive.training import plan, trainer
from nac_drive.training import train as train_module
from nac_drive.training.ppo import config as ppo_config
from nac_drive.training.ppo import run as ppo_module
from nac_drive.training.ppo.config import PPOConfig
from nac_drive.training.ppo.rollout import RolloutPart
from nac_drive.training.ppo.update import Learner
from nac_drive.training.trainer import Trainer
from tests.nac_drive.small import (
    TINY,
    checkpoint,
    config,
    dagger_config,
    demonstrations,
    each_here,
    nested,
    rows,
    score_of_weights,
    short_zoom,
    train,
    train_dagger,
)
from tests.python_device import DEVICE, NAME, python_device, register, transfers
from tests.recorded_loops import recorded_loops

ACTIONS = 8
"""Of a rollout of PPO in each environment."""
PPO = nested(PPOConfig(),
    driver=DriverConfig(core="ct-rnn", encoder="pooled", d_model=8, dense=8), total_timesteps=32, n_envs=2,
    n_steps=ACTIONS, action_repeat=1, patience=0, sequence_length=4, value_warmup_steps=0, batch_size=8, n_epochs=2,
    learning_rate=1e-3, ema_decay=0.5, validate_every=16, validation_tracks="val-1",
)  # fmt: skip

RUNS = ("train", "dagger", "ppo", "compare", "offline", "driving", "inspect", "augmented", "measured")
Counts = list[tuple[int, int]]
"""Transfers up and down of every call."""


class ToyAccelerator(CPUAccelerator):
    """Lets torch's strategies take the device."""

    def setup_device(self, device: torch.device) -> None:
        """Do nothing."""


def _between(before: Counter[str], after: Counter[str]) -> tuple[int, int]:
    return after["up"] - before["up"], after["down"] - before["down"]


def counted(function: Callable[..., Any], counts: Counts) -> Callable[..., Any]:
    """Return a function that notes the transfers of every call."""

    def call(*arguments: Any, **settings: Any) -> Any:
        before = transfers.copy()
        result = function(*arguments, **settings)
        counts.append(_between(before, transfers))
        return result

    return call


@contextmanager
def on_device(counts: dict[str, Counts]) -> Iterator[None]:
    """Let networks be on the device. Note the transfers of updates, of PPO's rollouts and of decisions."""
    epoch = Trainer.epoch

    def updates(self: Trainer, data: Any, number: int, progress: Any, *rate: Any) -> dict[str, float]:
        seen: list[Counter[str]] = []
        row = epoch(self, data, number, lambda event: seen.append(transfers.copy()), *rate)
        counts["train"] += [_between(*pair) for pair in pairwise(seen)]
        return row

    with python_device() as device, ExitStack() as stack:
        strategy = SingleDeviceStrategy(device, ToyAccelerator())
        for module in (plan, policies, compare_module):
            stack.enter_context(patch.object(module, "choose_device", lambda name: device))
        for module in (train_module, dagger_module):
            stack.enter_context(patch.object(module, "build_fabric", lambda *settings: Fabric(strategy=strategy)))
        stack.enter_context(patch.object(Trainer, "epoch", updates))
        for name, owner, method in (
            ("ppo_update", Learner, "update"), ("ppo_step", Learner, "_step"), ("ppo_rollout", RolloutPart, "drive"),
            ("decision", Driver, "act"), ("decisions", Driver, "act_batch"),
            ("recorded", Probe, "act"),
        ):  # fmt: skip
            real = getattr(owner, method)
            call = counted(real, counts[name])
            stack.enter_context(patch.object(owner, method, lambda *a, call=call, **k: call(*a, **k)))
        yield


def both(run: Callable[[Path], Any], folder: Path) -> tuple[dict[str, Any], dict[str, Counts]]:
    """Return results on both devices, and transfers."""
    results, counts = {"cpu": run(folder / "cpu")}, defaultdict[str, Counts](list)
    with on_device(counts):
        results["device"] = run(folder / "device")
    return results, counts


def weights(path: Path) -> str:
    """Return the bytes of the weights of a checkpoint."""
    return (path / "model.safetensors").read_bytes().hex()


# Runs


def trained(settings: Any, dataset: Demonstrations, path: Path) -> Any:
    """Train for two epochs, interrupted after the first."""
    train(replace(settings, epochs=1), dataset, path)
    best = train(settings, dataset, path, resume=True)
    return rows(path), weights(best)


def augmented(dataset: Demonstrations, path: Path) -> Any:
    train(config("cfc", epochs=1, dropout=0.0, augment=("brightness:2", "frame-drop:1:zero")), dataset, path)
    return rows(path)


def dagger(path: Path) -> Any:
    settings = dagger_config("cfc", **{**TINY, "sequence_length": 16, "max_steps": 17}, dropout=0.0, rounds=1)
    with recorded_loops(NAME) as repeated:
        best = train_dagger(settings, path)
    assert bool(repeated) == (path.name == "device"), "loops over time are repeated on the device alone"
    return rows(path), weights(best)


def ppo(path: Path) -> Any:
    """Learn by PPO, interrupted after a validation."""
    ppo_module.ppo(replace(PPO, total_timesteps=16), path)
    best = ppo_module.ppo(PPO, path, resume=True)
    return rows(path), weights(best)


def compared(dataset: Demonstrations, path: Path) -> Any:
    settings = config("cnn", epochs=1, batch_size=16)
    result = compare_module.compare(("cnn",), dataset, [5], path, config=settings, expert="controller")
    assert not result.failures
    return [_plain(row) for driver in result.drivers for row in driver.evaluation.rows]


def passive(folder: Path, path: Path) -> Any:
    """Measure a fold of `Offline`, with its encoder."""
    (path / offline.TRAINED_ENCODERS).mkdir(parents=True)
    (path / offline.DATASET).symlink_to(folder / "dataset")
    device = NAME if path.name == "device" else "cpu"
    experiment = offline.Offline(
        folds=3, d_model=8, encoder="pooled", epochs=1, frames_per_update=32, precision="32-true", device=device
    )
    task = PaperTask("ct-rnn", "ct-rnn", {}, (("split", "tracks"), ("length", 8), ("fold", 0)))
    offline._train_encoder(experiment, path, experiment._encoder_task("tracks", 0))
    return experiment.measure(path, task)


def _plain(row: Any) -> dict[str, Any]:
    """Return a row without measured times."""
    values = asdict(row)
    del values["metrics"]["latency_ms"]
    return values


def _driver(folder: Path) -> Driver:
    """Return a trained driver for episodes of six frames."""
    driver = load_driver(checkpoint(folder / "train" / "cpu", "best"))
    driver.env_config["max_steps"] = 6
    return driver


def driving(folder: Path, path: Path) -> Any:
    """Return evaluations on tracks and a dataset, and an export."""
    driver, dataset = _driver(folder), Demonstrations.open(folder / "dataset")
    device = "auto" if path.name == "device" else "cpu"
    result = evaluate(driver, [5, 6], expert=driver, device=device)
    offline_result = evaluate_recorded(driver, dataset, episodes=[0], device=device)[0]
    moved = driver if device == "cpu" else driver.to(torch.device(NAME))
    with patch.object(export, "_onnx", lambda step: b"".join(part.numpy().tobytes() for part in step(*step.inputs()))):
        exported = export.export_step(moved, path.with_suffix(".onnx")).read_bytes()
    return [_plain(row) for row in result.rows], asdict(offline_result.accuracy), exported.hex()


def inspected(folder: Path, path: Path) -> Any:
    """Return decisions, neurons, attention and saliency."""
    driver = _driver(folder)
    inspect(driver, 5, folder=path, device="auto" if path.name == "device" else "cpu")
    assert driver.device.type == "cpu"
    (file,) = path.glob("*.npz")
    with np.load(file, allow_pickle=True) as arrays:
        assert {"attention", "saliency/Grad-CAM", "activity/features", "signals/phi"} <= set(arrays)
        return {name: arrays[name].tobytes().hex() for name in arrays if name not in ("perturbation", "frames")}


def measured(path: Path) -> Any:
    """Run scripts that `benchmarks/speed/gpu.py` runs, once each. Return what is no time."""
    device = DEVICE if path.name == "device" else "cpu"
    with patch.object(nac_layer, "BUDGET", 0.0), patch.object(cores, "LENGTH", 8), recorded_loops(NAME) as repeated:
        results: list[Any] = [cores.measure(name, None, device)[:2] for name in ("nac-pw", "ltc")]
        results += [sorted(nac_layer.measure(name, 3, device)) for name in ("naive", "mha")]
        results.append(sorted(loops.measure("cfc", 8, device)))
    assert bool(repeated) == (path.name == "device")
    return results


def main(folder: Path) -> None:
    """Run everything. Write FOLDER/results.json."""
    register()
    with ExitStack() as stack:
        stack.enter_context(one_thread())
        stack.enter_context(short_zoom())
        for module, name, value in (
            (plan, "draw_curve", lambda *_: None), (trainer, "closed_loop", score_of_weights),
            (ppo_module, "closed_loop", score_of_weights),
            (ppo_module, "default_workers", lambda: 1), (ppo_config, "EnvConfig", partial(EnvConfig, max_steps=12)),
            (experiment_module, "each_in_a_process", each_here), (batched_acts, "LARGEST_BLOCK", 2),
            (batched_acts, "STEPS_COMPARED", 3),
        ):  # fmt: skip
            stack.enter_context(patch.object(module, name, value))
        dataset = demonstrations(folder / "dataset")
        settings = config("nac-exact", epochs=2, dropout=0.0, ema_decay=0.9, horizontal_flip=True)
        runs: dict[str, Callable[[Path], Any]] = {
            "train": partial(trained, settings, dataset), "dagger": dagger, "ppo": ppo,
            "compare": partial(compared, dataset), "offline": partial(passive, folder),
            "driving": partial(driving, folder), "inspect": partial(inspected, folder),
            "augmented": partial(augmented, dataset), "measured": measured,
        }  # fmt: skip
        results, counts = {}, {}
        for name in RUNS:
            results[name], counts[name] = both(runs[name], folder / name)
    transfers_of = {"train": counts["train"]["train"], "augmented": counts["augmented"]["train"]}
    transfers_of |= {name: counts["ppo"][name] for name in ("ppo_update", "ppo_step", "ppo_rollout")}
    transfers_of |= {name: counts["driving"][name] for name in ("decision", "decisions")}
    transfers_of["recorded"] = counts["inspect"]["recorded"]
    (folder / "results.json").write_text(json.dumps({"runs": results, "transfers": transfers_of}))
